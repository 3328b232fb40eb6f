"""The heart: what a fact makes of a snapshot, which fact follows by itself, and which effect is due next.

advance(snapshot, fact)   the snapshot after the fact; folding a turn's facts gives the stored snapshot
judge(snapshot, heads)    what a delivery means now
follow(snapshot, scene)   the next fact that needs nothing from the world, or none
next_effect(snapshot)     the next thing the world has to do, or none
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never, get_args

from orchestrator.core import budget, context, ending, holds, steps, turns
from orchestrator.core.delivery import DeliveryKind, Head
from orchestrator.core.effect import (
    AskPeople,
    CallModel,
    Compact,
    Effect,
    Hold,
    JudgeCalls,
    JudgeCandidate,
    RunTools,
    Wait,
)
from orchestrator.core.fact import (
    AnswersTaken,
    BudgetReached,
    CallsJudged,
    CallsSettled,
    CallStarted,
    CancelAccepted,
    CandidateJudged,
    Compacted,
    CompactionBegun,
    CompactionDue,
    CompactionLeft,
    CompactionTryFailed,
    ContextCleared,
    ControlKept,
    DeliveryDropped,
    DeliveryWaits,
    Fact,
    InputRequested,
    InputResolved,
    MessagesJoined,
    MessageSteers,
    ModelAnswered,
    ModelTryFailed,
    RequestsWithdrawn,
    ResultDelivered,
    ResultRefused,
    SessionEnded,
    SessionEnding,
    StepCut,
    StepFailed,
    StepSettled,
    StepStarted,
    TailLost,
    ToolReturned,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import NEVER, DeliveryId, Millis, step_key, turn_id
from orchestrator.core.snapshot import Snapshot, Turn

InFlight = Literal["", "silent", "speaking"]
"""The pending model call: there is none, it has said nothing yet, its text is shown."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a decision may know beside the snapshot.

    The time, the running agent and its model, the places of the next fact and event; the model call in flight; how many tokens the
    context has by our estimate, and how many may be before it is made shorter (0: never); whether nothing is in the inbox but
    what is looked at; whether a message among that waits on; whether the session's time is over; whether its budget is used up, by the
    code that a turn fails with, and whether somebody can be asked; the answers among the deliveries that came when their turn was over.
    """

    at: Millis
    agent: str
    model: str
    seq: int
    events: int
    call: InFlight = ""
    tokens: int = 0
    most_tokens: int = 0
    all_in: bool = False
    waits: bool = False
    expired: bool = False
    over_budget: str = ""
    may_ask: bool = True
    late: frozenset[DeliveryId] = frozenset()


def advance(snapshot: Snapshot, fact: Fact) -> Snapshot:
    """The snapshot after `fact`."""
    match fact:
        case DeliveryWaits():
            return turns.wait(snapshot, fact)
        case DeliveryDropped():
            # A late answer may have waited for its turn, and another to the same request began one before.
            waited = fact.n <= snapshot.judged
            judged = max(snapshot.judged, fact.n)
            return replace(snapshot, judged=judged, waiting=max(snapshot.waiting - waited, 0))
        case CancelAccepted():
            return turns.cancel(snapshot, fact)
        case MessageSteers():
            return turns.steer(snapshot, fact)
        case MessagesJoined():
            return turns.join(snapshot, fact)
        case TurnStarted():
            return turns.start(snapshot, fact)
        case StepStarted():
            return steps.start(snapshot, fact)
        case StepCut():
            return steps.cut(snapshot, fact)
        case ModelAnswered():
            return steps.answer(snapshot, fact)
        case ModelTryFailed():
            return steps.try_failed(snapshot, fact)
        case ResultDelivered():
            return steps.delivered(snapshot, fact)
        case ResultRefused():
            return steps.misfit(snapshot, fact)
        case CallStarted():
            return steps.call_started(snapshot, fact)
        case ToolReturned():
            return steps.call_settled(snapshot, fact)
        case CallsJudged():
            return holds.judged_calls(snapshot, fact)
        case BudgetReached():
            return budget.reached(snapshot, fact)
        case InputRequested():
            return holds.requested(snapshot, fact)
        case AnswersTaken():
            return holds.taken(snapshot, fact)
        case CandidateJudged():
            return holds.judged_candidate(snapshot, fact)
        case RequestsWithdrawn():
            return holds.withdrawn(snapshot, fact)
        case InputResolved():
            return holds.resolved(snapshot, fact)
        case CallsSettled():
            return steps.settle_calls(snapshot, fact)
        case StepSettled():
            return steps.settle(snapshot, fact)
        case StepFailed():
            return steps.fail(snapshot, fact)
        case TurnSettled():
            return turns.settle(snapshot)
        case ControlKept():
            return context.keep(snapshot, fact)
        case ContextCleared():
            return context.clear(snapshot, fact)
        case CompactionDue():
            return context.due(snapshot, fact)
        case CompactionBegun():
            return context.begin(snapshot, fact)
        case CompactionTryFailed():
            return context.try_failed(snapshot, fact)
        case Compacted():
            return context.finish(snapshot, fact)
        case CompactionLeft():
            return context.leave(snapshot, fact)
        case SessionEnding():
            return ending.begin(snapshot, fact)
        case SessionEnded():
            return snapshot
        case TailLost():
            # Its report is taken out of turn: what came in before it has not been judged yet.
            return snapshot
        case _:
            assert_never(fact)


def judge(snapshot: Snapshot, head: Head, scene: Scene, following: Sequence[Head] = ()) -> Fact:
    """What a delivery means for the session as it is now (docs/states.md holds the table). `following` are those behind it, in order."""
    envelope = head.envelope
    match envelope.kind:
        case "reset" if not snapshot.ending:
            return SessionEnding(head.id, head.n, "reset", scene.at)
        case _ if snapshot.ending:
            return ending.drop(head, scene.at)
        case "message" if snapshot.turn is not None:
            answer = holds.judge_words(snapshot.turn, head, scene.at)
            return answer or turns.judge_message(snapshot.turn, head, scene.at)
        case "answers" if snapshot.turn is not None and snapshot.turn.is_stopping:
            # What it answers ends with the turn; what it says then is looked at then.
            return DeliveryWaits(head.id, head.n, scene.at)
        case "answers" if head.id not in scene.late:
            return holds.judge_answers(snapshot, head, scene.at)
        case "message" | "answers" if snapshot.busy:
            return DeliveryWaits(head.id, head.n, scene.at)
        case "message" | "answers":
            # An answer that came when its turn was over is a message; it authorises nothing.
            before = [one for one in following if not snapshot.cancel_kept or one.n < snapshot.cancel_kept]
            return _start(snapshot, turns.together(head, before), following, scene)
        case "cancel" if snapshot.compacting is not None and snapshot.turn is None and snapshot.waiting:
            return ControlKept(head.id, head.n, "cancel", scene.at)
        case "cancel":
            return turns.judge_cancel(snapshot, head, scene.at)
        case "clear" | "compact":
            return context.judge_control(snapshot, head, scene.at)
        case "tail_seen" if int(envelope.guard) > scene.events:
            return TailLost(scene.events, int(envelope.guard), head.id, head.n, scene.at)
        case _:
            return DeliveryDropped(head.id, head.n, context.NOTHING_TO_DO, scene.at)


def _start(snapshot: Snapshot, heads: Sequence[Head], following: Sequence[Head], scene: Scene) -> TurnStarted:
    return TurnStarted(
        turn=turn_id(snapshot.next_turn),
        number=snapshot.next_turn,
        deliveries=tuple(head.id for head in heads),
        n=heads[-1].n,
        waited=sum(head.n <= snapshot.judged for head in heads),
        # The same person each time; what else is known of them is what was said last.
        principal=heads[-1].envelope.principal,
        agent=scene.agent,
        mark=scene.seq,
        at=scene.at,
        followed=not scene.all_in or turns.is_followed(heads, following[len(heads) - 1 :]),
        trace=heads[0].envelope.trace,
    )


def understands(head: Head) -> bool:
    """Whether this version knows what such a delivery means. An unknown one waits for a newer worker; it never vanishes."""
    return head.envelope.v <= 1 and head.envelope.kind in get_args(DeliveryKind)


def interrupts(snapshot: Snapshot, heads: Iterable[Head], call: InFlight) -> bool:
    """Whether what came in means that the effect which is being performed has to stop, now."""
    turn = snapshot.turn
    joins = turn is not None and turn.phase == "model" and snapshot.compacting is None and call != "speaking"
    for head in heads:
        if not understands(head) or head.n <= snapshot.judged:
            continue
        match head.envelope.kind:
            case "reset":
                return True
            case "cancel" if turn is not None and head.envelope.guard in ("", turn.id):
                return True
            case "message" if joins and turn is not None:
                fact = turns.judge_message(turn, head, NEVER)
                if isinstance(fact, MessageSteers):
                    return True
                # One that waits has those of the same person behind it wait, too.
                turn = replace(turn, followed=turn.followed or (isinstance(fact, DeliveryWaits) and fact.same))
            case _:
                continue
    return False


def follow(snapshot: Snapshot, scene: Scene) -> Fact | None:
    """The fact that follows by itself, without asking the world."""
    turn = snapshot.turn
    if turn is not None:
        return _follow_in_turn(snapshot, turn, scene)
    if snapshot.ending:
        return SessionEnded(snapshot.ending, scene.at) if scene.all_in else None
    if snapshot.compacting is not None:
        return None
    if snapshot.pending:
        return context.next_pending(snapshot, scene.at)
    # What was looked at says what waits, and not a count: a store that lost its tail may hold less than was counted.
    if scene.expired and scene.all_in and not scene.waits:
        return SessionEnding(None, 0, "expired", scene.at)
    return None


def _follow_in_turn(snapshot: Snapshot, turn: Turn, scene: Scene) -> Fact | None:
    if turn.cancelling or turn.failed or snapshot.ending:
        if waiting := holds.open_requests(turn):
            return RequestsWithdrawn(turn.id, tuple(one.id for one in waiting), "cancelled", scene.at)
        if holds.untold(turn):
            return InputResolved(turn.id, turn.step, scene.at)
        if turn.cancelling or snapshot.ending:
            return turns.settled(turn, "cancelled", "", scene.at)
        return turns.settled(turn, "failed", turn.failed, scene.at)
    if snapshot.compacting is not None:
        return None
    if not turn.step_open:
        return _follow_between_steps(turn, scene)
    if turn.phase == "model" and turn.delivered:
        return StepSettled(turn.id, turn.step, "stop", scene.at)
    if turn.phase == "model" and scene.over_budget and not scene.may_ask:
        return StepFailed(turn.id, turn.step, scene.over_budget, scene.at)
    if turn.phase == "tools":
        going = [call for call in turn.calls if call.state != "settled" and call.gate != "ask"]
        if going:
            return None
        if turn.finish:
            return StepSettled(turn.id, turn.step, turn.finish, scene.at)
        if holds.to_ask(turn):
            # A call that was approved, began and was cut: people are asked again.
            return StepSettled(turn.id, turn.step, steps.TOOL_CALLS, scene.at)
        return CallsSettled(turn.id, turn.step, scene.at)
    if turn.joining and scene.call != "speaking":
        return StepCut(turn.id, turn.step, 1 if scene.call else 0, scene.at)
    return None


def _follow_between_steps(turn: Turn, scene: Scene) -> Fact | None:
    if waiting := holds.open_requests(turn):
        if turn.withdrawn:
            return RequestsWithdrawn(turn.id, tuple(one.id for one in waiting), "ignored", scene.at)
        if late := holds.expired(turn, scene.at):
            return RequestsWithdrawn(turn.id, late, "expired", scene.at)
        return None
    if holds.untold(turn):
        return InputResolved(turn.id, turn.step, scene.at)
    if refused := next(holds.refused_calls(turn), None):
        call, request = refused
        answered = request.kind == "question" and request.state == "answered"
        return ToolReturned(turn.id, turn.step, call.id, "completed" if answered else "rejected", scene.at)
    if holds.to_ask(turn):
        return None
    if turn.calls and all(call.state == "settled" for call in turn.calls):
        return CallsSettled(turn.id, turn.step, scene.at)
    if turn.misfits >= steps.RESULT_TRIES and not turn.delivered:
        return StepFailed(turn.id, turn.step, steps.NOT_FULFILLED, scene.at)
    if turn.joining and not turn.calls:
        return MessagesJoined(turn.id, turn.step, turn.joining, scene.at)
    if _is_done(turn):
        return turns.settled(turn, "completed", "", scene.at)
    if scene.over_budget and scene.may_ask:
        # Before approved calls run, too: the step in which they do asks the model.
        return None if turn.over_budget else BudgetReached(turn.id, turn.step, scene.over_budget, scene.at)
    if turn.calls:
        return StepStarted(turn.id, turn.step, scene.model, scene.at)
    if scene.most_tokens and scene.tokens > scene.most_tokens and turn.compacted < turn.step:
        return CompactionDue(None, 0, False, scene.at)
    return StepStarted(turn.id, turn.step, scene.model, scene.at)


def _is_done(turn: Turn) -> bool:
    """Whether a turn between two steps has what it was for: the result that it owes, else an answer without calls."""
    if turn.calls:
        return False
    return turn.delivered or (turn.finish not in ("", steps.TOOL_CALLS) and not turn.output)


def next_effect(snapshot: Snapshot, now: Millis) -> Effect | None:
    """What the world has to do next."""
    turn, doing = snapshot.turn, snapshot.compacting
    if doing is not None:
        return Wait(doing.retry_at) if doing.retry_at > now else Compact(doing.asked, doing.begun, doing.tries)
    if turn is None:
        return None
    if not turn.step_open:
        return _effect_between_steps(turn)
    if turn.phase == "tools":
        unsure = tuple(call for call in turn.calls if call.state != "settled" and call.gate == "policy")
        if unsure:
            return JudgeCalls(turn.id, turn.step, unsure)
        runnable = tuple(call for call in turn.calls if call.state != "settled" and call.gate in ("", "approved"))
        return RunTools(turn.id, turn.step, runnable)
    if turn.retry_at > now:
        return Wait(turn.retry_at)
    return CallModel(turn.id, turn.step, turn.tries)


def _effect_between_steps(turn: Turn) -> Effect | None:
    """A turn between two steps waits for people, has them asked, or for the judgement of a policy on who has answered."""
    waiting = holds.open_requests(turn)
    if not waiting:
        calls = holds.to_ask(turn)
        return AskPeople(turn.id, turn.step, calls) if calls or turn.over_budget else None
    for request in waiting:
        if request.candidates:
            return JudgeCandidate(turn.id, turn.step, request, request.candidates[0])
    return Hold(holds.next_expiry(turn))


def next_timer(snapshot: Snapshot) -> Millis:
    """When the session must be looked at without being asked (ms), 0 for never."""
    turn = snapshot.turn
    if snapshot.compacting is not None:
        return snapshot.compacting.retry_at
    if turn is None:
        return NEVER
    return turn.retry_at if turn.step_open else holds.next_expiry(turn)


def has_work(snapshot: Snapshot, now: Millis) -> bool:
    """Whether something can be done that needs nobody from outside."""
    if not snapshot.busy:
        return snapshot.waiting > 0 or bool(snapshot.ending)
    return not isinstance(next_effect(snapshot, now), Wait | Hold)


def key_of_next(snapshot: Snapshot) -> str:
    """The key of the step a session is at: what its next wake is for."""
    turn = snapshot.turn
    return step_key(turn.id, turn.step) if turn else step_key(turn_id(snapshot.next_turn), 0)


def attempt_key(snapshot: Snapshot) -> str:
    """What an attempt is counted for: the step whose effect is due, or nothing."""
    return step_key(snapshot.turn.id, snapshot.turn.step) if snapshot.turn else ""
