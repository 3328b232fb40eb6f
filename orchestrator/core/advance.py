"""The heart: what a fact makes of a snapshot, which fact follows by itself, and which effect is due next.

advance(snapshot, fact)   the snapshot after the fact; folding a turn's facts gives the stored snapshot
judge(snapshot, head)     what a delivery means now
follow(snapshot, scene)   the next fact that needs nothing from the world, or none
next_effect(snapshot)     the next thing the world has to do, or none
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from orchestrator.core import steps, turns
from orchestrator.core.delivery import Head
from orchestrator.core.effect import CallModel, Effect, RunTools, Wait
from orchestrator.core.fact import (
    CallStarted,
    CancelAccepted,
    DeliveryDropped,
    DeliveryWaits,
    Fact,
    ModelAnswered,
    ModelTryFailed,
    StepFailed,
    StepSettled,
    StepStarted,
    TailLost,
    ToolReturned,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import NEVER, Millis, step_key, turn_id
from orchestrator.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Scene:
    """What a decision may know beside the snapshot: the time, the running agent and its model, the places of the next fact and event."""

    at: Millis
    agent: str
    model: str
    seq: int
    events: int


def advance(snapshot: Snapshot, fact: Fact) -> Snapshot:
    """The snapshot after `fact`."""
    match fact:
        case DeliveryWaits():
            return replace(snapshot, judged=fact.n, waiting=snapshot.waiting + 1)
        case DeliveryDropped():
            return replace(snapshot, judged=max(snapshot.judged, fact.n))
        case CancelAccepted():
            return turns.cancel(snapshot, fact)
        case TurnStarted():
            return turns.start(snapshot, fact)
        case StepStarted():
            return steps.start(snapshot, fact)
        case ModelAnswered():
            return steps.answer(snapshot, fact)
        case ModelTryFailed():
            return steps.try_failed(snapshot, fact)
        case CallStarted():
            return steps.call_started(snapshot, fact)
        case ToolReturned():
            return steps.call_settled(snapshot, fact)
        case StepSettled():
            return steps.settle(snapshot, fact)
        case StepFailed():
            return steps.fail(snapshot, fact)
        case TurnSettled():
            return turns.settle(snapshot)
        case TailLost():
            # Its report is taken out of turn: what came in before it has not been judged yet.
            return snapshot
        case _:
            assert_never(fact)


def judge(snapshot: Snapshot, head: Head, scene: Scene) -> Fact:
    """What a delivery means for the session as it is now (docs/states.md holds the table)."""
    envelope = head.envelope
    match envelope.kind:
        case "message" if snapshot.turn is None:
            return TurnStarted(
                turn=turn_id(snapshot.next_turn),
                number=snapshot.next_turn,
                deliveries=(head.id,),
                n=head.n,
                waited=head.n <= snapshot.judged,
                principal=envelope.principal,
                agent=scene.agent,
                mark=scene.seq,
                at=scene.at,
            )
        case "message":
            return DeliveryWaits(head.id, head.n, scene.at)
        case "cancel":
            return turns.judge_cancel(snapshot, head, scene.at)
        case "tail_seen" if int(envelope.guard) > scene.events:
            return TailLost(scene.events, int(envelope.guard), head.id, head.n, scene.at)
        case _:
            return DeliveryDropped(head.id, head.n, "nothing_to_do", scene.at)


def understands(head: Head) -> bool:
    """Whether this version knows what such a delivery means. An unknown one waits for a newer worker; it never vanishes."""
    return head.envelope.v <= 1 and head.envelope.kind in ("message", "cancel", "tail_seen")


def follow(snapshot: Snapshot, scene: Scene) -> Fact | None:
    """The fact that follows by itself, without asking the world."""
    turn = snapshot.turn
    if turn is None:
        return None
    if turn.cancelling:
        return turns.settled(turn, "cancelled", "", scene.at)
    if turn.failed:
        return turns.settled(turn, "failed", turn.failed, scene.at)
    if not turn.step_open:
        if turn.finish and turn.finish != steps.TOOL_CALLS:
            return turns.settled(turn, "completed", "", scene.at)
        return StepStarted(turn.id, turn.step, scene.model, scene.at)
    if turn.phase == "tools" and all(call.state == "settled" for call in turn.calls):
        return StepSettled(turn.id, turn.step, turn.finish, scene.at)
    return None


def next_effect(snapshot: Snapshot, now: Millis) -> Effect | None:
    """What the world has to do next."""
    turn = snapshot.turn
    if turn is None or not turn.step_open:
        return None
    if turn.phase == "tools":
        open_calls = tuple(call for call in turn.calls if call.state != "settled")
        return RunTools(turn.id, turn.step, open_calls)
    if turn.retry_at > now:
        return Wait(turn.id, turn.retry_at)
    return CallModel(turn.id, turn.step, turn.tries)


def next_timer(snapshot: Snapshot) -> Millis:
    """When the session must be looked at without being asked (ms), 0 for never."""
    return snapshot.turn.retry_at if snapshot.turn else NEVER


def has_work(snapshot: Snapshot, now: Millis) -> bool:
    """Whether something can be done that needs nobody from outside."""
    if snapshot.turn is None:
        return snapshot.waiting > 0
    return not isinstance(next_effect(snapshot, now), Wait)


def attempt_key(snapshot: Snapshot) -> str:
    """What an attempt is counted for: the step whose effect is due, or nothing."""
    return step_key(snapshot.turn.id, snapshot.turn.step) if snapshot.turn else ""
