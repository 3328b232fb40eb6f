"""What a server is and can: asked once, at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import redis
from redis.exceptions import RedisError

from orchestrator.journal.client import connect, spoken


@dataclass(frozen=True, slots=True)
class Facts:
    """A server's ways: eviction policy, fsync policy ('' if it does not say), whether it waits for its disk, its replicas."""

    policy: str
    appendfsync: str
    waits_for_disk: bool
    replicas: int
    run_id: str


def ask(client: redis.Redis) -> Facts:
    """Look at a server. Raises `JournalAway`."""
    with spoken():
        info = cast("dict[str, object]", client.info())
    try:
        setting = cast("dict[str, str]", client.config_get("appendfsync")).get("appendfsync", "")
    except RedisError:
        setting = ""
    aof = str(info.get("aof_enabled", "0")) == "1"
    try:
        client.execute_command("WAITAOF", 0, 0, 1)
        knows = aof and setting != "no"  # which WAITAOF would wait for in vain
    except RedisError:
        knows = False
    return Facts(
        policy=str(info.get("maxmemory_policy", "noeviction")),
        appendfsync=setting if aof else "",
        waits_for_disk=knows,
        replicas=int(str(info.get("connected_slaves", 0))),
        run_id=str(info.get("run_id", "")),
    )


def same_server(one: str, other: str) -> bool:
    """Whether two URLs lead to one server process. A broker that is no Redis is another."""
    if one == other:
        return True
    if not other.startswith(("redis://", "rediss://")):
        return False
    clients = connect(one), connect(other)
    try:
        with spoken():
            ids = [cast("dict[str, object]", client.info("server"))["run_id"] for client in clients]
        return ids[0] == ids[1]
    finally:
        for client in clients:
            client.close()


def state_world(client: redis.Redis, prefix: str, protocol: int, shards: int) -> tuple[int, int]:
    """Say which protocol and how many shards this world has, unless it is said already. Returns what it says."""
    key = f"{prefix}:world"
    with spoken():
        pipe = client.pipeline(transaction=True)
        pipe.hsetnx(key, "protocol", protocol)
        pipe.hsetnx(key, "shards", shards)
        pipe.hmget(key, "protocol", "shards")
        found = pipe.execute()[2]
    return int(found[0]), int(found[1])
