"""Turns: how one begins, is told to stop, and ends."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.delivery import Head
from orchestrator.core.fact import CancelAccepted, DeliveryDropped, Fact, TurnOutcome, TurnSettled, TurnStarted
from orchestrator.core.names import Millis
from orchestrator.core.snapshot import KEPT_TURNS, Snapshot, Turn


def start(snapshot: Snapshot, fact: TurnStarted) -> Snapshot:
    """A message became a turn."""
    turn = Turn(
        id=fact.turn,
        number=fact.number,
        deliveries=fact.deliveries,
        principal=fact.principal,
        agent=fact.agent,
        started=fact.at,
    )
    return replace(
        snapshot,
        next_turn=fact.number + 1,
        judged=max(snapshot.judged, fact.n),
        waiting=snapshot.waiting - 1 if fact.waited else snapshot.waiting,
        started=True,
        turn=turn,
        marks=(*snapshot.marks, fact.mark)[-KEPT_TURNS:],
    )


def judge_cancel(snapshot: Snapshot, head: Head, at: Millis) -> Fact:
    """A cancel stops the turn that is open at its place in the order, if it is the one it was meant for."""
    turn = snapshot.turn
    if turn is None:
        return DeliveryDropped(head.id, head.n, "nothing_runs", at)
    if head.envelope.guard not in ("", turn.id):
        return DeliveryDropped(head.id, head.n, "other_turn", at)
    return CancelAccepted(head.id, head.n, turn.id, at)


def cancel(snapshot: Snapshot, fact: CancelAccepted) -> Snapshot:
    """The open turn is to stop."""
    assert snapshot.turn is not None
    return replace(snapshot, judged=max(snapshot.judged, fact.n), turn=replace(snapshot.turn, cancelling=True))


def settled(turn: Turn, outcome: TurnOutcome, code: str, at: Millis) -> TurnSettled:
    """The fact that ends `turn`. Calls without result are named: the history must pair every call."""
    return TurnSettled(turn.id, outcome, code, turn.step_open and bool(turn.calls), at)


def settle(snapshot: Snapshot) -> Snapshot:
    """The turn is over; its delivery ids stay for what is said between the turns."""
    assert snapshot.turn is not None
    return replace(snapshot, turn=None, last_turn=snapshot.turn.deliveries)
