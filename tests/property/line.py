"""One connection to the server for everybody in a story: only one thread runs at a time."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import redis
from hiredis import pack_command

Words = tuple[object, ...]


class Line:
    """What is sent and what comes back, as it is: the client's own way costs several times as much."""

    def __init__(self, client: redis.Redis) -> None:
        self._connection: Any = client.connection_pool.make_connection()

    def say(self, command: Words) -> Any:
        """Send a command and wait for its answer."""
        self._connection.send_packed_command([pack_command(cast(Any, command))])
        return self._connection.read_response()

    def ask(self, *commands: Words) -> list[Any]:
        """Send commands together and wait for their answers."""
        self._connection.send_packed_command([pack_command(cast(Any, command)) for command in commands])
        return [self._connection.read_response() for _ in commands]


line_of = cache(Line)
"""The connection of a client."""


def pairs(found: Any) -> list[tuple[Any, Any]]:
    """A hash, or members with their scores, as the server sends them: by either protocol."""
    if isinstance(found, dict):
        return list(found.items())
    if found and isinstance(found[0], list):
        return [(name, score) for name, score in found]
    return list(zip(found[::2], found[1::2], strict=True))
