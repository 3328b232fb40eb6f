"""What an operator asks of a server and of a world on it. Nothing is changed, and nothing need be in order: it may be why they look."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import redis
from redis.exceptions import RedisError

from orchestrator.core.names import SessionId
from orchestrator.envelope import pushed_ms, queue_name
from orchestrator.ids import shards
from orchestrator.journal.client import connect, spoken
from orchestrator.journal.keys import shard_key
from orchestrator.journal.server import Facts, ask

BEAT_MS = 15_000
"""A worker that has not beaten for so long is not counted as living."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it is now. Sizes in bytes (`limit` 0: none). `apart_ms`: how far its clock is ahead of ours, known to half a round trip.

    `saves`: whether it writes snapshots of its memory, None where it does not say.
    """

    kind: str
    version: str
    facts: Facts
    role: str
    cluster: bool
    used: int
    limit: int
    aof: bool
    aof_ok: bool
    saves: bool | None
    saved_ok: bool
    loading: bool
    needed_replicas: int
    now_ms: int
    apart_ms: float
    round_trip_ms: float


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that has beaten and not left: its deployment, the ms of its last beat, the digest of the code it runs."""

    label: str
    name: str
    beat_ms: int
    digest: str


@dataclass(frozen=True, slots=True)
class Queue:
    """A deployment's queue in the broker: how many wakes wait, and since when the oldest does (ms; None where it does not say)."""

    label: str
    waiting: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class World:
    """A world as it is now. `protocol` is None where no process of ours has been yet. `due` counts sessions that a worker must look at by
    now, `oldest_due_ms` says since when the first of them (None: there is none)."""

    protocol: tuple[int, int] | None
    sessions: int
    planned: int
    due: int
    oldest_due_ms: int | None
    labels: Mapping[str, int]
    workers: tuple[Worker, ...]


class Looking:
    """Somebody who looks at a server. Every method raises `JournalAway` where it does not answer."""

    def __init__(self, url: str, *, timeout: float = 3.0) -> None:
        self._client = connect(url, timeout=timeout)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def server(self) -> Server:
        """Ask a server what it is."""
        client = self._client
        with spoken():
            client.time()  # which connects
            asked = time.time()
            second, micros = client.time()
            answered = time.time()
            info = client.info()
        now_ms = second * 1000 + micros / 1000
        valkey = str(info.get("server_name", "")) == "valkey" or "valkey_version" in info
        return Server(
            kind="Valkey" if valkey else "Redis",
            version=str(info.get("valkey_version") if valkey else info.get("redis_version", "?")),
            facts=ask(client),
            role=str(info.get("role", "")),
            cluster=str(info.get("cluster_enabled", "0")) == "1",
            used=int(info.get("used_memory", 0)),
            limit=int(info.get("maxmemory", 0)),
            aof=str(info.get("aof_enabled", "0")) == "1",
            aof_ok=all(info.get(f"aof_last_{what}_status", "ok") == "ok" for what in ("write", "bgrewrite")),
            saves=_saves(client),
            saved_ok=info.get("rdb_last_bgsave_status", "ok") == "ok",
            loading=str(info.get("loading", "0")) == "1",
            needed_replicas=_number(client, "min-replicas-to-write"),
            now_ms=int(now_ms),
            apart_ms=now_ms - 500 * (asked + answered),
            round_trip_ms=1000 * (answered - asked),
        )

    def world(self, prefix: str, now_ms: int) -> World:
        """Ask what a world has: sessions, what is due, who works."""
        with spoken():
            pipe = self._client.pipeline(transaction=False)
            pipe.hmget(f"{prefix}:world", "protocol", "shards")
            pipe.hgetall(f"{prefix}:dep")
            pipe.hgetall(f"{prefix}:workers")
            for shard in shards():
                due = shard_key(prefix, shard, "due")
                pipe.zcard(shard_key(prefix, shard, "index"))
                pipe.zcard(due)
                pipe.zcount(due, "-inf", now_ms)
                pipe.zrange(due, 0, 0, withscores=True)
            stated, labels, workers, *counts = pipe.execute()
        oldest = min((int(found[0][1]) for found in counts[3::4] if found), default=None)
        return World(
            protocol=(int(stated[0]), int(stated[1])) if all(stated) else None,
            sessions=sum(counts[0::4]),
            planned=sum(counts[1::4]),
            due=sum(counts[2::4]),
            oldest_due_ms=oldest if oldest is not None and oldest <= now_ms else None,
            labels={label.decode(): int(said.split()[0]) for label, said in labels.items()},
            workers=tuple(_worker(name.decode(), beat.decode()) for name, beat in sorted(workers.items())),
        )

    def soon(self, prefix: str, until_ms: int, most: int) -> tuple[int, list[SessionId]]:
        """How many sessions a worker must look at by then, and which: of each shard the first `most`."""
        with spoken():
            pipe = self._client.pipeline(transaction=False)
            for shard in shards():
                due = shard_key(prefix, shard, "due")
                pipe.zcount(due, "-inf", until_ms)
                pipe.zrangebyscore(due, "-inf", until_ms, start=0, num=most)
            found = pipe.execute()
        return sum(found[0::2]), [SessionId(name.decode()) for names in found[1::2] for name in names]

    def queue(self, label: str) -> Queue:
        """Ask a broker how many wakes wait for the workers of a deployment."""
        name = queue_name(label)
        with spoken():
            pipe = self._client.pipeline(transaction=False)
            pipe.llen(name)
            pipe.lindex(name, -1)
            waiting, oldest = pipe.execute()
        return Queue(label, waiting, pushed_ms(oldest))


def _saves(client: redis.Redis) -> bool | None:
    said = _config(client, "save")
    return None if said is None else bool(said.strip())


def _number(client: redis.Redis, name: str) -> int:
    said = _config(client, name) or ""
    return int(said) if said.isdigit() else 0


def _config(client: redis.Redis, name: str) -> str | None:
    """A setting of the server, None where its user may not ask."""
    try:
        found = cast("dict[str, str]", client.config_get(name))
    except RedisError:
        return None
    return found.get(name)


def _worker(name: str, beat: str) -> Worker:
    label, _, worker = name.partition("|")
    at, _, *digest = beat.split(" ")
    return Worker(label, worker, int(at), "".join(digest))
