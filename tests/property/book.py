"""What the ledger of a session writes down: calls that reached the server, and what has happened so far."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

from orchestrator.core.snapshot import EMPTY, Snapshot
from orchestrator.journal.scripts import Script, Value


@dataclass(frozen=True, slots=True)
class Said:
    """A call that reached the server, and its answer."""

    verb: Script
    command: tuple[Value, ...]
    answer: Any
    at: int

    def argument(self, name: str) -> str:
        """An argument of the call."""
        value = self.raw(name)
        return value.decode() if isinstance(value, bytes) else str(value)

    def raw(self, name: str) -> Value:
        """An argument as it was sent."""
        place: int = 3 + int(self.command[2]) + self.verb.args.index(name)
        return self.command[place]

    def key(self, name: str) -> str:
        """A key of the call."""
        return str(self.command[3 + self.verb.keys.index(name)])


@dataclass(slots=True)
class Book:
    """What was promised and what has happened so far. A store that loses its tail takes this back with it."""

    facts: list[bytes] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    """The turns of which somebody has said that they shall not go on beyond their budget."""
    events: list[bytes] = field(default_factory=list)
    gen: int = 0
    rows: list[bytes] = field(default_factory=list)
    snapshot: Snapshot = EMPTY
    accepted: dict[str, str] = field(default_factory=dict)
    """What was let in, and of which kind it is."""
    used: dict[str, str] = field(default_factory=dict)
    must_cancel: dict[str, str] = field(default_factory=dict)
    """What was told to stop a turn, and which."""
    outcomes: dict[str, str] = field(default_factory=dict)
    careful_starts: dict[str, int] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    reports: dict[str, int] = field(default_factory=dict)
    heard: int = 0
    """How far the stream was said to have reached, by reports that found it as long again."""
    out: list[bytes] = field(default_factory=list)
    """All that was ever left to be posted, and how much of it has been settled."""
    settled: int = 0
    who: set[str] = field(default_factory=set)
    erased: bool = False

    def copy(self) -> Book:
        """As it is now."""
        return Book(**{one.name: copy(getattr(self, one.name)) for one in fields(self)})
