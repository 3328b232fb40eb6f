"""What the public stream shows: which events a fact brings, and how one is written as a line.

The bodies a fact speaks of (texts, results) are handed in; nothing is looked up here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from orchestrator.core import holds
from orchestrator.core.delivery import Part
from orchestrator.core.ending import SESSION_ENDED
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
from orchestrator.core.names import CallId, DeliveryId, RequestId, SessionId, turn_id
from orchestrator.core.snapshot import Principal, RequestState, Snapshot, Turn, Usage
from orchestrator.core.steps import CUT

Json = Mapping[str, object]


def storable(text: str) -> str:
    """`text` as UTF-8 can hold it: Python's strings may hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Event:
    """One public event before it has an id."""

    type: str
    data: Json


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call as the stream shows it."""

    id: CallId
    tool: str
    input: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call as it is recorded: `output` is JSON; `error` has code, message and perhaps name."""

    status: str
    output: object
    error: Json | None = None


def pack_outcome(outcome: Outcome) -> bytes:
    """A record: JSON, as the output is, with whatever numbers it holds."""
    return storable(encode([outcome.status, outcome.output, outcome.error])).encode()


def unpack_outcome(record: bytes) -> Outcome:
    """An outcome from its record."""
    status, output, error = json.loads(record)
    return Outcome(status, output, error)


def pack_result(result: object) -> bytes:
    """The result of a turn as it is recorded: JSON."""
    return storable(encode(result)).encode()


def unpack_result(record: bytes) -> object:
    """A result from its record."""
    return json.loads(record)


@dataclass(frozen=True, slots=True)
class Bodies:
    """The texts and results that the facts of one commit speak of. `requests` are as people see them, `texts` what they answered."""

    messages: Mapping[DeliveryId, tuple[Part, ...]] = field(default_factory=dict)
    requests: tuple[Json, ...] = ()
    texts: Mapping[RequestId, str] = field(default_factory=dict)
    text: str = ""
    reasoning: str = ""
    asked: tuple[AskedCall, ...] = ()
    outcomes: Mapping[CallId, Outcome] = field(default_factory=dict)
    failure: str = ""
    details: Json | None = None
    result: object = None


NO_BODIES = Bodies()


def _turn_place(turn: Turn) -> dict[str, object]:
    return {"turnId": turn.id, "sequence": turn.number}


def _step_place(turn: Turn) -> dict[str, object]:
    return {"turnId": turn.id, "sequence": turn.number, "stepIndex": turn.step}


def usage_json(usage: Usage) -> dict[str, object]:
    """Usage as the wire has it."""
    cost = {"costUsd": usage.micro_usd / 1_000_000} if usage.micro_usd else {}
    return {
        "inputTokens": usage.input,
        "outputTokens": usage.output,
        "cacheReadTokens": usage.cache_read,
        "cacheWriteTokens": usage.cache_write,
        **cost,
    }


def delta(turn: Turn, kind: str, text: str) -> Event:
    """A piece of an answer while it is made: kind is `message` or `reasoning`."""
    return Event(f"{kind}.appended", {**_step_place(turn), f"{kind}Delta": text})


def partial(turn: Turn, call: CallId, tool: str, value: object) -> Event:
    """What a running tool has to say so far."""
    return Event(
        "action.partial", {**_step_place(turn), "result": result_json(call, tool, Outcome("completed", value))}
    )


def superseded(turn: Turn, begin: int, end: int) -> Event:
    """The events `begin` to `end` (inclusive) belong to a broken attempt and do not count."""
    return Event("step.superseded", {**_step_place(turn), "from": begin, "to": end})


def lost_place() -> Event:
    """Stands for an event that the store has lost."""
    return Event("stream.lost", {})


def result_json(call: CallId, tool: str, outcome: Outcome) -> dict[str, object]:
    """The `result` object of an action."""
    result: dict[str, object] = {"kind": "tool-result", "callId": call, "toolName": tool, "output": outcome.output}
    if outcome.error is not None:
        result["isError"] = True
        if "name" in outcome.error:
            result["errorName"] = outcome.error["name"]
    return result


