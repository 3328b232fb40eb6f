"""Somebody who talks to the product over HTTP and nothing else, and keeps what a stream has said under the index it had."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from tests.servers import wait_for
from tests.web.support import Reader

TERMINAL = ("turn.completed", "turn.failed", "turn.cancelled")
Event = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer, and when it was asked for and came (`time.time`)."""

    status: int
    body: dict[str, Any]
    asked_at: float
    came_at: float


class Caller:
    """Talks to one web process, with a key if it has one."""

    def __init__(self, port: int, key: str = "", prefix: str = "/v1") -> None:
        self.port = port
        self.prefix = prefix
        self.headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 30.0) -> Answer:
        """One request on a connection of its own. `bytes` are sent as they are. Raises `OSError`."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        asked_at = time.time()
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # refused before all of it was sent: there is an answer
                connection.request(method, self.prefix + path, raw, self.headers)
            answer = connection.getresponse()
            return Answer(answer.status, json.loads(answer.read() or b"{}"), asked_at, time.time())
        except HTTPException as broken:
            raise OSError(f"{method} {path}: {broken!r}") from broken
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.ask("POST", path, body)

    def create(self, text: str) -> str:
        """A session with a message, which must be taken."""
        answer = self.post("/session", {"message": text})
        assert answer.status == 202, answer
        return str(answer.body["sessionId"])

    def say(self, session: str, text: str) -> str:
        """A message for a session, which must be taken."""
        answer = self.post(f"/session/{session}", {"message": text})
        assert answer.status == 202, answer
        return str(answer.body["deliveryId"])

    def events(self, session: str) -> list[Event]:
        """All that the stream says now."""
        reader = self._reader(session, "?follow=false", {})
        try:
            reader.until_end(30)
            return [json.loads(line) for line in reader.lines]
        finally:
            reader.close()

    def types(self, session: str) -> list[str]:
        return [event["type"] for event in self.events(session)]

    def outcomes(self, session: str) -> list[str]:
        """How its turns ended."""
        return [kind for kind in self.types(session) if kind in TERMINAL]

    def ended(self, session: str, timeout: float = 30.0) -> list[str]:
        """Wait until there is nothing to do in a session (which only /v1 tells); how its turns ended."""

        def idle() -> bool:
            return bool(self.get(f"/session/{session}").body["status"] == "idle")

        wait_for(idle, timeout, what=f"{session} to have nothing to do")
        return self.outcomes(session)

    @contextmanager
    def following(self, follower: Follower) -> Iterator[Follower]:
        """Read on where `follower` is, until the block ends or the connection does."""
        reader = self._reader(follower.session, *follower.where())
        assert reader.status == 200, reader.raw
        try:
            follower.reads(reader)
            yield follower
        finally:
            reader.close()
            follower.take()

    def _reader(self, session: str, query: str, headers: dict[str, str]) -> Reader:
        return Reader(self.port, f"{self.prefix}/session/{session}/stream{query}", self.headers | headers)


class Follower:
    """Follows a stream over any number of connections, each of which begins at the cursor of the one before."""

    def __init__(self, session: str, form: str) -> None:
        assert form in ("ndjson", "sse")
        self.session = session
        self.form = form
        self.events: list[Event] = []
        self.cursors: list[int] = []
        """Where each connection began."""
        self._reader: Reader | None = None
        self._before = 0

    def where(self) -> tuple[str, dict[str, str]]:
        """Query and headers of the next connection."""
        seen = len(self.events)
        if self.form == "ndjson":
            return f"?startIndex={seen}", {}
        return "", {"accept": "text/event-stream"} | ({"last-event-id": f"{self.session}:{seen - 1}"} if seen else {})

    def reads(self, reader: Reader) -> None:
        """Take what this connection says behind all that is known."""
        self._reader, self._before = reader, len(self.events)
        self.cursors.append(self._before)

    @property
    def broken(self) -> bool:
        """Whether the connection is over."""
        return self._reader is None or self._reader.ended or self._reader.broken is not None

    def take(self) -> list[Event]:
        """All events so far. Fails if the connection has said an index twice or left one out."""
        if self._reader is not None:
            lines = self._reader.lines
            found = [json.loads(line) for line in lines] if self.form == "ndjson" else self._numbered(lines)
            self.events[self._before :] = found
        return self.events

    def _numbered(self, lines: list[str]) -> list[Event]:
        places = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
        data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        assert places[: len(data)] == [f"{self.session}:{self._before + n}" for n in range(len(data))]
        return data

    def until(self, kind: str, count: int = 1, timeout: float = 30.0) -> None:
        """Wait until events of this type have come."""
        wait_for(
            lambda: sum(event["type"] == kind for event in self.take()) >= count,
            timeout,
            what=f"{count} {kind} in {[event['type'] for event in self.events]}",
        )


def is_whole(events: list[Event], turns: int = 1) -> None:
    """Every id once, one terminal event a turn, the boundary last."""
    ids = [event["meta"]["id"] for event in events]
    assert len(ids) == len(set(ids))
    ends = [event["data"]["turnId"] for event in events if event["type"] in TERMINAL]
    assert ends == [f"turn_{number}" for number in range(turns)]
    assert sum(event["type"] == "session.waiting" for event in events) == turns
    assert events[-1]["type"] == "session.waiting"
