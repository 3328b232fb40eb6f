"""A session that this process owns: its token, where its journal stands, how long the lease is good for, what waits to be streamed.

The driver is the only one that commits. Deltas come from event loops and tools and are sent by the pump or, before a commit, by
the driver; `sending` keeps the two apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

import orchestrator.ids as ids
from orchestrator.clock import iso, steady
from orchestrator.core import event as events
from orchestrator.core.event import Event
from orchestrator.core.names import CallId, Millis, SessionId, Token
from orchestrator.core.snapshot import Position, Snapshot, Turn
from orchestrator.journal import Appended, Behind, Gone, Granted, Superseded

DRAIN = object()
"""In a mailbox: the grace is over, give the session back."""
NEWS = object()
"""In a mailbox: something came in for this session."""
READY_SECONDS = 60.0
"""How long a driver may be busy with what comes before and after an effect."""


class Owned:
    """One owned session."""

    def __init__(
        self,
        session: SessionId,
        token: Token,
        granted: Granted,
        lease_seconds: float,
        asked_at: float,
        now: Callable[[], Millis],
    ) -> None:
        self.session = session
        self.token = token
        self.granted = granted
        self.position: Position = replace(granted.position, fresh=granted.snapshot.at.fresh)
        self.snapshot: Snapshot = granted.snapshot
        self.heads = granted.heads
        self.attempt = granted.attempt + 1
        self.lease_seconds = lease_seconds
        self.lease_until = asked_at + lease_seconds
        self.busy_until = asked_at + READY_SECONDS
        self.mailbox: SimpleQueue[object] = SimpleQueue()
        self.sending = threading.Lock()
        self.lost: Behind | Superseded | Gone | None = None
        self.last_n = max([granted.snapshot.judged, *(head.n for head in granted.heads)])
        self.streamed = False
        self._now = now
        self._lock = threading.Lock()
        self._waiting: list[Event] = []
        self._text: list[str] = []
        self._kind = ""
        self._turn: Turn | None = None
        self._in_flight: tuple[str, list[str]] | None = None

    # What waits to be streamed ----------------------------------------------------------------------------------------

    def open_stream(self, turn: Turn) -> None:
        """Deltas from now on belong to this turn's open step."""
        with self._lock:
            self._turn = turn

    def say(self, kind: str, text: str) -> bool:
        """A piece of an answer; neighbours of one kind are merged. True if nothing waited before."""
        with self._lock:
            first = not (self._text or self._waiting)
            if self._kind != kind:
                self._close_text()
                self._kind = kind
            self._text.append(text)
            return first

    def show(self, call: CallId, tool: str, value: object) -> bool:
        """What a running tool has to say. True if nothing waited before."""
        with self._lock:
            first = not (self._text or self._waiting)
            self._close_text()
            if self._turn is not None:
                self._waiting.append(events.partial(self._turn, call, tool, value))
            return first

    def _close_text(self) -> None:
        if self._text and self._turn is not None:
            self._waiting.append(events.delta(self._turn, self._kind, "".join(self._text)))
        self._text = []

    def drop_stream(self) -> None:
        """Forget what has not been sent; nobody shall see it any more."""
        with self._lock:
            self._text, self._waiting, self._turn = [], [], None

    @property
    def has_something_to_say(self) -> bool:
        """Whether something waits to be streamed, or was sent and not yet answered."""
        return bool(self._text or self._waiting or self._in_flight)

    def next_append(self) -> tuple[int, str, list[str]] | None:
        """The append to send: its place, its first id, its lines. The same again until its answer was heard. Hold `sending`."""
        if self._in_flight is None:
            with self._lock:
                self._close_text()
                waiting, self._waiting = self._waiting, []
                turn = self._turn
            if not waiting:
                return None
            at = self._now()
            first = f"evt_{ids.ulid(at)}"
            deliveries = turn.deliveries if turn else ()
            lines = [
                events.line(one, first if place == 0 else f"evt_{ids.ulid(at)}", iso(at), deliveries, self.attempt)
                for place, one in enumerate(waiting)
            ]
            self._in_flight = (first, lines)
        first, lines = self._in_flight
        return self.position.events, first, lines

    def append_heard(self, answer: Appended | Behind | Superseded | Gone | None) -> None:
        """The answer of the append in flight. Hold `sending`."""
        self._in_flight = None
        match answer:
            case Appended():
                self.position = replace(self.position, events=answer.events)
                self.streamed = True
                if answer.n > self.last_n:
                    # A hint that was lost is made good by the next answer.
                    self.last_n = answer.n
                    self.mailbox.put(NEWS)
            case None:
                return
            case _:
                self.lose(answer)

    # Who owns it ------------------------------------------------------------------------------------------------------

    def is_ours(self) -> bool:
        """Whether nobody else can own it by now, as far as this process's clock tells: it may have stood still meanwhile."""
        return self.lost is None and steady() < self.lease_until

    def lose(self, how: Behind | Superseded | Gone) -> None:
        """Writes are refused from now on. The driver is told."""
        if self.lost is None:
            self.lost = how
            self.mailbox.put(how)

    def renewed(self, asked_at: float) -> None:
        """The lease was extended by a call that was sent at `asked_at`."""
        self.lease_until = max(self.lease_until, asked_at + self.lease_seconds)
