"""Readers of streams that make it hard: one that is cut off all the time, and five hundred at once."""

from __future__ import annotations

import json
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Any, Literal, Self

from tests.servers import wait_for

Form = Literal["ndjson", "sse"]
Told = tuple[int, str, str]
"""An event as nothing may ever change it: index, id, type."""
LEASE_ENDED = '{"$eve":"stream.lease-ended","version":1}'


class CutReader:
    """Reads a session until `enough`, over many connections, each cut after a random number of bytes, often within a line.

    It goes from one port to the next, and always on from the event that it has seen last.
    """

    def __init__(
        self,
        ports: Sequence[int],
        session: str,
        form: Form,
        enough: Callable[[list[Told]], bool],
        *,
        start: int = 0,
        cuts: int = 0,
        seed: int = 0,
    ) -> None:
        self.ports = ports
        self.session = session
        self.form = form
        self.start = start
        self.events: list[Told] = []
        self.connections = 0
        self.broken: BaseException | None = None
        self._enough = enough
        self._cuts = cuts
        self._chance = random.Random(seed)
        self._first: int | None = start if start >= 0 else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)
        assert self.broken is None, self.broken

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._enough(self.events):
                try:
                    self._read_once()
                except (OSError, HTTPException):  # the process is gone, or was cut off by us
                    self._stop.wait(0.05)
        except BaseException as broken:
            self.broken = broken

    def _where(self) -> tuple[str, dict[str, str]]:
        """Query and headers of the next connection."""
        if self._first is None:
            return f"?startIndex={self.start}&includeTailIndex=1", {}
        if self.form == "ndjson":
            return f"?startIndex={self._first + len(self.events)}", {}
        if not self.events:
            return f"?startIndex={self._first}", {"accept": "text/event-stream"}
        seen = self._first + len(self.events) - 1
        return "", {"accept": "text/event-stream", "last-event-id": f"{self.session}:{seen}"}

    def _read_once(self) -> None:
        query, headers = self._where()
        left = float("inf")
        if self.connections < self._cuts:
            left = self._chance.randrange(100, 600)
        self.connections += 1
        port = self.ports[self.connections % len(self.ports)]
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", f"/v1/session/{self.session}/stream{query}", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                assert answer.status == 503, answer.read()
                raise OSError("not now")
            if self._first is None:
                self._first = max(int(answer.headers["x-eve-stream-tail-index"]) + 1 + self.start, 0)
            lines = Lines(self.form, self.session, self._first + len(self.events))
            while left > 0 and not self._stop.is_set():
                try:
                    raw = answer.read1(int(min(left, 65536)))
                except TimeoutError:
                    continue  # quiet
                if not raw:
                    return
                left -= len(raw)
                self.events += lines.take(raw)
                if self._enough(self.events):
                    return
        finally:
            connection.close()


class Lines:
    """The bytes of one connection as events. A line that has not come to its end does not count."""

    def __init__(self, form: Form, session: str, index: int) -> None:
        self._form = form
        self._session = session
        self._index = index
        self._rest = b""
        self.beats = 0
        self.leases = 0

    def take(self, raw: bytes) -> list[Told]:
        """What has become whole."""
        *whole, self._rest = (self._rest + raw).split(b"\n")
        found = []
        for line in whole:
            text = line.decode()
            if self._form == "sse":
                if text.startswith("id: "):
                    assert text == f"id: {self._session}:{self._index}"
                self.beats += text == ":"
                if not text.startswith("data: "):
                    continue
                text = text.removeprefix("data: ")
            if not text:
                self.beats += 1
            elif text == LEASE_ENDED:
                self.leases += 1
            else:
                event = json.loads(text)
                found.append((self._index, event["meta"]["id"], event["type"]))
                self._index += 1
        return found


def raw_request(session: str, query: str = "", **headers: str) -> bytes:
    """What asks for a stream."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET /eve/v1/session/{session}/stream{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n{named}\r\n".encode()


@dataclass
class _Member:
    session: str
    raw: bytes = b""
    over: bool = False


class Crowd:
    """Many readers on as many connections, held by one thread."""

    def __init__(self, port: int, sessions: Sequence[str]) -> None:
        """One reader for each entry."""
        self._selector = selectors.DefaultSelector()
        self._members: dict[socket.socket, _Member] = {}
        self._stop = threading.Event()
        for session in sessions:
            connection = socket.create_connection(("127.0.0.1", port), 10)
            connection.sendall(raw_request(session))
            connection.setblocking(False)
            self._members[connection] = member = _Member(session)
            self._selector.register(connection, selectors.EVENT_READ, member)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.1):
                member: _Member = key.data
                connection: Any = key.fileobj
                try:
                    raw = connection.recv(65536)
                except BlockingIOError:
                    continue
                except OSError:
                    raw = b""
                member.raw += raw
                if not raw:
                    member.over = True
                    self._selector.unregister(connection)

    def having(self, text: bytes) -> int:
        """How many have been told this."""
        return sum(text in member.raw for member in self._members.values())

    @property
    def lost(self) -> int:
        """How many connections have ended."""
        return sum(member.over for member in self._members.values())

    @property
    def ended_in_order(self) -> int:
        """How many were told that this was all, instead of being cut off."""
        return sum(member.over and member.raw.endswith(b"\n\r\n0\r\n\r\n") for member in self._members.values())

    def all_have(self, text: bytes, timeout: float) -> float:
        """Wait until everybody has been told this; how many seconds it took."""
        began = time.monotonic()
        everybody = len(self._members)
        wait_for(lambda: self.having(text) == everybody, timeout, what=f"{text!r} at {everybody} readers")
        return time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(5)
        for connection in self._members:
            connection.close()
        self._selector.close()
