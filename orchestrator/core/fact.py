"""What has happened to a session, past tense: a closed set of small values, one class per case.

Facts carry ids, numbers and digests; the bodies they speak of are stored once, elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.core.names import CallId, DeliveryId, Millis, TurnId
from orchestrator.core.snapshot import Call, Principal, Usage

CallStatus = Literal["completed", "failed", "cancelled"]
TurnOutcome = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class DeliveryWaits:
    """A message was looked at while a turn was open; it waits for its own."""

    delivery: DeliveryId
    n: int
    at: Millis


@dataclass(frozen=True, slots=True)
class DeliveryDropped:
    """A delivery was looked at and has no effect: what it was meant for is not open."""

    delivery: DeliveryId
    n: int
    reason: str
    at: Millis


@dataclass(frozen=True, slots=True)
class CancelAccepted:
    """The open turn was told to stop."""

    delivery: DeliveryId
    n: int
    turn: TurnId
    at: Millis


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A message began a turn. `n` is its admission number, `waited` whether it had been judged before, `mark` the fact's place."""

    turn: TurnId
    number: int
    deliveries: tuple[DeliveryId, ...]
    n: int
    waited: bool
    principal: Principal | None
    agent: str
    mark: int
    at: Millis


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step was opened: its model call may begin."""

    turn: TurnId
    step: int
    model: str
    at: Millis


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """The step's answer is complete. It is not asked for again."""

    turn: TurnId
    step: int
    finish: str
    usage: Usage
    calls: tuple[Call, ...]
    at: Millis


@dataclass(frozen=True, slots=True)
class ModelTryFailed:
    """One try of the step's model call broke; the next one may begin at `retry_at`."""

    turn: TurnId
    step: int
    code: str
    retry_at: Millis
    at: Millis


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call that must never start twice is about to."""

    turn: TurnId
    call: CallId
    at: Millis


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A call has its one result, under its key among the records."""

    turn: TurnId
    step: int
    call: CallId
    status: CallStatus
    at: Millis


@dataclass(frozen=True, slots=True)
class StepSettled:
    """The step is closed; its results are a row of the history."""

    turn: TurnId
    step: int
    finish: str
    at: Millis


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The step cannot go on, and its turn with it."""

    turn: TurnId
    step: int
    code: str
    at: Millis


@dataclass(frozen=True, slots=True)
class TurnSettled:
    """The turn is over. `cut` says that open calls were given the result "cancelled" in the history."""

    turn: TurnId
    outcome: TurnOutcome
    code: str
    cut: bool
    at: Millis


@dataclass(frozen=True, slots=True)
class TailLost:
    """The store came back shorter than somebody had seen it: the public events `begin` to `end` (exclusive) are gone."""

    begin: int
    end: int
    delivery: DeliveryId | None
    n: int
    at: Millis


Fact = (
    DeliveryWaits
    | DeliveryDropped
    | CancelAccepted
    | TurnStarted
    | StepStarted
    | ModelAnswered
    | ModelTryFailed
    | CallStarted
    | ToolReturned
    | StepSettled
    | StepFailed
    | TurnSettled
    | TailLost
)
