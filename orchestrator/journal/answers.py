"""What the verbs answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.core.delivery import Head
from orchestrator.core.names import NEVER, DeliveryId, Millis, SessionId
from orchestrator.core.snapshot import READS, Position, Principal, Snapshot
from orchestrator.ids import address_shard, operation_key

NO_DELIVERY = DeliveryId("")
Outcome = Literal["taken", "cancelling", "other_turn", "nothing_runs"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a caller calls the creation of a session, so that it happens once. Each principal has keys of its own."""

    key: str
    principal: Principal

    @property
    def address(self) -> str:
        """The key of the address that it makes."""
        return operation_key(self.principal, self.key)

    @property
    def shard(self) -> str:
        """Where the session must live: make its id with it."""
        return address_shard(self.address)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A create or deliver was accepted: now, or by an earlier call with the same id (`again`).

    `session` is another than the one asked for where an operation has made it before.
    """

    session: SessionId
    again: bool
    at: Millis
    outcome: Outcome = "taken"
    n: int = 0
    delivery: DeliveryId = NO_DELIVERY


@dataclass(frozen=True, slots=True)
class AdmissionKey:
    """A key under which something came to a door, and the digest of what it stands for; an empty one is not compared."""

    key: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came to an address was accepted, now or before (`again`): by which session, under which id, and whether it began with it."""

    session: SessionId
    delivery: DeliveryId
    started: bool
    again: bool
    outcome: Outcome
    at: Millis


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One of a session's addresses."""

    channel: str
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Out:
    """An entry of an outbox. Its number is its own for ever. `done`: the journal has seen to it. `tries`: how often it was taken as the
    first, this time included; whoever took it before has failed, or died."""

    number: int
    entry: bytes
    done: bool
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Granted:
    """The session is ours. `attempt` counts takeovers since the last progress, `faults` deaths that were its own doing.

    `life` is live or ending, where the ending delivery is the first of the heads. `deadline` is when the session is to end (0: never),
    `out` how many entries its outbox has, `may_ask` whether it can ask people.
    """

    epoch: int
    attempt: int
    faults: int
    at: Millis
    position: Position
    judged: int
    last_row: str
    fact_base: int
    agent: str
    parent: str
    snapshot: Snapshot
    heads: tuple[Head, ...]
    life: Literal["live", "ending"] = "live"
    deadline: Millis = NEVER
    out: int = 0
    may_ask: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """The session is not ours, and nothing about it was changed. `for_ms` says how long to leave it alone; of one that is idle, leased or
    ended, `out` how many entries its outbox has."""

    why: Literal["gone", "ended", "not_yours", "too_new", "leased", "later", "idle", "stale"]
    for_ms: int = 0
    out: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Written (`landed`: by an earlier try of the same commit). `kept` says whether the lease is still ours; `heads` are new;
    `out` is how many entries the outbox has."""

    at: Millis
    n: int
    kept: bool
    heads: tuple[Head, ...]
    landed: bool = False
    out: int = 0


@dataclass(frozen=True, slots=True)
class Appended:
    """The events are in the stream, which is `events` long now; `n` is the last admission number."""

    events: int
    n: int


@dataclass(frozen=True, slots=True)
class Behind:
    """The store is shorter than the caller: it has lost its tail. Nothing was written."""

    seq: int
    events: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another token owns the session. Nothing was written."""


@dataclass(frozen=True, slots=True)
class News:
    """Refused whole: something came in that the caller has not looked at."""

    heads: tuple[Head, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such session. Nothing was written."""


Mode = Literal["keep", "chain", "park", "end"]
"""What becomes of the lease: kept; released with the next wake; released unless a head is unjudged; released for good."""
Committed = Done | Behind | Superseded | News | Gone


@dataclass(frozen=True, slots=True)
class View:
    """A session as its hash shows it."""

    id: SessionId
    fields: dict[str, str]
    now_ms: int
    head_above_judged: bool

    def number(self, name: str) -> int:
        """A numeric field."""
        return int(self.fields.get(name) or 0)


@dataclass(frozen=True, slots=True)
class Writes:
    """One commit: what is added, and what the hash shall say afterwards.

    `new_gen`: the rows are the first of this generation of the history, and the one before is let go. `out` are entries for the outbox;
    none begins with a zero byte. `requests` are notes by request id, `links` the requests that can be answered by a link, by its token;
    `hold` is what an open turn is parked on: input, or nothing. `blobs` are the files that the rows speak of.
    """

    id: str
    position: Position
    snapshot: Snapshot
    facts: tuple[bytes, ...] = ()
    events: tuple[str, ...] = ()
    rows: tuple[bytes, ...] = ()
    last_row: str = ""
    records: tuple[tuple[str, bytes], ...] = ()
    folded: tuple[str, ...] = ()
    consumed: tuple[DeliveryId, ...] = ()
    used: int = 0
    state: tuple[tuple[str, bytes], ...] = ()
    work: bool = False
    next_timer: int = 0
    attempt_key: str = ""
    progress: bool = True
    conditional: bool = False
    mode: Mode = "keep"
    fact_base: int = 0
    tidy: bool = False
    what: str = ""
    fsync: bool = False
    reads: int = READS
    new_gen: int | None = None
    out: tuple[bytes, ...] = ()
    requests: tuple[tuple[str, bytes], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    hold: str = ""
    blobs: tuple[str, ...] = ()
