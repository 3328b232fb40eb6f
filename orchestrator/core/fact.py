"""What has happened to a session, past tense: a closed set of small values, one class per case.

Facts carry ids, numbers and digests; the bodies they speak of are stored once, elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.core.names import CallId, DeliveryId, Millis, RequestId, TurnId
from orchestrator.core.snapshot import Call, Principal, Request, RequestState, Usage

CallStatus = Literal["completed", "failed", "rejected", "cancelled"]
TurnOutcome = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class DeliveryWaits:
    """A message was looked at while a turn was open; it waits for its own. `same`: the open turn is of the same person."""

    delivery: DeliveryId
    n: int
    at: Millis
    same: bool = False


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
class MessageSteers:
    """A message is to join the open turn before its next model call. `behind` is what it waits for: tools that run, or nothing.

    `withdraws`: what the turn has asked its person needs no answer any more.
    """

    delivery: DeliveryId
    n: int
    size: int
    turn: TurnId
    step: int
    behind: Literal["", "tools"]
    at: Millis
    withdraws: bool = False


@dataclass(frozen=True, slots=True)
class StepCut:
    """The step's pending model call was given up for a message that joins the turn. `unmeasured`: calls whose cost nobody knows."""

    turn: TurnId
    step: int
    unmeasured: int
    at: Millis


@dataclass(frozen=True, slots=True)
class MessagesJoined:
    """Messages became part of the open turn. `aside`, `output`: as for `TurnStarted`."""

    turn: TurnId
    step: int
    deliveries: tuple[DeliveryId, ...]
    at: Millis
    aside: bool = False
    output: bool = False


@dataclass(frozen=True, slots=True)
class ControlKept:
    """A clear or compact came while a turn was open; it is done when the turn is over. Or a cancel came behind a message that waits for
    the history to be made shorter; it stops that message's turn."""

    delivery: DeliveryId
    n: int
    control: Literal["cancel", "clear", "compact"]
    at: Millis


@dataclass(frozen=True, slots=True)
class ContextCleared:
    """The history was put away; the next generation is empty. `delivery` is None for a control that was kept."""

    delivery: DeliveryId | None
    n: int
    gen: int
    at: Millis


@dataclass(frozen=True, slots=True)
class CompactionDue:
    """The history is to be made shorter: somebody asked for it (`asked`), or it has become too long for the model.

    `overflow`: the provider has said so, in an open step, whose call is made again after that.
    """

    delivery: DeliveryId | None
    n: int
    asked: bool
    at: Millis
    overflow: bool = False


@dataclass(frozen=True, slots=True)
class CompactionBegun:
    """There is something to sum up, and a model is asked to."""

    model: str
    tokens: int
    at: Millis


@dataclass(frozen=True, slots=True)
class CompactionTryFailed:
    """One try of the summary broke; the next one may begin at `retry_at`."""

    code: str
    retry_at: Millis
    at: Millis


@dataclass(frozen=True, slots=True)
class Compacted:
    """The next generation of the history is shorter."""

    model: str
    gen: int
    usage: Usage
    at: Millis


@dataclass(frozen=True, slots=True)
class CompactionLeft:
    """The history stays as it is: there was nothing to make shorter, or no good summary. `code` says which."""

    code: str
    usage: Usage
    at: Millis


@dataclass(frozen=True, slots=True)
class SessionEnding:
    """The session ends: what has not begun is dropped. `delivery` is None where nobody asked for it."""

    delivery: DeliveryId | None
    n: int
    reason: str
    at: Millis


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over."""

    reason: str
    at: Millis


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Messages began a turn. `n` is the last one's admission number, `waited` how many had been judged before, `mark` the fact's place.

    `followed`: more messages of this person may be waiting. `aside`: something came with them for this turn only, `output`: a schema.
    `trace` is the trace that the first of them came in, if it came in one.
    """

    turn: TurnId
    number: int
    deliveries: tuple[DeliveryId, ...]
    n: int
    waited: int
    principal: Principal | None
    agent: str
    mark: int
    at: Millis
    followed: bool = False
    aside: bool = False
    output: bool = False
    trace: str = ""


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step was opened: its model call may begin."""

    turn: TurnId
    step: int
    model: str
    at: Millis


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """The step's answer is complete. It is not asked for again. `model` is who gave it, where that is not the step's own model."""

    turn: TurnId
    step: int
    finish: str
    usage: Usage
    calls: tuple[Call, ...]
    at: Millis
    model: str = ""


@dataclass(frozen=True, slots=True)
class ModelTryFailed:
    """One try of the step's model call broke; the next one may begin at `retry_at`. `model`: another one is asked from here on."""

    turn: TurnId
    step: int
    code: str
    retry_at: Millis
    at: Millis
    model: str = ""


