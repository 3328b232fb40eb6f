"""Leaving nothing of a world that was made for a while: what is left of it when its sessions are erased."""

from __future__ import annotations

import redis

from orchestrator.envelope import queue_name
from orchestrator.ids import shards
from orchestrator.journal.client import spoken
from orchestrator.journal.keys import shard_key


def forget_world(client: redis.Redis, prefix: str, label: str) -> None:
    """Remove the keys that a world has beside its sessions, and the queue of its deployment. By their names: nothing is searched for."""
    own = [f"{prefix}:{name}" for name in ("world", "wakes", "dep", "workers")]
    of_shards = [
        shard_key(prefix, shard, name) for shard in shards() for name in ("due", "tidy", "index", "adms", "erased")
    ]
    with spoken():
        client.unlink(*own, *of_shards, queue_name(label))
