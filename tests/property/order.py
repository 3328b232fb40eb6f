"""What waits in a session's inbox and in which order it may be taken in, told from what was sent and from the facts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.delivery import Envelope
from orchestrator.core.ending import SESSION_ENDED
from orchestrator.core.fact import (
    AnswersTaken,
    CancelAccepted,
    CompactionDue,
    ContextCleared,
    ControlKept,
    DeliveryDropped,
    DeliveryWaits,
    Fact,
    MessagesJoined,
    MessageSteers,
    SessionEnding,
    TailLost,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.snapshot import Principal, Snapshot

Must = Callable[[object, str], None]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A delivery that is in the inbox."""

    n: int
    envelope: Envelope

    @property
    def person(self) -> tuple[str, ...]:
        """Who sent it; those of whom nothing is known are one."""
        return person(self.envelope.principal)

    @property
    def is_message(self) -> bool:
        """Whether it is a message."""
        return self.envelope.kind == "message"


def person(principal: Principal | None) -> tuple[str, ...]:
    """What two people are told apart by."""
    return () if principal is None else principal.identity


class Order:
    """The inbox of one session."""

    def __init__(self, must: Must) -> None:
        self._must = must
        self._waiting: dict[str, Waiting] = {}
        self._joining: list[str] = []
        self._stops: list[int] = []
        """The places of cancels that are kept for the next turn: it does not reach across."""

    def accepted(self, name: str, n: int, envelope: Envelope) -> None:
        """Something came in."""
        self._waiting[name] = Waiting(n, envelope)

    def happened(self, fact: Fact, before: Snapshot) -> None:
        """A fact was committed on top of this snapshot."""
        match fact:
            case TurnStarted():
                self._starts(fact, before)
            case MessageSteers():
                self._steers(fact, before)
            case MessagesJoined():
                self._must(list(fact.deliveries) == self._joining, f"{self._joining} were to join, {fact}")
                self._leave(*fact.deliveries)
                self._joining = []
            case DeliveryWaits():
                one = self._waiting.get(fact.delivery)
                self._must(one is not None and not self._may_steer(fact.delivery, before), f"{one} waits: {fact}")
            case DeliveryDropped():
                self._dropped(fact, before)
            case ControlKept():
                self._stops += [fact.n] if fact.control == "cancel" else []
                self._leave(fact.delivery)
            case AnswersTaken():
                self._leave(fact.delivery)
            case CancelAccepted() | ContextCleared() | CompactionDue() | SessionEnding() | TailLost():
                self._leave(*([fact.delivery] if fact.delivery else []))
            case TurnSettled():
                self._joining = []
            case _:
                pass

    def _leave(self, *names: str) -> None:
        for name in names:
            self._waiting.pop(name, None)

    def _in_order(self) -> list[tuple[str, Waiting]]:
        return sorted(self._waiting.items(), key=lambda pair: pair[1].n)

    def _starts(self, fact: TurnStarted, before: Snapshot) -> None:
        """The first that waits begins the turn, its neighbours of the same known person with it."""
        order, count = self._in_order(), len(fact.deliveries)
        taken = order[:count]
        self._must([name for name, _ in taken] == list(fact.deliveries), f"{fact} overtakes: {order}")
        # An answer that came too late is a message, which begins a turn of its own or one with what came after it.
        begins = not taken or taken[0][1].envelope.kind in ("message", "answers")
        self._must(begins and all(one.is_message for _, one in taken[1:]), f"no messages: {taken}")
        people = {one.person for _, one in taken}
        self._must(people == {person(fact.principal)}, f"{fact} is of {people}")
        self._must(count == 1 or () not in people, f"messages of nobody share a turn: {fact}")
        self._leave(*fact.deliveries)
        self._must(not taken or not self._stop_between(taken[0][1].n, fact.n), f"{fact} reaches across a cancel")
        behind = any(one.is_message and {one.person} == people for one in self._waiting.values())
        self._must(behind or not fact.followed, f"followed by nobody: {fact}")
        if taken and order[count:]:
            name, after = order[count]
            known = after.n <= before.judged and after.is_message and not self._stop_between(fact.n, after.n)
            self._must(not known or {after.person} != people or not after.person, f"{name} should share {fact}")
        self._stops = []

    def _stop_between(self, first: int, last: int) -> bool:
        return any(first < n < last for n in self._stops)

    def _may_steer(self, name: str, before: Snapshot, *, withdraws: bool = False) -> bool:
        """Whether a message joins the open turn: its person's, who wants that (or takes back what was asked) and has nothing else
        waiting before it."""
        turn, one = before.turn, self._waiting.get(name)
        if (
            turn is None
            or one is None
            or not one.is_message
            or turn.cancelling
            or turn.failed
            or turn.followed
            or before.ending
            or any(request.kind == "session-limit" and request.state == "open" for request in turn.requests)
        ):
            return False
        earlier = any(
            other.person == one.person and other.n < one.n and other.is_message
            for waiting, other in self._waiting.items()
            if waiting not in self._joining
        )
        wants = one.envelope.policy == "steer" or withdraws
        return wants and one.person == person(turn.principal) and not earlier

    def _steers(self, fact: MessageSteers, before: Snapshot) -> None:
        may = self._may_steer(fact.delivery, before, withdraws=fact.withdraws)
        self._must(may, f"{fact} in {before.turn}, waiting {self._in_order()}")
        self._joining.append(fact.delivery)

    def _dropped(self, fact: DeliveryDropped, before: Snapshot) -> None:
        one = self._waiting.get(fact.delivery)
        if one is not None and one.is_message:
            self._must(before.ending and fact.reason == SESSION_ENDED, f"a message was dropped: {fact}")
        self._leave(fact.delivery)
