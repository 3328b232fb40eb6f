"""A hand at the journal: it makes ids, deliveries, owners and commits, holds the clock, and remembers what it has said.

What a caller sends twice, or too late, is the very same command: `hand.said[-1]` is the last one, `hand.again(...)` says it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import redis

from orchestrator.core.delivery import Body, Delivery, Envelope, Part
from orchestrator.core.event import Event, line
from orchestrator.core.names import DeliveryId, Millis, SessionId, Token, turn_id
from orchestrator.core.snapshot import Position, Snapshot, Turn
from orchestrator.ids import address_key, address_shard, new_delivery, new_session, ulid
from orchestrator.journal import (
    AdmissionKey,
    Admitted,
    Appended,
    Arrived,
    Committed,
    Done,
    Granted,
    Journal,
    Reads,
    Refused,
    Writes,
)
from orchestrator.journal.client import spoken
from orchestrator.journal.scripts import Script, Value, script
from orchestrator.ports import Wake
from orchestrator.wake import AtomicWake, OtherBroker

START = 1_800_000_000_000
LEASE_MS = 10_000
GRACE_MS = 2_000
DAY_MS = 86_400_000
LABEL = "default"
CHANNEL = "tickets"
HERE, THERE = "ticket-1", "ticket-2"
"""Two addresses, of two shards."""
QUEUE = "orc.default"
Command = tuple[Value, ...]
Everything = dict[bytes, object]


class Spoken(Journal):
    """A journal that remembers each command; `says` is what takes them to the server."""

    said: list[Command]

    def call(self, verb: Script, command: Command) -> Any:
        self.said.append(command)
        return super().call(verb, command)


class Elsewhere(OtherBroker):
    """A broker that is not the journal's server: what is published is kept here."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str, str, str]] = []

    def publish(self, task: str, label: str, session: SessionId, key: str) -> None:
        self.published.append((task, label, session, key))


