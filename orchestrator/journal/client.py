"""A client of Redis that says each thing once, and what its errors mean to us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from orchestrator.errors import JournalAway, JournalFull


def connect(url: str, *, timeout: float = 5.0, **options: Any) -> redis.Redis:
    """A client that sends each command once: what is repeated is decided above, where it is known to be harmless."""
    url = url.replace("valkey://", "redis://", 1).replace("valkeys://", "rediss://", 1)
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, 3.0),
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        # Nobody waits for a free connection, and nobody fails for want of one: who may speak is decided elsewhere.
        max_connections=10_000,
        client_name="orchestrator",
        **options,
    )


@contextmanager
def spoken() -> Iterator[None]:
    """Turn what the client raises into our errors."""
    try:
        yield
    except OutOfMemoryError as full:
        raise JournalFull() from full
    except (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError) as away:
        raise JournalAway(reason=str(away).rstrip(".") or type(away).__name__) from away
    except ResponseError as answer:
        text = str(answer)
        if text.startswith(("OOM", "-OOM")) or "allow-oom" in text:
            raise JournalFull() from answer
        if text.startswith(("LOADING", "MASTERDOWN", "BUSY", "MISCONF", "NOREPLICAS")):
            raise JournalAway(reason=text) from answer
        raise
    except RedisError as away:
        raise JournalAway(reason=str(away)) from away
