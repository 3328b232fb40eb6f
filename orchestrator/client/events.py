"""The events of a stream, a class each. Import the module and match on them:

    match event:
        case events.MessageAppended(message_delta=words): ...
        case events.TurnCompleted(): ...

A type that this version does not know is a plain `Event`, and so is a known one whose data has another shape than it has today; all
have their `data` as it came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from orchestrator.client.shapes import Misfit, read
from orchestrator.client.values import Action, Failure, Request, Resolution, ToolResult, Usage

E = TypeVar("E", bound="Event")
CLASSES: dict[str, type[Event]] = {}
"""The class of each type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Any event.

    `index` is its place in the stream, from 0 and without gaps: whoever has seen it goes on at `index + 1`. `id` never changes. `at`
    is ISO 8601 in UTC. `deliveries` are the messages whose turn it belongs to. Events of an attempt that died are taken back by a
    `step.superseded`.
    """

    index: int
    type: str
    id: str
    at: str
    attempt: int
    deliveries: tuple[str, ...]
    data: Mapping[str, Any] = field(repr=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def of(name: str) -> Callable[[type[E]], type[E]]:
    """Make the class a frozen dataclass, into which events of this type are read."""

    def made(kind: type[E]) -> type[E]:
        CLASSES[name] = done = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        return done

    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent(Event):
    """An event of a turn. `sequence` is the number of the turn in its session."""

    turn_id: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(TurnEvent):
    """An event of a step, which is one model call and the tools it asked for."""

    step_index: int


# Sessions -----------------------------------------------------------------------------------------------------------------


@of("session.started")
class SessionStarted(Event):
    """Once, before the first turn."""

    runtime: Mapping[str, Any] | None = None


@of("session.waiting")
class SessionWaiting(Event):
    """The session takes the next message at once. `usage` is that of the whole session."""

    usage: Usage | None = None


@of("session.ending")
class SessionEnding(Event):
    """Somebody has reset the session, or its time is over."""

    reason: str = ""


@of("session.completed")
class SessionCompleted(Event):
    """The session has ended; nothing follows."""

    usage: Usage | None = None


@of("session.failed")
class SessionFailed(Event):
    """The session has ended by a failure; nothing follows."""

    code: str
    message: str
    details: Mapping[str, Any] | None = None
    usage: Usage | None = None


@of("session.rewound")
class SessionRewound(Event):
    """The server's store has lost the end of the stream, and work goes on from what was stored."""


@of("stream.lost")
class StreamLost(Event):
    """In the place of an event that was lost."""


# Turns --------------------------------------------------------------------------------------------------------------------


@of("turn.started")
class TurnStarted(TurnEvent):
    """A message, or several that share it, has begun a turn."""


@of("message.received")
class MessageReceived(TurnEvent):
    """What somebody said, as the turn uses it."""

    message: str
    parts: tuple[Mapping[str, Any], ...] = ()


@of("message.deferred")
class MessageDeferred(StepEvent):
    """A message that steers has come while tools run: it joins the turn when they are done."""

    delivery_id: str
    until: str = ""


@of("message.discarded")
class MessageDiscarded(Event):
    """A message was accepted, and its session ended before it was used."""

    delivery_id: str
    reason: str = ""


@of("turn.waiting")
class TurnWaiting(TurnEvent):
    """The turn waits: on `input` for people, on anything else for work that goes on by itself. `usage` is that of the whole session."""

    on: str
    usage: Usage | None = None


@of("turn.completed")
class TurnCompleted(TurnEvent):
    """The turn is over."""


@of("turn.failed")
class TurnFailed(TurnEvent):
    """The turn is over, by a failure."""

    code: str
    message: str
    details: Mapping[str, Any] | None = None
    terminal: bool = False


@of("turn.cancelled")
class TurnCancelled(TurnEvent):
    """The turn is over, since somebody stopped it."""


@of("result.completed")
class ResultCompleted(StepEvent):
    """The structured result that the turn owed: JSON."""

    result: Any


# Steps --------------------------------------------------------------------------------------------------------------------


@of("step.started")
class StepStarted(StepEvent):
    """A model call begins."""

    model_id: str


