"""All that is needed to go on with a session, by name and number: no bodies, no history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.core.names import NEVER, CallId, DeliveryId, Millis, RequestId, TurnId

VERSION = 1
"""Written into every snapshot; `codec.UPCASTERS` lifts older ones."""

READS = 1
"""The smallest codec version that can go on from what this version writes."""

CallState = Literal["asked", "started", "settled"]
OnInterrupt = Literal["rerun", "report", "ask"]
Gate = Literal["", "policy", "ask", "open", "approved"]
"""What stands before a call: nothing, a policy to be asked, a request to be published, an open request, nothing any more."""
RequestKind = Literal["tool-approval", "question", "session-limit"]
RequestState = Literal["open", "approved", "denied", "answered", "cancelled", "ignored", "invalid", "expired"]
WhoAnswers = Literal["requester", "anyone", "policy"]
Phase = Literal["model", "tools"]
MAX_CALLS = 128
"""Tool calls in one model answer; more is an error of the model."""
MAX_DELIVERIES = 64
"""Messages that one turn takes in; the next ones begin their own."""
MOST_OF_A_PRINCIPAL = 4096
"""Bytes of a caller's id and attributes; they are part of every snapshot of their turn."""
MAX_TOGETHER_BYTES = 1024 * 1024
"""Bytes of messages that are taken in together."""
KEPT_TURNS = 16
"""Turns whose facts are kept."""

NOTHING: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who speaks, as a verified credential said."""

    authenticator: str
    type: str
    id: str
    issuer: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    def is_same(self, other: Principal | None) -> bool:
        """Whether both are one: who vouches for them, what they are and their id; not what else is known of them."""
        return other is not None and self.identity == other.identity

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What two principals are compared by: authenticator, issuer, type, id."""
        return self.authenticator, self.issuer, self.type, self.id


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, summed, and what they cost where the price is known (millionths of a US dollar).

    `unmeasured` counts answers that were cut before the provider said what they cost, `answers` those that came whole.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    unmeasured: int = 0
    micro_usd: int = 0
    answers: int = 0
    extra: Mapping[str, object] = field(default_factory=dict)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.unmeasured + other.unmeasured,
            self.micro_usd + other.micro_usd,
            self.answers + other.answers,
            self.extra,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.input - other.input,
            self.output - other.output,
            self.cache_read - other.cache_read,
            self.cache_write - other.cache_write,
            self.unmeasured - other.unmeasured,
            self.micro_usd - other.micro_usd,
            self.answers - other.answers,
            self.extra,
        )


@dataclass(frozen=True, slots=True)
class Position:
    """How far a session's journal reaches: facts, public events, history generation and its rows.

    `fresh` are the bytes of rows that were added since a provider last counted the context.
    """

    seq: int = 0
    events: int = 0
    gen: int = 0
    rows: int = 0
    fresh: int = 0
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Option:
    """One of the answers that a request offers."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer that came in and counts if the tool's policy allows its giver."""

    id: DeliveryId
    state: RequestState
    option: str
    by: Principal | None


@dataclass(frozen=True, slots=True)
class Request:
    """Something that a person is asked. What they see of it is stored beside the history, once.

    Only what came in after `seq`, its place in the journal, can answer it. `call` is empty where it is about no call. `told`: the
    stream says how it ended. `candidates` are answers whose giver a policy has to judge, in their order.
    """

    id: RequestId
    kind: RequestKind
    call: CallId
    seq: int
    options: tuple[Option, ...] = ()
    freeform: bool = False
    who: WhoAnswers = "requester"
    expires: Millis = NEVER
    state: RequestState = "open"
    option: str = ""
    told: bool = False
    candidates: tuple[Candidate, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an answer."""
        return self.state == "open"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the last answer. Only the model hears of `refused` ones: they were wrong (unknown tool, bad arguments), or
    were no call of a tool but the result of the turn.

    `asks` says what its tool wants of a person: leave to run, or an answer that is its result.
    """

    id: CallId
    provider_id: str
    tool: str
    digest: str
    on_interrupt: OnInterrupt = "rerun"
    state: CallState = "asked"
    refused: bool = False
    asks: Literal["", "approval", "question"] = ""
    gate: Gate = ""
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """The open turn. `usage` is its current step's; `finish` why that step's answer ended; `failed` the code it ends with.

    `joining` are messages that steer it and are taken in before the next model call; `followed` says that messages of its person
    wait already, so that later ones must not overtake them. `requests` are what people were asked in this turn; `withdrawn` says that
    its person said something else instead of an answer. `compacted` is the last step before which
    the history was looked at to make it shorter, `overflowed` the last one in which a provider said that it is too long.
    `spent` is what it has used since it began or was let go on; `over_budget` says that people are to be asked whether it may go on, by
    the code of what is used up.
    `aside`: something came with its messages that is kept among the records. `output`: it owes a result; `misfits` are the answers
    that brought none that fits, `delivered` says that one did. `trace`: the trace that its first message came in, a `traceparent`.
    """

    id: TurnId
    number: int
    deliveries: tuple[DeliveryId, ...]
    principal: Principal | None
    agent: str
    started: Millis
    step: int = 0
    step_open: bool = False
    phase: Phase = "model"
    calls: tuple[Call, ...] = ()
    tries: int = 0
    retry_at: Millis = NEVER
    finish: str = ""
    usage: Usage = Usage()
    cancelling: bool = False
    failed: str = ""
    joining: tuple[DeliveryId, ...] = ()
    joining_bytes: int = 0
    followed: bool = False
    requests: tuple[Request, ...] = ()
    withdrawn: bool = False
    compacted: int = -1
    overflowed: int = -1
    spent: Usage = Usage()
    over_budget: str = ""
    aside: bool = False
    output: bool = False
    misfits: int = 0
    delivered: bool = False
    trace: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more begins in it: it was told to stop, or it has failed."""
        return self.cancelling or bool(self.failed)


@dataclass(frozen=True, slots=True)
class Compacting:
    """The history is being made shorter. `begun`: the stream says so. `asked`: by somebody, between two turns."""

    asked: bool
    begun: bool = False
    tries: int = 0
    retry_at: Millis = NEVER
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session between two commits.

    `waiting` counts judged messages that no turn has used yet; `pending` are the controls kept until the turn is over; `ending`
    is why the session ends; `context` how many tokens the provider counted last (0: it has not yet); `approved` are the tools that
    somebody has approved for the whole session, `granted` the usage up to which somebody has let it go on; `cancel_kept` the number of
    a cancel that is for the turn of the message before it, which waits. `at` is the journal's position
    at the commit that wrote this; events beyond it are appended ones that no commit has vouched for. `marks` are the places of the
    last turns' first facts.
    """

    v: int = VERSION
    next_turn: int = 0
    judged: int = 0
    waiting: int = 0
    started: bool = False
    pending: tuple[str, ...] = ()
    usage: Usage = Usage()
    turn: Turn | None = None
    compacting: Compacting | None = None
    ending: str = ""
    context: int = 0
    approved: tuple[str, ...] = ()
    granted: Usage = Usage()
    cancel_kept: int = 0
    marks: tuple[int, ...] = ()
    at: Position = Position()
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether what was judged has to wait: a turn is open, or the history is being made shorter."""
        return self.turn is not None or self.compacting is not None


EMPTY = Snapshot()