class Hand:
    """One caller of the journal, on a clock of its own (or the server's, with `clock=False`)."""

    def __init__(
        self,
        client: redis.Redis,
        wake: Wake | None = None,
        *,
        clock: bool = True,
        kind: type[Spoken] = Spoken,
        **how: Any,
    ) -> None:
        self.client = client
        self.now = START
        self.journal = kind(client, wake or AtomicWake(), now=(lambda: self.now) if clock else (lambda: ""), **how)
        self.said = self.journal.said = []
        self.reads = Reads(self.journal)
        self._numbers = itertools.count(1)

    # Time and ids -----------------------------------------------------------------------------------------------------

    def later(self, ms: int) -> None:
        """Let time pass."""
        self.now += ms

    def token(self, who: str = "worker00.") -> Token:
        """A new token."""
        return Token(who + ulid(self.now))

    def message(self, text: str = "hello", *, blobs: Mapping[str, bytes] | None = None, **envelope: Any) -> Delivery:
        """A message, not yet delivered, perhaps with the bytes of files."""
        body = Body((Part("text", text),))
        return Delivery(new_delivery(self.now), Envelope("message", **envelope), body, blobs or {})

    def control(self, kind: str = "cancel", guard: str = "") -> Delivery:
        """A delivery without a body, not yet delivered."""
        return Delivery(new_delivery(self.now), Envelope(kind, guard=guard))

    # Verbs with their usual arguments -----------------------------------------------------------------------------------

    def create(self, first: Delivery | None = None, *, session: SessionId | None = None, **how: Any) -> SessionId:
        """A new session."""
        session = session or new_session(self.now)
        self.journal.create(session, **{"agent": "support", "deployment": LABEL, "first": first, **how})
        return session

    def asked(self) -> SessionId:
        """A new session with a message."""
        return self.create(self.message())

    def deliver(self, session: SessionId, delivery: Delivery | None = None) -> Admitted:
        """Deliver, a message unless said otherwise."""
        return self.journal.deliver(session, delivery or self.message())

    def arrive(
        self,
        delivery: Delivery | None = None,
        *keys: AdmissionKey,
        at: str = HERE,
        candidate: SessionId | None = None,
        **how: Any,
    ) -> Arrived:
        """Something comes to an address of the channel."""
        return self.journal.arrive(
            CHANNEL,
            at,
            delivery or self.message(),
            candidate=candidate or self.candidate(at),
            keys=keys,
            **{"agent": "support", "deployment": LABEL, **how},
        )

    def candidate(self, at: str = HERE) -> SessionId:
        """The id of a session that an address may start."""
        return new_session(self.now, address_shard(address_key(CHANNEL, at)))

    def end(self, session: SessionId, **how: Any) -> None:
        """A session ends, whatever waits for it."""
        owner = self.owner(session, lost=True)
        heads = self.reads.heads(session, 0)
        n = max([owner.granted.judged, *(head.n for head in heads)])
        used = sum(head.envelope.kind == "message" for head in heads)
        names = tuple(head.id for head in heads)
        done = owner.commit(mode="end", turn=None, judged=n, consumed=names, used=used, **how)
        assert isinstance(done, Done), done

    def reset(self, session: SessionId) -> Delivery:
        """A session is reset; nobody has written its end yet."""
        reset = self.control("reset")
        self.deliver(session, reset)
        return reset

    def own(self, session: SessionId, token: Token | None = None, **how: Any) -> Granted | Refused:
        """Ask for a session."""
        return self.journal.own(session, token or self.token(), Millis(self.now), deployment=LABEL, **how)

    def owner(self, session: SessionId, **how: Any) -> Owner:
        """Someone who was granted the session."""
        token = how.pop("token", None) or self.token()
        granted = self.own(session, token, **how)
        assert isinstance(granted, Granted), granted
        return Owner(self, session, token, granted)

    # Saying it again --------------------------------------------------------------------------------------------------

    def again(self, command: Command, *, now: int | None = None) -> Any:
        """Send a command once more, executed `now` if given."""
        place = 3 + int(command[2])
        said = command if now is None else (*command[:place], now, *command[place + 1 :])
        with spoken():
            return self.client.execute_command(*said)

    # Looking ----------------------------------------------------------------------------------------------------------

    def everything(self) -> Everything:
        """All keys of the database with all they hold."""
        return everything(self.client)

    def traces(self, session: SessionId) -> list[bytes]:
        """The keys that name a session or hold its id, the broker's queue aside."""
        everything = {key: held for key, held in self.everything().items() if not key.startswith(b"orc.")}
        return [key for key, held in everything.items() if session.encode() in key or session in repr(held)]

    def fields(self, session: SessionId) -> dict[str, str]:
        """The own-hash."""
        found = cast("dict[bytes, bytes]", self.client.hgetall(self.journal.keys(session).own))
        return {name.decode(): value.decode() for name, value in found.items()}

    def due_at(self, session: SessionId) -> int | None:
        """When a worker must look at the session, in ms from now."""
        score = self.client.zscore(self.journal.keys(session).due, session)
        return None if score is None else int(score) - self.now

    def wakes(self, queue: str = QUEUE) -> list[bytes]:
        """The wakes in a queue, oldest first."""
        return cast("list[bytes]", self.client.lrange(queue, 0, -1))[::-1]


@dataclass
class Owner:
    """Someone who owns a session, and what it believes about it."""

    hand: Hand
    session: SessionId
    token: Token
    granted: Granted

    def __post_init__(self) -> None:
        self.position = self.granted.position
        self.snapshot = self.granted.snapshot
        self.judged = self.granted.judged

    def writes(
        self,
        *,
        facts: int = 1,
        lines: Sequence[str] | None = None,
        rows: int = 1,
        turn: int | None = 0,
        judged: int | None = None,
        **more: Any,
    ) -> Writes:
        """A commit that builds on what this owner believes. `turn=None`: none is open afterwards."""
        at = self.position
        events = (an_event(self.hand.now, at.events),) if lines is None else tuple(lines)
        new_gen = more.get("new_gen")
        gen, before = (at.gen, at.rows) if new_gen is None else (new_gen, 0)
        after = Position(at.seq + facts, at.events + len(events), gen, before + rows)
        opened = None if turn is None else Turn(turn_id(turn), turn, (), None, "support", Millis(self.hand.now))
        snapshot = Snapshot(judged=self.judged if judged is None else judged, turn=opened, at=after)
        return replace(
            Writes(
                id=f"{self.token[-26:]}.{next(self.hand._numbers)}",
                position=at,
                snapshot=snapshot,
                facts=tuple(b"fact %d" % (at.seq + place) for place in range(facts)),
                events=events,
                rows=tuple(b"row %d" % (before + place) for place in range(rows)),
                last_row=f"{at.seq + facts}.{rows}.{self.token[-6:]}" if rows else "",
                work=turn is not None,
                attempt_key=f"turn_{turn}/0" if turn is not None else "",
            ),
            **more,
        )

    def commit(self, writes: Writes | None = None, **how: Any) -> Committed:
        """Commit, and believe it if it was done."""
        writes = writes or self.writes(**how)
        answer = self.hand.journal.commit(self.session, self.token, writes)
        if isinstance(answer, Done):
            self.snapshot, self.position, self.judged = writes.snapshot, writes.snapshot.at, writes.snapshot.judged
        return answer

    def append(self, count: int = 1) -> Any:
        """Append events where this owner believes the stream ends."""
        at = self.position.events
        lines = [an_event(self.hand.now, at + place) for place in range(count)]
        answer = self.hand.journal.append(self.session, self.token, at, first_id(lines), lines)
        if isinstance(answer, Appended):
            self.position = replace(self.position, events=answer.events)
        return answer

    def renew(self) -> str:
        """Renew the lease."""
        return self.hand.journal.renew([(self.session, self.token)])[self.session]

    def release(self) -> None:
        """Give the session back."""
        self.hand.journal.release(self.session, self.token, "turn_0/1")

    def use(self, *deliveries: DeliveryId, **how: Any) -> Committed:
        """Open a turn with messages that were waiting."""
        n = int(self.hand.fields(self.session)["n"])
        return self.commit(consumed=deliveries, used=len(deliveries), **{"judged": n, **how})