def publish(session: SessionId, before: Snapshot, fact: Fact, after: Snapshot, bodies: Bodies) -> Iterator[Event]:
    """The events that `fact` brings, in their order."""
    match fact:
        case TurnStarted():
            assert after.turn is not None
            place = _turn_place(after.turn)
            if not before.started:
                yield Event("session.started", {"runtime": {"agentId": fact.agent, "eveVersion": "0.80.0"}})
            yield Event("turn.started", place)
            yield from _received(place, fact.deliveries, bodies)
        case MessagesJoined():
            assert after.turn is not None
            yield from _received(_turn_place(after.turn), fact.deliveries, bodies)
        case MessageSteers(behind="tools"):
            assert after.turn is not None
            yield Event("message.deferred", {**_step_place(after.turn), "deliveryId": fact.delivery, "until": "tools"})
        case StepCut():
            assert before.turn is not None
            yield Event("step.completed", {**_step_place(before.turn), "finishReason": CUT})
        case StepStarted():
            assert after.turn is not None
            yield Event("step.started", {**_step_place(after.turn), "modelId": fact.model})
        case ModelAnswered():
            assert after.turn is not None
            place = _step_place(after.turn)
            if bodies.reasoning:
                yield Event("reasoning.completed", {**place, "reasoning": bodies.reasoning})
            if bodies.text:
                yield Event("message.completed", {**place, "message": bodies.text, "finishReason": fact.finish})
            shown = [call for call in bodies.asked if any(c.id == call.id and not c.refused for c in fact.calls)]
            if shown:
                actions = [
                    {"kind": "tool-call", "callId": call.id, "toolName": call.tool, "input": call.input}
                    for call in shown
                ]
                yield Event("actions.requested", {**place, "actions": actions})
        case ToolReturned():
            assert before.turn is not None
            call = next(call for call in before.turn.calls if call.id == fact.call)
            outcome = bodies.outcomes[fact.call]
            if not call.refused:
                data: dict[str, object] = {
                    **_call_place(before.turn),
                    "result": result_json(call.id, call.tool, outcome),
                    "status": outcome.status,
                }
                if outcome.error is not None:
                    data["error"] = outcome.error
                yield Event("action.result", data)
        case InputRequested():
            assert after.turn is not None
            yield Event("input.requested", {**_asking_place(after.turn), "requests": list(bodies.requests)})
            yield _held(after)
        case AnswersTaken():
            yield from _answers(fact, before, after, bodies)
        case CandidateJudged():
            yield from _candidate(fact, before, after)
        case InputResolved():
            assert before.turn is not None
            resolutions = [
                {
                    "requestId": request.id,
                    "kind": request.kind,
                    "outcome": OUTCOMES.get(request.state, request.state),
                    **_response(request.option, bodies.texts.get(request.id, "")),
                }
                for request in holds.untold(before.turn)
            ]
            yield Event("input.resolved", {**_asking_place(before.turn), "resolutions": resolutions})
        case StepSettled():
            assert before.turn is not None
            usage = usage_json(before.turn.usage) if not before.turn.usage.unmeasured else None
            yield Event(
                "step.completed",
                {**_step_place(before.turn), "finishReason": fact.finish, **({"usage": usage} if usage else {})},
            )
        case StepFailed():
            assert before.turn is not None
            yield Event(
                "step.failed",
                {**_asking_place(before.turn), "code": fact.code, "message": bodies.failure, **_details(bodies)},
            )
        case TurnSettled():
            assert before.turn is not None
            place = _turn_place(before.turn)
            match fact.outcome:
                case "completed":
                    if before.turn.delivered:
                        yield Event("result.completed", {**_asking_place(before.turn), "result": bodies.result})
                    yield Event("turn.completed", place)
                case "cancelled":
                    yield Event("turn.cancelled", place)
                case "failed":
                    yield Event(
                        "turn.failed",
                        {**place, "code": fact.code, "message": bodies.failure, **_details(bodies), "terminal": False},
                    )
                case _:
                    assert_never(fact.outcome)
            yield _waiting(session, after)
        case ContextCleared():
            yield Event("context.cleared", {**_next_place(after), "sessionId": session})
            yield _waiting(session, after)
        case CompactionBegun():
            place = {**_next_step_place(after), "sessionId": session, "modelId": fact.model}
            yield Event("compaction.requested", {**place, "usageInputTokens": fact.tokens or None})
        case Compacted():
            place = {**_next_step_place(after), "sessionId": session, "modelId": fact.model}
            yield Event("compaction.completed", place)
            if before.turn is None:
                yield _waiting(session, after)
        case CompactionLeft():
            if before.turn is None:
                yield _waiting(session, after)
        case DeliveryDropped(reason=reason) if reason == SESSION_ENDED:
            yield Event("message.discarded", {"deliveryId": fact.delivery, "reason": reason})
        case SessionEnded():
            yield Event("session.completed", {"usage": usage_json(after.usage)})
        case SessionEnding():
            yield Event("session.ending", {"reason": fact.reason})
        case TailLost():
            yield Event("session.rewound", {"from": fact.end, "to": fact.begin})
        case DeliveryWaits() | DeliveryDropped() | CancelAccepted() | ModelTryFailed() | CallStarted():
            return
        case CallsJudged() | CallsSettled() | RequestsWithdrawn() | BudgetReached():
            return
        case ResultDelivered() | ResultRefused():
            return
        case MessageSteers() | ControlKept() | CompactionDue() | CompactionTryFailed():
            return
        case _:
            assert_never(fact)


OUTCOMES: Mapping[RequestState, str] = {"expired": "cancelled"}
"""How the stream calls an end that the protocol has no word for."""


def _held(after: Snapshot) -> Event:
    """The open turn is parked, and waits for people."""
    assert after.turn is not None
    return Event("turn.waiting", {**_turn_place(after.turn), "on": "input", "usage": usage_json(after.usage)})


