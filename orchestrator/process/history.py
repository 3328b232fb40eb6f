"""Histories: rows as they are stored, and what this process remembers of sessions it ran lately.

A row is our envelope around one message of the model layer. Remembered histories are keyed by generation, length and the id
of the last row, so that two timelines are never joined.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.core.names import SessionId
from orchestrator.errors import UnreadableHistory

MOST_BYTES = 64 * 1024 * 1024
READ_COST = 4
"""A message that was read takes about so many times the bytes of its row."""
Read = Callable[[bytes], Any]


def row(row_id: str, step: str, message: bytes) -> bytes:
    """A history row: version, id, the step that wrote it, the message as JSON."""
    return b'{"v":1,"id":"%b","step":"%b","m":%b}' % (row_id.encode(), step.encode(), message)


FILE_MARK = b'"kind":"text-content"'
"""In a message that speaks of a file."""


def row_id(text: bytes) -> str:
    """The id of a stored row."""
    return (
        text[13 : text.index(b'"', 13)].decode() if text.startswith(b'{"v":1,"id":"') else str(json.loads(text)["id"])
    )


def message_of(text: bytes) -> bytes:
    """The message in a stored row."""
    if not text.startswith(b'{"v":1,'):
        raise ValueError("a row of a newer version")
    return text[text.index(b',"m":') + 5 : -1]


class History:
    """The messages of one generation, oldest first; read when they are first needed."""

    def __init__(self, session: SessionId, gen: int) -> None:
        self.session = session
        self.gen = gen
        self.last_row = ""
        self.bytes = 0
        self.has_files = False
        self._rows: list[bytes] = []
        self._messages: list[Any] = []

    def __len__(self) -> int:
        return len(self._messages) + len(self._rows)

    def add(self, rows: Sequence[bytes]) -> None:
        """Rows that were stored after these."""
        if rows:
            self._rows.extend(rows)
            self.last_row = row_id(rows[-1])
            self.bytes += sum(map(len, rows))
            self.has_files = self.has_files or any(FILE_MARK in one for one in rows)

    def messages(self, read: Read) -> list[Any]:
        """All of it as messages. The list must not be changed. Raises `UnreadableHistory`."""
        for place, text in enumerate(self._rows):
            try:
                self._messages.append(read(message_of(text)))
            except ValueError as broken:
                self._rows = self._rows[place:]
                raise UnreadableHistory(session=self.session, reason=str(broken)[:200]) from broken
        self._rows = []
        return self._messages


class Messages(Sequence[Any]):
    """A history as a model sees it. What was stored since it was last looked at is read when it is looked at again; then
    it may raise `UnreadableHistory`."""

    def __init__(self, history: History, read: Read) -> None:
        self._history = history
        self._read = read

    @property
    def has_files(self) -> bool:
        """Whether a message speaks of a file."""
        return self._history.has_files

    def __len__(self) -> int:
        return len(self._history)

    def __getitem__(self, place: Any) -> Any:
        return self._history.messages(self._read)[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._history.messages(self._read))


class Histories:
    """What this process remembers, bounded in bytes; what was not used for longest goes first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[SessionId, History] = OrderedDict()
        self._bytes = 0

    def take(self, session: SessionId) -> History | None:
        """What is remembered of a session; it belongs to the caller until it is put back."""
        with self._lock:
            history = self._kept.pop(session, None)
            if history is not None:
                self._bytes -= history.bytes * READ_COST
            return history

    def put(self, history: History) -> None:
        """Remember a history."""
        with self._lock:
            if (before := self._kept.pop(history.session, None)) is not None:
                self._bytes -= before.bytes * READ_COST
            self._kept[history.session] = history
            self._bytes += history.bytes * READ_COST
            while self._bytes > self._most and self._kept:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= gone.bytes * READ_COST

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0
