"""Reading a session's stream: replay from the log, then follow it. An index is served once a connection, in order, as whole lines.

A reader waits on its ear (`Tails`) and looks by itself every two seconds, because a message to the ear may be lost. It holds a
thread for as long as it lives, so a process serves only so many of them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.core.names import SessionId
from orchestrator.engine import Engine
from orchestrator.errors import OrchestratorError, TooManyStreams
from orchestrator.watching import NOBODY, Watch

log = logging.getLogger(__name__)

BATCH = 256
TERMINAL = (b'{"type":"session.completed"', b'{"type":"session.failed"')
LEASE_ENDED = b'{"$eve":"stream.lease-ended","version":1}'
REMEMBERED = 10_000
REPORT_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a stream. Clients drop a connection after 15 s without a byte."""

    heartbeat_seconds: float = 10.0
    lease_seconds: float = 60.0
    look_seconds: float = 2.0
    lost_seconds: float = 5.0
    # A subscription takes a moment to stand, and what is said before that is not heard.
    first_looks: tuple[float, ...] = (0.05, 0.1, 0.2)


class Ndjson:
    """A line an event; a blank line to say that we are still there."""

    name, content_type = "ndjson", "application/x-ndjson; charset=utf-8"
    beat = b"\n"

    def events(self, _first: int, lines: Sequence[bytes]) -> bytes:
        """Events, whose index nobody needs to be told: it is how many came before."""
        return b"\n".join([*lines, b""])

    def control(self, line: bytes) -> bytes:
        """A line that is no event and has no index."""
        return line + b"\n"


class Sse:
    """Server-sent events: the id says where to go on, a comment that we are still there."""

    name, content_type = "sse", "text/event-stream; charset=utf-8"
    beat = b":\n\n"

    def __init__(self, session: SessionId) -> None:
        self._session = session.encode()

    def events(self, first: int, lines: Sequence[bytes]) -> bytes:
        """Events from index `first` on."""
        told = [b"id: %s:%d\ndata: %s\n\n" % (self._session, place, line) for place, line in enumerate(lines, first)]
        return b"".join(told)

    def control(self, line: bytes) -> bytes:
        """A line that is no event and has no index."""
        return b"data: %s\n\n" % line


class Slots:
    """The readers of a process, counted."""

    def __init__(self, limit: int, watch: Watch = NOBODY) -> None:
        self.limit = limit
        self.watch = watch
        self.stopping = False
        self._open: set[Stream] = set()
        self._lock = threading.Lock()
        self._warned = False
        _EVERY.add(self)

    @property
    def used(self) -> int:
        """How many there are."""
        return len(self._open)

    def take(self, stream: Stream) -> None:
        """Let one more in. Raises `TooManyStreams`."""
        with self._lock:
            if len(self._open) >= self.limit:
                raise TooManyStreams(limit=self.limit)
            self._open.add(stream)
        self.watch.readers(1)

    def give_back(self, stream: Stream) -> None:
        """One has left. May be said twice."""
        with self._lock:
            there = stream in self._open
            self._open.discard(stream)
        if there:
            self.watch.readers(-1)

    def end(self) -> None:
        """Let all readers end at the end of a line, and those that still come after their tail."""
        self.stopping = True
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            stream.wake()

    def warn_once(self) -> None:
        """Say that this server cannot follow streams."""
        if not self._warned:
            self._warned = True
            log.warning(
                "This server runs one request at a time, so a stream ends after what is there already."
                " To follow streams use threads: gunicorn -c python:web.gunicorn 'web:create_app()'."
            )


def hung_up(environ: Mapping[str, Any]) -> Callable[[], bool]:
    """Whether the reader of this request has closed its connection, where the server lets us look (gunicorn without TLS).

    A write notices as well, but only the second one after it, and a quiet stream writes every ten seconds.
    """
    connection = environ.get("gunicorn.socket")
    if type(connection) is not socket.socket:
        return lambda: False

    def look() -> bool:
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    return look


_EVERY: weakref.WeakSet[Slots] = weakref.WeakSet()


def end_all() -> None:
    """Let all readers of this process end. For a signal handler: it takes no lock in the thread it interrupts."""

    def end(everyone: Sequence[Slots]) -> None:
        for slots in everyone:
            slots.end()

    threading.Thread(target=end, args=(list(_EVERY),), name="web-end-streams", daemon=True).start()


@dataclass(slots=True)
class _Highest:
    events: int = 0
    shorter_since: float | None = None
    reported: float | None = None


