"""Connections to Redis for calls that must not be sent twice: taken, spoken on once, put back.

It halves what a call costs this side of the socket against a client that could retry, and a step makes three.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import redis
from hiredis import pack_command
from redis.exceptions import ConnectionError as RedisConnectionError

from orchestrator.clock import steady

IDLE_SECONDS = 0.01
"""A connection that was silent for so long is looked at before it is used: its server may have gone."""
MOST_IDLE = 64


class Line:
    """One connection, and when it was used last."""

    __slots__ = ("connection", "used_at")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.used_at = steady()

    def say(self, command: tuple[object, ...]) -> Any:
        """Send one command and wait for its answer. After an error of the connection it is made anew by the next call."""
        connection = self.connection
        now = steady()
        if now - self.used_at > IDLE_SECONDS:
            self._look()
        self.used_at = now
        try:
            connection.send_packed_command([pack_command(cast(Any, command))])
            return connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:
            connection.disconnect()
            raise

    def _look(self) -> None:
        try:
            # Nothing is expected: whatever can be read is the end of the connection.
            if self.connection.can_read(timeout=0):
                self.connection.disconnect()
        except (RedisConnectionError, OSError):
            self.connection.disconnect()


class Lines:
    """As many connections as calls are under way at once, of this process: a forked child makes its own."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._idle: deque[Line] = deque()
        self._pid = os.getpid()
        self._held = threading.local()

    def say(self, command: tuple[object, ...]) -> Any:
        """Say one thing, on the line this thread holds or on any."""
        held = getattr(self._held, "line", None)
        if held is not None:
            return held.say(command)
        line = self._take()
        try:
            return line.say(command)
        finally:
            self._put(line)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold on to one line: what is said inside goes over the same connection (WAIT asks for the writes of its own)."""
        line = self._take()
        self._held.line = line
        try:
            yield
        finally:
            self._held.line = None
            self._put(line)

    def close(self) -> None:
        """Close the connections nobody speaks on."""
        while self._idle:
            self._idle.pop().connection.disconnect()

    def _take(self) -> Line:
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return Line(self._pool.connection_class(**self._pool.connection_kwargs))

    def _put(self, line: Line) -> None:
        if len(self._idle) < MOST_IDLE:
            self._idle.append(line)
        else:
            line.connection.disconnect()
