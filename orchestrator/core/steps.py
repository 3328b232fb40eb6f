"""Steps: one model call and the tool calls it asked for."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.context import counted
from orchestrator.core.fact import (
    CallsSettled,
    CallStarted,
    ModelAnswered,
    ModelTryFailed,
    ResultDelivered,
    ResultRefused,
    StepCut,
    StepFailed,
    StepSettled,
    StepStarted,
    ToolReturned,
)
from orchestrator.core.names import NEVER
from orchestrator.core.snapshot import Call, CallState, Phase, Snapshot, Turn, Usage

TOOL_CALLS = "tool-calls"
CUT = "other"
"""How a step ends whose model call was given up."""
MODEL_TRIES = 3
"""How often a model call is tried in all."""
RESULT_TRIES = 3
"""How many answers of a turn may bring no result that fits."""
NOT_FULFILLED = "OUTPUT_SCHEMA_NOT_FULFILLED"


def _turn(snapshot: Snapshot) -> Turn:
    assert snapshot.turn is not None, "a step's fact needs an open turn"
    return snapshot.turn


def start(snapshot: Snapshot, fact: StepStarted) -> Snapshot:
    """The step is open and its model call is due, behind the calls that had to wait for a person. Tries that have failed count on
    where a step was cut between them."""
    turn = _turn(snapshot)
    phase: Phase = "tools" if turn.calls else "model"
    turn = replace(turn, step=fact.step, step_open=True, phase=phase, finish="", usage=Usage(), over_budget="")
    return replace(snapshot, turn=turn)


def answer(snapshot: Snapshot, fact: ModelAnswered) -> Snapshot:
    """The answer is there: its calls are due, or the step can be closed."""
    turn, used = _turn(snapshot), replace(fact.usage, answers=1)
    turn = replace(
        turn,
        phase="tools",
        calls=fact.calls,
        finish=fact.finish,
        tries=0,
        retry_at=NEVER,
        usage=fact.usage,
        spent=turn.spent + used,
    )
    return replace(snapshot, turn=turn, usage=snapshot.usage + used, context=counted(fact.usage))


def try_failed(snapshot: Snapshot, fact: ModelTryFailed) -> Snapshot:
    """The call is due again, later."""
    turn = _turn(snapshot)
    return replace(snapshot, turn=replace(turn, tries=turn.tries + 1, retry_at=fact.retry_at))


def delivered(snapshot: Snapshot, _fact: ResultDelivered) -> Snapshot:
    """The turn ends when what else was asked for is done."""
    return replace(snapshot, turn=replace(_turn(snapshot), delivered=True))


def misfit(snapshot: Snapshot, _fact: ResultRefused) -> Snapshot:
    """The model is asked again, if it may."""
    turn = _turn(snapshot)
    return replace(snapshot, turn=replace(turn, misfits=turn.misfits + 1))


def _mark(calls: tuple[Call, ...], call: str, state: CallState) -> tuple[Call, ...]:
    return tuple(replace(one, state=state) if one.id == call else one for one in calls)


def call_started(snapshot: Snapshot, fact: CallStarted) -> Snapshot:
    """The call may have happened from here on."""
    turn = _turn(snapshot)
    return replace(snapshot, turn=replace(turn, calls=_mark(turn.calls, fact.call, "started")))


def call_settled(snapshot: Snapshot, fact: ToolReturned) -> Snapshot:
    """The call has its result."""
    turn = _turn(snapshot)
    return replace(snapshot, turn=replace(turn, calls=_mark(turn.calls, fact.call, "settled")))


def settle(snapshot: Snapshot, fact: StepSettled) -> Snapshot:
    """The step is closed. After tool calls the next one follows, else the turn ends unless a message joins it."""
    turn = _turn(snapshot)
    waiting = turn.calls if any(call.state != "settled" for call in turn.calls) else ()
    closed = replace(turn, step=turn.step + 1, step_open=False, phase="model", calls=waiting, finish=fact.finish)
    return replace(snapshot, turn=closed)


def settle_calls(snapshot: Snapshot, _fact: CallsSettled) -> Snapshot:
    """The model can be asked again."""
    return replace(snapshot, turn=replace(_turn(snapshot), calls=(), phase="model"))


def cut(snapshot: Snapshot, fact: StepCut) -> Snapshot:
    """The step is closed without an answer; the next one asks with what has come in."""
    turn = _turn(snapshot)
    usage = Usage(unmeasured=fact.unmeasured)
    closed = replace(turn, step=turn.step + 1, step_open=False, finish=TOOL_CALLS)
    return replace(snapshot, turn=closed, usage=snapshot.usage + usage)


def fail(snapshot: Snapshot, fact: StepFailed) -> Snapshot:
    """The turn cannot go on."""
    return replace(snapshot, turn=replace(_turn(snapshot), failed=fact.code))
