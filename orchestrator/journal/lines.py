"""One connection for each thread that speaks to Redis: no pool to go through, no command sent twice.

It halves what a call costs this side of the socket, and a step makes three.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from orchestrator.clock import steady

IDLE_SECONDS = 1.0
"""A connection that was silent for so long is looked at before it is used: its server may have gone."""


class Lines(threading.local):
    """The calling thread's connection."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._pid = 0
        self._used_at = 0.0

    def say(self, command: tuple[object, ...]) -> Any:
        """Send one command and wait for its answer. After an error of the connection it is made anew by the next call."""
        now = steady()
        if self._connection is None or self._pid != os.getpid():
            self._connection, self._pid = self._pool.make_connection(), os.getpid()
        elif now - self._used_at > IDLE_SECONDS:
            self._look()
        connection = self._connection
        self._used_at = now
        try:
            connection.send_command(*command)
            return connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:
            connection.disconnect()
            raise

    def _look(self) -> None:
        try:
            # Nothing is expected: whatever can be read is the end of the connection.
            if self._connection.can_read(timeout=0):
                self._connection.disconnect()
        except (RedisConnectionError, OSError):
            self._connection.disconnect()
