"""The effect "call the model": make the request, listen to the answer, say what came of it."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Literal

from orchestrator.clock import steady
from orchestrator.core.event import AskedCall, Bodies, Outcome, storable
from orchestrator.core.fact import CallStatus, CompactionDue, ModelAnswered, ModelTryFailed, ToolReturned
from orchestrator.core.names import NEVER, CallId, Millis, call_id, step_key
from orchestrator.core.snapshot import MAX_CALLS, Call, Gate
from orchestrator.core.steps import MODEL_TRIES, TOOL_CALLS
from orchestrator.errors import OrchestratorError, UnreadableHistory
from orchestrator.notes import digest_of
from orchestrator.perform import Answered, Broke, Say, Withheld, ask_model, failed
from orchestrator.ports import Answer, Model, ModelCall, ModelFailure, ToolBox, WrongCall
from orchestrator.tool import Tool
from orchestrator.turn.filing import files_of
from orchestrator.turn.hands import Hands
from orchestrator.turn.judging import first_gate
from orchestrator.turn.results import TAKEN, take, tell

log = logging.getLogger(__name__)

LONGEST_SILENCE = 660.0
"""Seconds after which a model call without a sign of life loses its lease (the model layer cuts it before)."""
LONGEST_WAIT = 86_400.0
"""Seconds that a provider may put a call off."""
HANG_UP_SECONDS = 2.0
MOST_ID_BYTES = 8_000
ANSWER_CUT = "The answer was cut at its length limit, so this call was not run. Make it again, with a shorter answer."


def ask(hands: Hands) -> None:
    """Call the model for the open step. What came of it is given to `hands`; nothing, if it was interrupted."""
    owned, process = hands.owned, hands.process
    made = _request(hands)
    if made is None:
        return
    model, call = made
    if (files := files_of(hands)) is None:
        return
    if files:
        call = replace(call, files=files)
        hands.look_at_the_lease()
    owned.open_stream(hands.turn)

    def say(kind: str, text: str) -> None:
        if owned.say(kind, text):
            process.pump.hint(owned)

    match listen(hands, model, call, say):
        case Answer() as answer:
            _answered(hands, answer, call.tools)
        case ModelFailure() as failure:
            _broke(hands, failure)
        case None:
            return


def listen(hands: Hands, model: Model, call: ModelCall, say: Say) -> Answer | ModelFailure | None:
    """Call a model and hear it out. None: what came in has interrupted it and nothing more of it is said, or it was not begun."""
    with hands.watch.model_call(model.name, call) as heard:
        return heard(_hear_out(hands, model, call, say))


def _hear_out(hands: Hands, model: Model, call: ModelCall, say: Say) -> Answer | ModelFailure | None:
    owned, process = hands.owned, hands.process
    deciding = threading.Lock()
    hung_up = False

    def heard(kind: str, text: str) -> None:
        with deciding:
            if hung_up:
                return
            if kind == "message" and text:
                hands.call = "speaking"
        owned.busy_until = steady() + LONGEST_SILENCE
        say(kind, text)

    run = object()
    hands.call = "silent"
    owned.busy_until = steady() + LONGEST_SILENCE
    running = ask_model(model, call, heard, owned.mailbox, process.loops, run, owned.is_ours)
    try:
        while True:
            item = hands.hear(max(owned.busy_until - steady(), 0.001))
            if item is None and steady() >= owned.busy_until:
                hands.call = ""
                return ModelFailure("The model was silent for too long.", retryable=True)
            match item:
                case Answered(run=ran, answer=answer) if ran is run:
                    hands.call = ""
                    return answer
                case Broke(run=ran, failure=failure) if ran is run:
                    hands.call = ""
                    return failure
                case Withheld(run=ran) if ran is run:
                    return None  # the driver looks at the lease, and makes the call again if it may
                case _:
                    # Text that is shown and a call that is cut exclude each other.
                    with deciding:
                        hung_up = hands.interrupted()
                    if hung_up:
                        return None
    finally:
        with deciding:
            hung_up = True
        if not running.ended.is_set():
            running.cancel()
            running.ended.wait(HANG_UP_SECONDS)


def _request(hands: Hands) -> tuple[Model, ModelCall] | None:
    """The model and what it is asked, or None where that cannot be made: the step has failed then."""
    layer, turn, agent, aside = hands.process.layer, hands.turn, hands.agent, hands.aside()
    try:
        if headless := hands.take_headless():
            hands.fail_step("MODEL_CONFIG", headless)
            return None
        if turn.output and not aside.output:
            # Without it no answer would ever be the last one.
            hands.fail_step("OUTPUT_SCHEMA_LOST", "The store has lost the output schema of this turn.")
            return None
        return hands.model(), ModelCall(
            session=hands.owned.session,
            turn=turn.id,
            step=turn.step,
            tries=turn.tries,
            instructions=hands.text(agent.instructions),
            history=hands.messages(),
            tools=layer.result_box(agent.tools, aside.output) if aside.output else layer.toolbox(agent.tools),
            context=aside.context,
        )
    except UnreadableHistory:
        raise
    except OrchestratorError as broken:
        hands.fail_step("MODEL_CONFIG", str(broken))
    except Exception as broken:
        log.exception("%s: the request could not be made", hands.owned.session)
        hands.fail_step("MODEL_CONFIG", f"{type(broken).__name__}: {broken}")
    return None


def _answered(hands: Hands, answer: Answer, toolbox: ToolBox) -> None:
    turn = hands.turn
    if len(answer.calls) > MAX_CALLS:
        text = f"The model asked for {len(answer.calls)} calls at once; the limit is {MAX_CALLS}."
        _broke(hands, ModelFailure(text, retryable=False))
        return
    if sum(len(one.provider_id.encode("utf-8", "replace")) for one in answer.calls) > MOST_ID_BYTES:
        # They are part of the snapshot, which is written with every commit.
        text = f"The provider's call ids have more than {MOST_ID_BYTES:,} bytes in one answer."
        _broke(hands, ModelFailure(text, retryable=False))
        return
    tools = {tool.name: tool for tool in hands.agent.tools}
    calls, asked, taken = [], [], take(toolbox, answer)
    # What only the model hears of: calls that were wrong, and those that deliver the result.
    told: dict[CallId, Outcome] = {}
    for place, one in enumerate(answer.calls):
        name = call_id(turn.number, turn.step, place)
        if place in taken.outcomes:
            told[name] = taken.outcomes[place]
        elif answer.finish == "length":
            told[name] = failed("ANSWER_CUT", ANSWER_CUT)
        else:
            try:
                toolbox.check(one.tool, one.input)
            except WrongCall as problem:
                told[name] = failed("INVALID_CALL", str(problem))
        tool = tools.get(one.tool)
        calls.append(
            Call(
                id=name,
                provider_id=storable(one.provider_id),
                tool=storable(one.tool[:64]),
                digest=digest_of(one.input),
                on_interrupt=tool.on_interrupt if tool else "rerun",
                refused=name in told,
                asks=_asks(tool),
                gate="" if tool is None or name in told else _gate(hands, tool),
            )
        )
        asked.append(AskedCall(name, one.tool, one.input))
        hands.asked[name] = one.input
    at = hands.process.clock.now()
    finish = TOOL_CALLS if calls and not taken.ends(answer) else "stop" if calls else answer.finish or "other"
    other = hands.fallback_name if hands.on_fallback else ""
    hands.give(
        ModelAnswered(turn.id, turn.step, finish, answer.usage, tuple(calls), at, other),
        Bodies(text=answer.text, reasoning=answer.reasoning, asked=tuple(asked)),
        answer.row,
    )
    for name, outcome in told.items():
        status: CallStatus = "completed" if outcome is TAKEN else "failed"
        hands.give(ToolReturned(turn.id, turn.step, name, status, at), Bodies(outcomes={name: outcome}))
    tell(hands, taken)


def _asks(tool: Tool | None) -> Literal["", "approval", "question"]:
    if tool is None or (tool.approval is None and not tool.is_question):
        return ""
    return "question" if tool.is_question else "approval"


def _gate(hands: Hands, tool: Tool) -> Gate:
    gate = "ask" if tool.is_question else first_gate(tool.approval, hands.owned.snapshot.approved, tool.name)
    # Where nobody can be asked it is refused with the policies' word, within this step.
    return "policy" if gate == "ask" and not hands.may_ask else gate


def _broke(hands: Hands, failure: ModelFailure) -> None:
    owned, turn = hands.owned, hands.turn
    owned.drop_stream()
    with owned.sending:
        hands.flush()
    tries, code, at = turn.tries + 1, storable(failure.code), hands.process.clock.now()
    too_long = failure.overflow and turn.overflowed < turn.step
    if not too_long and (not failure.retryable or tries >= hands.most_tries):
        asked = {"tries": tries, **({"modelId": hands.fallback_name} if hands.on_fallback else {})}
        hands.fail_step(code, failure.message, {**failure.details, **asked})
        return
    # What this try has shown does not count; the next one begins anew.
    hands.loose = hands.left_behind()
    if too_long:
        hands.give(CompactionDue(None, 0, False, at, overflow=True))
    elif tries == MODEL_TRIES:
        hands.give(ModelTryFailed(turn.id, turn.step, code, NEVER, at, hands.fallback_name))
    else:
        hands.give(ModelTryFailed(turn.id, turn.step, code, again_at(hands, failure, tries), at))
    where = step_key(turn.id, turn.step)
    log.info("%s %s: try %d of the model call broke: %s", owned.session, where, tries, failure)


def again_at(hands: Hands, failure: ModelFailure, tries: int) -> Millis:
    """When a call that has broken `tries` times may be made again: later each time, or when the provider said so."""
    seconds = 2.0 ** (tries - 1) + 0.25 * hands.process.dice()
    if failure.retry_after is not None:
        # In this order: no number at all is no wait.
        seconds = min(max(0.0, failure.retry_after), LONGEST_WAIT)
    return Millis(hands.process.clock.now() + int(seconds * 1000))