def an_event(at_ms: int, place: int) -> str:
    """A line of a stream."""
    return line(Event("step.started", {"place": place}), f"evt_{ulid(at_ms)}", "2027-01-15T08:00:00.000Z", (), 1)


def a_delta(at_ms: int, text: str, *, turn: int = 0, step: int = 0) -> str:
    """A line with a piece of an answer."""
    data = {"turnId": f"turn_{turn}", "sequence": turn, "stepIndex": step, "messageDelta": text}
    return line(Event("message.appended", data), f"evt_{ulid(at_ms)}", "2027-01-15T08:00:00.000Z", (), 1)


def first_id(lines: Sequence[str]) -> str:
    """The id of the first of some lines."""
    return "evt_" + lines[0].partition('"id":"evt_')[2][:26]


def everything(client: redis.Redis) -> Everything:
    """All keys of a database with all they hold: equal if and only if nothing was changed."""
    found: Everything = {}
    for key in sorted(cast("list[bytes]", client.keys("*"))):
        match client.type(key):
            case b"hash":
                found[key] = client.hgetall(key)
            case b"zset":
                found[key] = client.zrange(key, 0, -1, withscores=True)
            case b"list":
                found[key] = client.lrange(key, 0, -1)
            case b"set":
                found[key] = client.smembers(key)
            case _:
                found[key] = client.get(key)
    return found


def changed(before: Mapping[bytes, object], after: Mapping[bytes, object]) -> set[str]:
    """What differs: the names of keys without their session, and `own.<field>` for fields of the own-hash."""
    names: set[str] = set()
    for key in before.keys() | after.keys():
        one, other = before.get(key), after.get(key)
        if one == other:
            continue
        name = key.decode().partition("}:")[2].partition(":")[0] or key.decode()
        if name == "own" and isinstance(one, dict) and isinstance(other, dict):
            names |= {
                f"own.{field.decode()}" for field in one.keys() | other.keys() if one.get(field) != other.get(field)
            }
        else:
            names.add(name)
    return names


def photo(client: redis.Redis) -> dict[bytes, bytes]:
    """The whole database, to go back to."""
    return {key: cast(bytes, client.dump(key)) for key in cast("list[bytes]", client.keys("*"))}


def rewind(client: redis.Redis, to: Mapping[bytes, bytes]) -> None:
    """The store loses its tail: it is again as it was."""
    client.flushdb()
    for key, value in to.items():
        client.restore(key, 0, value)


@contextmanager
def listening(client: redis.Redis, channel: str) -> Iterator[list[bytes]]:
    """What is said on a channel meanwhile; the list is filled at the end."""
    heard: list[bytes] = []
    with client.pubsub() as ear:
        ear.subscribe(channel)
        assert ear.get_message(timeout=5.0) is not None
        yield heard
        client.publish(channel, "end")
        for said in ear.listen():
            if said["data"] == b"end":
                return
            if said["type"] == "message":
                heard.append(said["data"])


def size(command: Command) -> int:
    """The bytes of a command's arguments."""
    return sum(len(part) if isinstance(part, bytes) else len(str(part).encode()) for part in command)


def verb_of(command: Command) -> str:
    """Which verb a command says."""
    from orchestrator.journal.scripts import VERBS

    return next(name for name in VERBS if script(name).sha == command[1])