@of("step.completed")
class StepCompleted(StepEvent):
    """The step is closed. `finish_reason` is `stop`, `tool-calls`, `length`, `content-filter`, `error` or `other`."""

    finish_reason: str
    usage: Usage | None = None


@of("step.failed")
class StepFailed(StepEvent):
    """The step is closed by a failure."""

    code: str
    message: str
    details: Mapping[str, Any] | None = None


@of("step.superseded")
class StepSuperseded(StepEvent):
    """The events from index `first` to index `last`, both included, are of an attempt that died, and do not count: forget their words.
    Only pieces (`…appended`, `action.partial`) are taken back, never what was completed."""

    first: int = field(metadata={"key": "from"})
    last: int = field(metadata={"key": "to"})


@of("message.appended")
class MessageAppended(StepEvent):
    """A piece of the answer while it is made. Ten minutes after the step it is empty, and `message.completed` has the whole."""

    message_delta: str


@of("message.completed")
class MessageCompleted(StepEvent):
    """The whole text of the step. With the finish reason `tool-calls` it is no final answer: the turn goes on with tools."""

    message: str
    finish_reason: str


@of("reasoning.appended")
class ReasoningAppended(StepEvent):
    """A piece of the reasoning while it is made."""

    reasoning_delta: str


@of("reasoning.completed")
class ReasoningCompleted(StepEvent):
    """The whole reasoning of the step."""

    reasoning: str


# Tools --------------------------------------------------------------------------------------------------------------------


@of("actions.requested")
class ActionsRequested(StepEvent):
    """The tool calls of the answer."""

    actions: tuple[Action, ...]


@of("action.partial")
class ActionPartial(StepEvent):
    """What a running call has to say so far; it replaces what the same call has said before."""

    result: ToolResult


@of("action.result")
class ActionResult(StepEvent):
    """The one result of a call. `status` is completed, failed or rejected."""

    result: ToolResult
    status: str
    error: Failure | None = None


# People -------------------------------------------------------------------------------------------------------------------


@of("input.requested")
class InputRequested(StepEvent):
    """What the turn asks people."""

    requests: tuple[Request, ...]


@of("input.resolved")
class InputResolved(StepEvent):
    """How requests have ended; nothing of them is asked any more."""

    resolutions: tuple[Resolution, ...]


@of("approval.settled")
class ApprovalSettled(StepEvent):
    """Somebody has decided: approved or cancelled."""

    request_id: str
    outcome: str
    responder_principal_id: str = ""


@of("approval.candidate")
class ApprovalCandidate(StepEvent):
    """An answer is being looked at (pending), or did not count."""

    request_id: str
    outcome: str
    candidate_id: str = ""
    responder_principal_id: str = ""
    reason: str = ""


# History ------------------------------------------------------------------------------------------------------------------


@of("context.cleared")
class ContextCleared(TurnEvent):
    """The model has forgotten what was said. The place is that of the next turn."""


@of("compaction.requested")
class CompactionRequested(StepEvent):
    """What was said is being summed up."""

    model_id: str = ""
    usage_input_tokens: int | None = None


@of("compaction.completed")
class CompactionCompleted(StepEvent):
    """What was said has been summed up."""

    model_id: str = ""


def parse(line: bytes | str, index: int) -> Event:
    """The event of one line, whose index is told by its place. Raises `Misfit` for what is no event at all."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as broken:
        raise Misfit(f"it is no JSON ({broken})") from None
    return event(found, index)


def event(found: object, index: int) -> Event:
    """The event of one JSON object. Raises `Misfit`."""
    match found:
        case {"type": str(name), **rest}:
            data, meta = rest.get("data"), rest.get("meta")
        case _:
            raise Misfit("it is no object with a type")
    data = data if isinstance(data, dict) else {}
    meta = meta if isinstance(meta, dict) else {}
    ids, attempt = meta.get("deliveryIds"), meta.get("attempt")
    envelope: dict[str, Any] = {
        "index": index,
        "type": name,
        "id": str(meta.get("id", "")),
        "at": str(meta.get("at", "")),
        "attempt": attempt if isinstance(attempt, int) else 0,
        "deliveries": tuple(map(str, ids)) if isinstance(ids, list) else (),
        "data": data,
    }
    try:
        return read(CLASSES.get(name, Event), data, **envelope)
    except Misfit:
        return Event(**envelope)