class Served:
    """How many events of each session this process has served, to notice a store that has lost its tail.

    Only what was served counts: a number in a query proves nothing.
    """

    def __init__(self, lost_seconds: float) -> None:
        self._lost_seconds = lost_seconds
        self._highest: OrderedDict[SessionId, _Highest] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, session: SessionId, events: int) -> None:
        """The first `events` events were in the store a moment ago."""
        with self._lock:
            known = self._highest.setdefault(session, _Highest())
            self._highest.move_to_end(session)
            if events >= known.events:
                known.events, known.shorter_since, known.reported = events, None, None
            if len(self._highest) > REMEMBERED:
                self._highest.popitem(last=False)

    def lost(self, session: SessionId, events: int) -> int | None:
        """The store has `events` events now. How many it had, if it has been shorter for a while and nobody was told lately."""
        now = time.monotonic()
        with self._lock:
            known = self._highest.get(session)
            if known is None or events >= known.events:
                if known is not None:
                    known.shorter_since = None
                return None
            if known.shorter_since is None:
                known.shorter_since = now
            told = known.reported is not None and now - known.reported < REPORT_AGAIN_SECONDS
            if told or now - known.shorter_since < self._lost_seconds:
                return None
            known.reported = now
            return known.events


class Stream:
    """One reader. Iterate it to the end or `close` it: it holds a slot and an ear.

    Who has a `lease` is told when it ends. `for_seconds` is how long the reader may read at all, lease or not.
    """

    def __init__(
        self,
        engine: Engine,
        session: SessionId,
        slots: Slots,
        served: Served,
        pace: Pace,
        form: Ndjson | Sse,
        *,
        start: int,
        end: int | None,
        lease: bool,
        for_seconds: float = float("inf"),
        gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._session = session
        self._slots = slots
        self._served = served
        self._pace = pace
        self._form = form
        self._index = start
        self._end = end
        self._gone = gone
        self._lease_ends = time.monotonic() + pace.lease_seconds if lease else float("inf")
        self._closes = time.monotonic() + for_seconds
        self._away = False
        self._over = False
        slots.take(self)
        try:
            self._ear = engine.tails.wait_beside(session)
        except BaseException:
            slots.give_back(self)
            raise
        self._closed = False
        self._chunks = self._follow()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> bytes:
        return next(self._chunks)

    def wake(self) -> None:
        """Let it look at once."""
        self._ear.wake()

    def close(self) -> None:
        """Give up the slot and the ear. Called by the server when the response has ended, however it ended."""
        if self._closed:
            return
        self._closed = True
        self._ear.close()
        self._slots.give_back(self)

    def __del__(self) -> None:
        # For a response that no server ever took up.
        if hasattr(self, "_closed"):
            self.close()

    def _follow(self) -> Iterator[bytes]:
        """The chunks of the body, each of whole lines."""
        yield self._form.beat
        pace, heard, full = self._pace, True, False
        quiet_since = time.monotonic()
        first_looks = iter(pace.first_looks)
        while not self._done():
            if time.monotonic() >= self._lease_ends:
                yield self._form.control(LEASE_ENDED)
                return
            if lines := self._look(heard or full):
                yield self._form.events(self._index - len(lines), lines)
                # Only now: a chunk that was yielded was handed to the connection.
                self._served.note(self._session, self._index)
                quiet_since = time.monotonic()
            full = len(lines) == BATCH
            if full or self._done():
                continue
            if self._end is not None and not self._away:
                return
            now = time.monotonic()
            beat_at = quiet_since + pace.heartbeat_seconds
            heard = self._ear.wait(
                max(
                    min(
                        next(first_looks, pace.look_seconds), beat_at - now, self._lease_ends - now, self._closes - now
                    ),
                    0.0,
                )
            )
            # A look at a journal that hangs takes five seconds: who is nearly due says so before it.
            ahead = pace.heartbeat_seconds / (2 if self._away else 10)
            if time.monotonic() >= beat_at - ahead:
                yield self._form.beat
                quiet_since = time.monotonic()

    def _done(self) -> bool:
        return self._over or self._slots.stopping or time.monotonic() >= self._closes or self._gone()

    def _look(self, news: bool) -> list[bytes]:
        """The lines that are there and were not served yet."""
        reads, most = self._engine.reads, BATCH
        if self._end is not None:
            most = min(BATCH, self._end - self._index)
            if most <= 0:
                self._over = True
                return []
        try:
            if not news and not self._longer():
                return []
            lines = reads.events(self._session, self._index, most)
            if not lines and news:
                self._longer()  # something else was told than new events: that it has ended, or is erased
        except OrchestratorError as away:
            if not self._away:
                log.warning("stream of %s waits: %s", self._session, away)
            self._away = True
            return []
        self._away = False
        for place, line in enumerate(lines):
            if line.startswith(TERMINAL):
                self._over = True
                lines = lines[: place + 1]
                break
        self._index += len(lines)
        if self._end is not None and self._index >= self._end:
            self._over = True
        return lines

    def _longer(self) -> bool:
        """Whether there is something to read. Notices the end of a session, and a store that is shorter than it was."""
        place = self._engine.reads.place(self._session)
        self._away = False
        if place is None:
            self._over = True
            return False
        events, life = place
        if (had := self._served.lost(self._session, events)) is not None:
            log.warning("the stream of %s had %d events and has %d: its owner is told", self._session, had, events)
            with suppress(OrchestratorError):  # an ended session needs nobody to fill the gap
                self._engine.report_tail(self._session, had)
        if events > self._index:
            return True
        self._over = life == "ended"
        return False
