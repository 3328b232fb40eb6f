"""Turns: how one begins, takes messages in, is told to stop, and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Literal

from orchestrator.core import holds
from orchestrator.core.delivery import Head
from orchestrator.core.fact import (
    CancelAccepted,
    DeliveryDropped,
    DeliveryWaits,
    Fact,
    MessagesJoined,
    MessageSteers,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import Millis
from orchestrator.core.snapshot import KEPT_TURNS, MAX_DELIVERIES, MAX_TOGETHER_BYTES, Principal, Snapshot, Turn


def together(first: Head, following: Sequence[Head]) -> tuple[Head, ...]:
    """The messages that share a turn with `first`: those right behind it of the same person, who must be known."""
    who, size = first.envelope.principal, first.envelope.size
    found = [first]
    if who is None:
        return (first,)
    for head in takewhile(lambda head: head.envelope.kind == "message", following):
        size += head.envelope.size
        fits = len(found) < MAX_DELIVERIES and size <= MAX_TOGETHER_BYTES
        if not fits or not who.is_same(head.envelope.principal):
            break
        found.append(head)
    return tuple(found)


def start(snapshot: Snapshot, fact: TurnStarted) -> Snapshot:
    """Messages became a turn."""
    turn = Turn(
        id=fact.turn,
        number=fact.number,
        deliveries=fact.deliveries,
        principal=fact.principal,
        agent=fact.agent,
        started=fact.at,
        followed=fact.followed,
        aside=fact.aside,
        output=fact.output,
        trace=fact.trace,
        cancelling=fact.n < snapshot.cancel_kept,
    )
    return replace(
        snapshot,
        next_turn=fact.number + 1,
        judged=max(snapshot.judged, fact.n),
        waiting=snapshot.waiting - fact.waited,
        started=True,
        cancel_kept=0,
        turn=turn,
        marks=(*snapshot.marks, fact.mark)[-KEPT_TURNS:],
    )


def wait(snapshot: Snapshot, fact: DeliveryWaits) -> Snapshot:
    """The message keeps its place; those of the same person that come later stay behind it."""
    turn = snapshot.turn
    followed = replace(turn, followed=True) if turn is not None and fact.same else turn
    return replace(snapshot, judged=max(snapshot.judged, fact.n), waiting=snapshot.waiting + 1, turn=followed)


def is_followed(heads: Sequence[Head], behind: Sequence[Head]) -> bool:
    """Whether among what stands behind the messages of a turn are more of the same person."""
    who = heads[0].envelope.principal
    return any(head.envelope.kind == "message" and same_person(who, head.envelope.principal) for head in behind)


def same_person(one: Principal | None, other: Principal | None) -> bool:
    """Whether two messages are of one person. Those of whom nothing is known are one, too."""
    return one is other or (one is not None and one.is_same(other))


def judge_message(turn: Turn, head: Head, at: Millis) -> Fact:
    """A message while a turn is open joins it if its sender caused the turn and wants to steer it; else it waits."""
    envelope = head.envelope
    same = same_person(turn.principal, envelope.principal)
    full = len(turn.deliveries) + len(turn.joining) >= MAX_DELIVERIES or (
        turn.joining_bytes + envelope.size > MAX_TOGETHER_BYTES and bool(turn.joining)
    )
    withdraws = same and holds.may_withdraw(turn, head)
    steers = envelope.policy == "steer" or withdraws
    held = holds.waits_for(turn, "session-limit")
    if not steers or not same or held or turn.followed or full or turn.is_stopping:
        return DeliveryWaits(head.id, head.n, at, same)
    working = turn.step_open and any(call.state != "settled" for call in turn.calls)
    behind: Literal["", "tools"] = "tools" if working else ""
    return MessageSteers(head.id, head.n, envelope.size, turn.id, turn.step, behind, at, withdraws)


def steer(snapshot: Snapshot, fact: MessageSteers) -> Snapshot:
    """The message is taken in before the next model call; until then it waits."""
    turn = snapshot.turn
    assert turn is not None
    joining, size = (*turn.joining, fact.delivery), turn.joining_bytes + fact.size
    return replace(
        snapshot,
        judged=max(snapshot.judged, fact.n),
        waiting=snapshot.waiting + 1,
        turn=replace(turn, joining=joining, joining_bytes=size, withdrawn=turn.withdrawn or fact.withdraws),
    )


def join(snapshot: Snapshot, fact: MessagesJoined) -> Snapshot:
    """The messages are part of the turn."""
    turn = snapshot.turn
    assert turn is not None
    deliveries = (*turn.deliveries, *fact.deliveries)
    joined = replace(turn, deliveries=deliveries, joining=(), joining_bytes=0, finish="")
    # A result that was there already did not know of them.
    joined = replace(joined, aside=turn.aside or fact.aside, output=turn.output or fact.output, delivered=False)
    return replace(snapshot, waiting=snapshot.waiting - len(fact.deliveries), turn=joined)


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
    return TurnSettled(turn.id, outcome, code, bool(turn.calls), at)


def settle(snapshot: Snapshot) -> Snapshot:
    """The turn is over."""
    doing = snapshot.compacting
    # What was looked at for this turn's next call is of no use any more.
    compacting = doing if doing is not None and doing.asked else None
    return replace(snapshot, turn=None, compacting=compacting)