def _asking_place(turn: Turn) -> dict[str, object]:
    """The place of the step that asks: the last one that was closed."""
    return {**_turn_place(turn), "stepIndex": turn.step if turn.step_open else max(turn.step - 1, 0)}


def _call_place(turn: Turn) -> dict[str, object]:
    """The place of a call's result: the step in which it ran, or the one that asked for leave and did not get it."""
    return _step_place(turn) if turn.step_open else _asking_place(turn)


def _response(option: str, text: str) -> dict[str, object]:
    said = {**({"optionId": option} if option else {}), **({"text": text} if text else {})}
    return {"response": said} if said else {}


def _who(by: Principal | None) -> str:
    return by.id if by else "anonymous"


def _answers(fact: AnswersTaken, before: Snapshot, after: Snapshot, bodies: Bodies) -> Iterator[Event]:
    assert before.turn is not None
    assert after.turn is not None
    place, kinds = _asking_place(after.turn), {request.id: request.kind for request in before.turn.requests}
    if fact.words and any(kinds[one.request] == "question" for one in fact.decisions):
        yield from _received(_turn_place(after.turn), (fact.delivery,), bodies)
    for decision in fact.decisions:
        if kinds[decision.request] != "tool-approval":
            continue
        told = {**place, "requestId": decision.request, "responderPrincipalId": _who(fact.by)}
        if not decision.judged:
            yield Event("approval.candidate", {**told, "candidateId": fact.delivery, "outcome": "pending"})
        elif decision.state in SETTLED:
            yield Event("approval.settled", {**told, "outcome": SETTLED[decision.state]})
    for request in fact.stale:
        told = {**place, "requestId": request, "responderPrincipalId": _who(fact.by)}
        yield Event("approval.candidate", {**told, "candidateId": fact.delivery, "outcome": "stale"})
    if holds.open_requests(after.turn) and all(decision.judged for decision in fact.decisions):
        yield _held(after)


SETTLED: Mapping[RequestState, str] = {"approved": "approved", "denied": "cancelled"}


def _candidate(fact: CandidateJudged, before: Snapshot, after: Snapshot) -> Iterator[Event]:
    assert before.turn is not None
    assert after.turn is not None
    request = next(one for one in before.turn.requests if one.id == fact.request)
    counted = next(one for one in request.candidates if one.id == fact.candidate)
    told = {**_asking_place(after.turn), "requestId": request.id}
    who = {"responderPrincipalId": _who(counted.by)}
    if fact.reason:
        yield Event("approval.candidate", {**told, **who, "candidateId": counted.id, "outcome": fact.reason})
    else:
        for other in request.candidates:
            if other.id != counted.id:
                late = {"candidateId": other.id, "responderPrincipalId": _who(other.by), "outcome": "stale"}
                yield Event("approval.candidate", {**told, **late})
        if counted.state in SETTLED:
            yield Event("approval.settled", {**told, **who, "outcome": SETTLED[counted.state]})
    waiting = holds.open_requests(after.turn)
    if waiting and not any(one.candidates for one in waiting):
        yield _held(after)


def _received(place: Json, deliveries: Sequence[DeliveryId], bodies: Bodies) -> Iterator[Event]:
    for delivery in deliveries:
        parts = bodies.messages[delivery]
        data: dict[str, object] = {**place, "message": "\n".join(part.text for part in parts)}
        if len(parts) > 1 or any(part.file for part in parts):
            data["parts"] = list(map(_part, parts))
        yield Event("message.received", data)


def _part(part: Part) -> dict[str, object]:
    """A part as readers see it, which is without bytes."""
    if (file := part.file) is None:
        return {"type": "text", "text": part.text}
    told = {"filename": file.name, "size": file.size, "url": file.url}
    return {"type": "file", "mediaType": file.media_type, **{name: value for name, value in told.items() if value}}


def _waiting(session: SessionId, after: Snapshot) -> Event:
    data = {"wait": "next-user-message", "continuationToken": session, "usage": usage_json(after.usage)}
    return Event("session.waiting", data)


def _next_place(after: Snapshot) -> dict[str, object]:
    """Between two turns: the place of the next one."""
    return {"turnId": turn_id(after.next_turn), "sequence": after.next_turn}


def _next_step_place(after: Snapshot) -> dict[str, object]:
    """The place of the step that comes next."""
    return _step_place(after.turn) if after.turn else {**_next_place(after), "stepIndex": 0}


def _details(bodies: Bodies) -> dict[str, object]:
    return {"details": dict(bodies.details)} if bodies.details else {}


def line(event: Event, event_id: str, at: str, deliveries: tuple[DeliveryId, ...], attempt: int) -> str:
    """The JSON line a reader gets, without the line end."""
    ids = f',"deliveryIds":{encode(deliveries)}' if deliveries else ""
    meta = f'{{"id":"{event_id}","at":"{at}","attempt":{attempt}{ids}}}'
    return storable(f'{{"type":"{event.type}","data":{encode(event.data)},"meta":{meta}}}')
