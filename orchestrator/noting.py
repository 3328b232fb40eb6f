"""What one commit notes of requests: what was asked, who answered what and when, how it ended, and answers that came too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from orchestrator.core.delivery import Answered, Body, Head, Part
from orchestrator.core.event import Outcome
from orchestrator.core.fact import AnswersTaken, CandidateJudged, InputResolved, RequestsWithdrawn
from orchestrator.core.names import DeliveryId, RequestId
from orchestrator.core.snapshot import Request, Turn
from orchestrator.notes import Note, answer_texts, refusal, who


class Noting:
    """The notes that a commit changes, the links it makes, and the late answers among what it looks at.

    `load` reads what is stored; a note that was only read is not written.
    """

    __slots__ = ("_load", "_read", "changed", "late", "links")

    def __init__(self, load: Callable[[Sequence[RequestId]], dict[RequestId, Note]]) -> None:
        self.changed: dict[RequestId, Note] = {}
        self.links: dict[str, RequestId] = {}
        self.late: dict[DeliveryId, tuple[Answered, ...]] = {}
        self._load = load
        self._read: dict[RequestId, Note] = {}

    def _note(self, name: RequestId) -> Note:
        if name in self.changed:
            return self.changed[name]
        self._read_all([name])
        return self._read[name]

    def _read_all(self, names: Iterable[RequestId]) -> None:
        """Read what is needed in one trip."""
        missing = [name for name in names if name not in self._read and name not in self.changed]
        if missing:
            self._read |= {name: {} for name in missing} | self._load(missing)

    def _change(self, name: RequestId, **more: object) -> None:
        self.changed[name] = {**self._note(name), **more}

    def _answered(self, name: RequestId, answer: Mapping[str, object]) -> None:
        self._change(name, answers=[*_answers(self._note(name)), answer])

    # What happens to a request ----------------------------------------------------------------------------------------

    def begin(self, asked: Mapping[RequestId, Note]) -> None:
        """People are asked."""
        self.changed.update(asked)
        self.links.update({str(note["link"]): name for name, note in asked.items()})

    def take(self, fact: AnswersTaken, body: Body | None) -> None:
        """Somebody has answered: who, when, what."""
        texts, said = answer_texts(body), {"delivery": fact.delivery, "by": who(fact.by), "at_ms": fact.at}
        self._read_all([*(decision.request for decision in fact.decisions), *fact.stale])
        for decision in fact.decisions:
            text = body.text if body and fact.words else texts.get(decision.request, "")
            self._answered(decision.request, {**said, "option": decision.option, "text": text, "says": decision.state})
            if decision.judged:
                self._change(decision.request, candidate=fact.delivery)
        for name in fact.stale:
            self._answered(name, {**said, "says": "stale"})

    def choose(self, fact: CandidateJudged) -> None:
        """An answer counts."""
        self._change(fact.request, candidate=fact.candidate)

    def withdraw(self, fact: RequestsWithdrawn) -> None:
        """Nobody has to answer any more."""
        self._read_all(fact.requests)
        for name in fact.requests:
            self._change(name, state=fact.state, ended_ms=fact.at)

    def resolve(self, batch: Sequence[Request], fact: InputResolved) -> dict[RequestId, str]:
        """All that was asked together has ended. Returns the words of the answers that counted."""
        texts = {}
        self._read_all(request.id for request in batch)
        for request in batch:
            note = self._note(request.id)
            counted = [one for one in _answers(note) if one.get("delivery") == note.get("candidate")]
            by = {"by": counted[-1]["by"]} if counted else {}
            texts[request.id] = str(counted[-1].get("text", "")) if counted else ""
            self._change(
                request.id,
                state=request.state,
                option=request.option,
                ended_ms=fact.at,
                text=texts[request.id],
                **by,
            )
        return texts

    def refusal(self, request: Request) -> Outcome:
        """The result of the call that did not run because of how its request ended."""
        return refusal(request, str(self._note(request.id).get("text", "")))

    # Too late ---------------------------------------------------------------------------------------------------------

    def look_for_late(
        self, turn: Turn | None, heads: Sequence[Head], bodies: Callable[[Sequence[DeliveryId]], dict[DeliveryId, Body]]
    ) -> None:
        """Find the answers that say something else than what their request ended with, when its turn was over. Each request has one
        at most."""
        taken: set[RequestId] = set()
        here = {request.id for request in turn.requests} if turn is not None else set()
        for head in heads:
            if not here.isdisjoint(one.request for one in head.envelope.answers):
                continue  # it answers what the open turn asks, and is looked at with it
            past = [one for one in head.envelope.answers if one.request not in taken]
            if not past:
                continue
            notes = self._load([one.request for one in past])
            texts = answer_texts(bodies([head.id]).get(head.id)) if any(one.text for one in past) else {}
            late = tuple(
                one
                for one in past
                if one.request in notes
                and _comes_late(notes[one.request], head.id, one.option, texts.get(one.request, ""))
            )
            if late:
                self.late[head.id] = late
                taken.update(one.request for one in late)

    def late_words(self, name: DeliveryId, texts: Sequence[Part]) -> tuple[Part, ...]:
        """A late answer as a message: its texts, and the labels of its options."""
        said = [part.text for part in texts]
        for answer in self.late[name]:
            note = self._note(answer.request)
            self._change(answer.request, late=name)
            labels = {option["id"]: option["label"] for option in note.get("options", ())}
            if answer.option:
                said.append(str(labels.get(answer.option, answer.option)))
        return tuple(Part("text", text) for text in said or ("",))


def _answers(note: Note) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", note.get("answers", []))


def _comes_late(note: Note, delivery: DeliveryId, option: str, text: str) -> bool:
    same = option == note.get("option", "") and text in ("", note.get("text"))
    again = note.get("late") not in (None, delivery)
    return note.get("kind") != "session-limit" and note.get("state") != "open" and not same and not again