@dataclass(frozen=True, slots=True)
class ResultDelivered:
    """The answer brought the result that the turn owes. It is among the records."""

    turn: TurnId
    step: int
    at: Millis


@dataclass(frozen=True, slots=True)
class ResultRefused:
    """The answer brought no result that fits; the model is told why."""

    turn: TurnId
    step: int
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
class Verdict:
    """What a policy said about a call: it may run, a person is to be asked, or it must not run."""

    call: CallId
    says: Literal["run", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class CallsJudged:
    """The policies of the calls' tools were asked."""

    turn: TurnId
    step: int
    verdicts: tuple[Verdict, ...]
    at: Millis


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The session has used up its budget (`code` says which), and people are to be asked before the next model call."""

    turn: TurnId
    step: int
    code: str
    at: Millis


@dataclass(frozen=True, slots=True)
class InputRequested:
    """People were asked; the turn waits for them."""

    turn: TurnId
    step: int
    requests: tuple[Request, ...]
    at: Millis


@dataclass(frozen=True, slots=True)
class Decision:
    """How one request ended, or that a policy has to judge first whether it may (`judged` = False)."""

    request: RequestId
    state: RequestState
    option: str = ""
    judged: bool = True


@dataclass(frozen=True, slots=True)
class AnswersTaken:
    """Answers came in. `stale`: the requests among them that had ended otherwise, or for whose policy too many wait already.
    `words`: it was a message that answers; `aside`, `output`: as for `TurnStarted`."""

    delivery: DeliveryId
    n: int
    turn: TurnId
    step: int
    decisions: tuple[Decision, ...]
    stale: tuple[RequestId, ...]
    by: Principal | None
    words: bool
    at: Millis
    aside: bool = False
    output: bool = False


@dataclass(frozen=True, slots=True)
class CandidateJudged:
    """The tool's policy said whether who has answered may. `reason` is why not: rejected, failed, timed-out."""

    turn: TurnId
    step: int
    request: RequestId
    candidate: DeliveryId
    reason: Literal["", "rejected", "failed", "timed-out"]
    at: Millis


@dataclass(frozen=True, slots=True)
class RequestsWithdrawn:
    """Open requests ended without an answer."""

    turn: TurnId
    requests: tuple[RequestId, ...]
    state: RequestState
    at: Millis


@dataclass(frozen=True, slots=True)
class InputResolved:
    """All that people were asked together has ended."""

    turn: TurnId
    step: int
    at: Millis


@dataclass(frozen=True, slots=True)
class CallsSettled:
    """All calls of an answer that had to wait have their results; they are a row of the history."""

    turn: TurnId
    step: int
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
    | MessageSteers
    | StepCut
    | MessagesJoined
    | ControlKept
    | ContextCleared
    | CompactionDue
    | CompactionBegun
    | CompactionTryFailed
    | Compacted
    | CompactionLeft
    | SessionEnding
    | SessionEnded
    | TurnStarted
    | StepStarted
    | ModelAnswered
    | ModelTryFailed
    | ResultDelivered
    | ResultRefused
    | CallStarted
    | ToolReturned
    | CallsJudged
    | BudgetReached
    | InputRequested
    | AnswersTaken
    | CandidateJudged
    | RequestsWithdrawn
    | InputResolved
    | CallsSettled
    | StepSettled
    | StepFailed
    | TurnSettled
    | TailLost
)
