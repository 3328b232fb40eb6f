"""Reading the journal: no script is needed, and nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from orchestrator.core import codec
from orchestrator.core.delivery import Body, Head
from orchestrator.core.event import Outcome, unpack_outcome
from orchestrator.core.fact import Fact
from orchestrator.core.names import CallId, DeliveryId, SessionId
from orchestrator.core.snapshot import EMPTY, Snapshot
from orchestrator.ids import shards
from orchestrator.journal.answers import Address, View
from orchestrator.journal.client import spoken
from orchestrator.journal.journal import Journal
from orchestrator.journal.keys import shard_key
from orchestrator.journal.ownership import read_body, read_heads
from orchestrator.journal.stubs import restore

PAGE = 256
ERASING = "erasing"


class Reads:
    """What can be asked of a journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.client = journal.client

    def view(self, session: SessionId) -> View | None:
        """The session's plain fields, or None if there is no such session."""
        keys = self.journal.keys(session)
        with spoken():
            pipe = self.client.pipeline(transaction=False)
            pipe.hgetall(keys.own)
            pipe.zrange(keys.inbox, -1, -1, withscores=True)
            pipe.time()
            return self.views([session])[0]

    def views(self, sessions: Sequence[SessionId]) -> list[View | None]:
        """The same of several sessions in one exchange, in their order."""
        with spoken():
            pipe = self.client.pipeline(transaction=False)
            pipe.time()
            for session in sessions:
                keys = self.journal.keys(session)
                pipe.hgetall(keys.own)
                pipe.zrange(keys.inbox, -1, -1, withscores=True)
            (seconds, micros), *found = pipe.execute()
        now_ms = seconds * 1000 + micros // 1000
        pairs = zip(sessions, found[::2], found[1::2], strict=True)
        return [_view(session, fields, last, now_ms) for session, fields, last in pairs]

    def exists(self, session: SessionId) -> bool:
        """Whether there is such a session."""
        return self._field(session, "status") is not None

    def tail(self, session: SessionId) -> int | None:
        """How many events the stream has, or None if there is no such session."""
        events = self._field(session, "events")
        return None if events is None else int(events)

    def life(self, session: SessionId) -> str | None:
        """live, ending, ended, or None."""
        word = self._field(session, "status")
        return None if word is None else word.decode()

    def place(self, session: SessionId) -> tuple[int, str] | None:
        """How many events the stream has and the session's life (live, ending, ended), or None if there is no such session."""
        events, life = self._fields(session, "events", "status")
        return None if events is None or life is None else (int(events), life.decode())

    def _field(self, session: SessionId, name: str) -> bytes | None:
        return self._fields(session, name)[0]

    def _fields(self, session: SessionId, *names: str) -> list[bytes | None]:
        """Fields of the own-hash; none of a session that is being erased, which is gone for everybody."""
        with spoken():
            found = cast("list[bytes | None]", self.client.hmget(self.journal.keys(session).own, [*names, ERASING]))
        return found[:-1] if found[-1] is None else [None] * len(names)

    def takes_part(self, session: SessionId, who: str) -> bool:
        """Whether a principal (`ids.principal_key`) created the session or was accepted by it."""
        with spoken():
            return bool(self.client.sismember(self.journal.keys(session).who, who))

    def sessions_of(self, who: str, most: int, looked_through: int) -> list[tuple[SessionId, int]]:
        """As `sessions`, of those only that this principal takes part in, among the `looked_through` that were used last."""
        own: list[tuple[SessionId, int]] = []
        last = self.sessions(looked_through)
        for place in range(0, len(last), PAGE):
            page = last[place : place + PAGE]
            with spoken():
                pipe = self.client.pipeline(transaction=False)
                for session, _ in page:
                    pipe.sismember(self.journal.keys(session).who, who)
                own += [one for one, is_in in zip(page, pipe.execute(), strict=True) if is_in]
            if len(own) >= most:
                break
        return own[:most]

    def addresses(self, session: SessionId) -> list[Address]:
        """The addresses a session has."""
        return self.journal.addresses(session)

    def events(self, session: SessionId, first: int, most: int = 512) -> list[bytes]:
        """Lines of the stream from index `first` on, as a reader gets them."""
        with spoken():
            lines = cast("list[bytes]", self.client.lrange(self.journal.keys(session).evt, first, first + most - 1))
        return [restore(line) for line in lines]

    def heads(self, session: SessionId, above: int, most: int | None = None) -> tuple[Head, ...]:
        """Deliveries above an admission number, in order, all of them or the first `most`; of an ending session, the one that ends it
        first."""
        keys, found, last = self.journal.keys(session), list[Head](), above
        with spoken():
            while True:
                pipe = self.client.pipeline(transaction=False)
                pipe.zrangebyscore(keys.inbox, f"({last}", "+inf", start=0, num=most or PAGE, withscores=True)
                pipe.hmget(keys.own, "status", "end")
                page, (life, end) = cast("tuple[list[tuple[bytes, float]], list[bytes | None]]", tuple(pipe.execute()))
                if not page:
                    break
                boxes = cast("list[bytes | None]", self.client.hmget(keys.box, [name for name, _ in page]))
                flat: list[object] = []
                for (name, n), box in zip(page, boxes, strict=True):
                    flat += (name, int(n), box or b"")
                found += read_heads(flat)
                last = int(page[-1][1])
                if most or len(page) < PAGE:
                    break
            if life == b"ending" and end and not any(head.id == end.decode() for head in found):
                pipe = self.client.pipeline(transaction=False)
                pipe.zscore(keys.inbox, end)
                pipe.hget(keys.box, end)
                place, text = cast("tuple[float | None, bytes | None]", tuple(pipe.execute()))
                found += read_heads([end, int(place), text or b""]) if place is not None and place > above else ()
        if life == b"ending" and end:
            found.sort(key=lambda head: head.id != end.decode())
        return tuple(found)

    def bodies(self, session: SessionId, deliveries: Sequence[DeliveryId]) -> dict[DeliveryId, Body]:
        """The bodies of deliveries that are still in the box."""
        with spoken():
            found = cast(
                "list[bytes | None]",
                self.client.hmget(self.journal.keys(session).box, [f"b:{name}" for name in deliveries]),
            )
        return {name: read_body(packed) for name, packed in zip(deliveries, found, strict=True) if packed}

    def records(self, session: SessionId, calls: Sequence[CallId]) -> dict[CallId, Outcome]:
        """The recorded results among `calls`."""
        if not calls:
            return {}
        with spoken():
            found = cast("list[bytes | None]", self.client.hmget(self.journal.keys(session).rec, list(calls)))
        return {call: unpack_outcome(packed) for call, packed in zip(calls, found, strict=True) if packed}

    def record(self, session: SessionId, name: str) -> bytes | None:
        """One record as it is stored."""
        with spoken():
            return cast("bytes | None", self.client.hget(self.journal.keys(session).rec, name))

    def rows(self, session: SessionId, gen: int, first: int) -> list[bytes]:
        """History rows from a place on."""
        with spoken():
            return cast("list[bytes]", self.client.lrange(self.journal.keys(session).hist(gen), first, -1))

    def state(self, session: SessionId) -> Mapping[str, bytes]:
        """The authored state, as stored."""
        with spoken():
            found = cast("dict[bytes, bytes]", self.client.hgetall(self.journal.keys(session).state))
        return {name.decode(): value for name, value in found.items()}

    def snapshot(self, session: SessionId) -> Snapshot:
        """The stored snapshot."""
        with spoken():
            text = cast("bytes | None", self.client.get(self.journal.keys(session).snapshot))
        return codec.unpack_snapshot(text) if text else EMPTY

    def facts(self, session: SessionId) -> list[Fact]:
        """The facts that are kept, oldest first."""
        with spoken():
            found = cast("list[bytes]", self.client.lrange(self.journal.keys(session).fact, 0, -1))
            return [codec.unpack_fact(text) for text in found]

    def sessions(self, most: int = 100, after: tuple[SessionId, int] | None = None) -> list[tuple[SessionId, int]]:
        """The sessions used last, newest first, with the ms of their last activity; or those that come `after` one of them."""
        with spoken():
            pipe = self.client.pipeline(transaction=False)
            for shard in shards():
                key = shard_key(self.journal.prefix, shard, "index")
                if after is None:
                    pipe.zrevrange(key, 0, most - 1, withscores=True)
                else:
                    # Those of the same ms, however many they are, and the older ones.
                    pipe.zrevrangebyscore(key, after[1], after[1], withscores=True)
                    pipe.zrevrangebyscore(key, f"({after[1]}", "-inf", start=0, num=most, withscores=True)
            found = [(SessionId(name.decode()), int(at)) for shard in pipe.execute() for name, at in shard]
        if after is not None:
            found = [pair for pair in found if _place(pair) < _place(after)]
        return sorted(found, key=_place, reverse=True)[:most]

    def used_ms(self, session: SessionId) -> int | None:
        """When a session was used last, or None if there is no such session."""
        with spoken():
            at = self.client.zscore(self.journal.keys(session).index, session)
        return None if at is None else int(at)

    def workers(self, label: str) -> dict[str, int]:
        """The workers of a deployment that have beaten and not left, with the ms of their last beat."""
        with spoken():
            found = cast("dict[bytes, bytes]", self.client.hgetall(f"{self.journal.prefix}:workers"))
        pairs = [(name.decode().partition("|"), beat) for name, beat in found.items()]
        return {worker: int(beat.split()[0]) for (name, _, worker), beat in pairs if name == label}

    def deployments(self) -> dict[str, dict[str, object]]:
        """The known deployments: rank, what they read, digest, live workers (beat within 15 s)."""
        with spoken():
            pipe = self.client.pipeline(transaction=False)
            pipe.hgetall(f"{self.journal.prefix}:dep")
            pipe.hgetall(f"{self.journal.prefix}:workers")
            pipe.time()
            labels, workers, (seconds, _) = pipe.execute()
        found: dict[str, dict[str, object]] = {}
        for label, text in labels.items():
            rank, reads, *digest = text.decode().split(" ")
            live = sum(
                1
                for name, beat in workers.items()
                if name.decode().split("|")[0] == label.decode() and int(beat.split()[0]) > (seconds - 15) * 1000
            )
            found[label.decode()] = {"rank": int(rank), "reads": int(reads), "digest": "".join(digest), "workers": live}
        return found


def _view(session: SessionId, fields: dict[bytes, bytes], last: list[tuple[bytes, float]], now_ms: int) -> View | None:
    if not fields or ERASING.encode() in fields:
        return None
    plain = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    return View(session, plain, now_ms, bool(last) and last[0][1] > int(plain["floor"]))


def _place(pair: tuple[SessionId, int]) -> tuple[int, str]:
    """The order of the index, as Redis has it: by time, those of one ms by their ids."""
    return pair[1], pair[0]
