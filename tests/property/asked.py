"""What people are asked by a session, which of their answers count, and that nothing runs without the leave that it needs."""

from __future__ import annotations

from orchestrator.core.delivery import Envelope
from orchestrator.core.fact import AnswersTaken, Fact, InputRequested, InputResolved, MessageSteers, RequestsWithdrawn
from orchestrator.core.names import RequestId
from orchestrator.core.snapshot import Request, Snapshot
from tests.property.agent import GATED, QUESTIONS
from tests.property.order import Must, person


class Asked:
    """The requests of one session, told from what was sent and from the facts alone."""

    def __init__(self, must: Must) -> None:
        self._must = must
        self._open: dict[RequestId, str] = {}
        """What was asked and has not ended, and of which call."""
        self._kinds: dict[RequestId, Request] = {}
        self._ended: dict[RequestId, str] = {}
        self._seen: dict[str, tuple[Envelope, frozenset[RequestId]]] = {}
        """What came in, and what was open then."""
        self._leave: dict[str, bool] = {}
        """The calls that were asked about, and whether they may run: once, whatever comes of it."""

    @property
    def all(self) -> list[RequestId]:
        """What was ever asked, oldest first."""
        return [*self._ended, *self._open]

    def accepted(self, name: str, envelope: Envelope) -> None:
        """Something came in."""
        self._seen[name] = envelope, frozenset(self._open)

    def happened(self, fact: Fact, before: Snapshot) -> None:
        """A fact was committed on top of this snapshot."""
        match fact:
            case InputRequested():
                for request in fact.requests:
                    self._must(
                        request.id not in self._open and request.id not in self._ended, f"asked again: {request}"
                    )
                    self._open[request.id] = f"{fact.turn}/{request.call}"
                    self._kinds[request.id] = request
            case AnswersTaken():
                self._answered(fact, before)
            case MessageSteers() if fact.withdraws:
                seen = self._seen[fact.delivery][1]
                self._must(self._open and seen.issuperset(self._open), f"{fact} takes back what was asked later")
            case RequestsWithdrawn():
                for name in fact.requests:
                    self._ends(name, fact.state)
            case InputResolved():
                self._must(not self._open, f"resolved, and {self._open} are open")
            case _:
                pass

    def _answered(self, fact: AnswersTaken, before: Snapshot) -> None:
        assert before.turn is not None
        envelope, seen = self._seen[fact.delivery]
        allowed = person(envelope.principal) == person(before.turn.principal) or before.turn.principal is None
        said = {answer.request: answer.option for answer in envelope.answers}
        if fact.words:
            # Words answer what was asked first, by an option or, where anything may be said, by themselves.
            first = self._kinds[next(iter(self._open))]
            named = {
                name: option.id
                for n, option in enumerate(first.options, 1)
                for name in (option.id, option.label.casefold(), str(n))
            }
            said = {first.id: named.get(envelope.words, "")}
            self._must(said[first.id] or first.freeform, f"{envelope} answers {first}")
            self._must(not envelope.files, f"{envelope} has files and became {fact}")
        for decision in fact.decisions:
            self._must(decision.request in seen, f"{fact} answers what was not open when it came in")
            self._must(allowed, f"{fact} counts, and the turn is {before.turn.principal}'s")
            self._must(said.get(decision.request) == decision.option, f"{envelope} became {fact}")
            self._ends(decision.request, decision.state)

    def _ends(self, request: RequestId, state: str) -> None:
        self._must(request in self._open, f"{request} ended twice, or was never asked: {self._ended.get(request)}")
        call = self._open.pop(request, "")
        self._ended[request] = state
        if self._kinds[request].kind == "tool-approval":
            self._leave[call] = state == "approved"

    def model_begins(self) -> None:
        """A worker calls the model for an answer."""
        self._must(not self._open, f"the model is called, and {self._open} are open")

    def begins(self, key: str, tool: str) -> None:
        """A worker starts a tool call."""
        self._must(tool not in QUESTIONS, f"{key} runs, and is a question")
        if tool in GATED:
            self._must(not self._open, f"{key} runs, and {self._open} are open")
            self._must(self._leave.pop(key, False), f"{key} runs without leave of its own")
        else:
            self._must(key not in self._leave, f"{key} asked for leave that {tool} does not need")

    def finish(self) -> None:
        """Everything has come to rest."""
        assert not self._open, f"nobody has answered {self._open}"
