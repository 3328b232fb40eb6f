"""The keeper: every worker's main process has one. It rings for sessions that nobody would look at otherwise.

There is no leader: taking what is due is atomic, so any number of keepers may look at once. A tick finds, in this order, the
children that have died, whether the clock can be trusted, what is due, what is to be put in order, and whether our own
consumer has gone deaf. A tick never raises: the keeper outlives Redis.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from orchestrator.clock import steady
from orchestrator.core.names import SessionId
from orchestrator.errors import JournalAway, JournalFull
from orchestrator.journal import Journal, connect
from orchestrator.journal.tidying import tidy

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
BEAT_SECONDS = 5.0
TIDY_SECONDS = 5.0
TIDY_AT_MOST_SECONDS = 0.5
DEAF_SECONDS = 10.0
AGAIN_SECONDS = 60.0
SKEW_SECONDS = 1.0
"""How far Redis's clock and ours may move apart between two ticks, and how long a call may take, before we stop trusting leases."""
COMPLAIN_SECONDS = 60.0
Owner = tuple[SessionId, str]


class Ear(Protocol):
    """The consumer of this worker, as far as the keeper must know it."""

    def listens(self) -> bool:
        """Whether it could take a message now: it consumes our queue and has a free slot."""
        ...

    def heard(self) -> int:
        """How many messages it has taken so far."""
        ...

    def reconnect(self) -> None:
        """Close its connection, so that it makes a new one."""
        ...

    def give_up(self) -> None:
        """Drain this worker and end it, so that its supervisor starts another."""
        ...


class Keeper:
    """One worker's keeper. `tick` may be called by hand; `start` calls it on a thread."""

    def __init__(
        self,
        journal: Callable[[], Journal],
        *,
        label: str,
        worker: str,
        digest: str = "",
        beats: bool = True,
        rung: Callable[[int], None] = lambda _: None,
        dead: Callable[[], Iterable[Owner]] = lambda: (),
        ear: Ear | None = None,
        broker_url: str = "",
        key_prefix: str = "",
        clock: Callable[[], float] = steady,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._journal = journal
        self._label, self._worker, self._digest, self._beats = label, worker, digest, beats
        self._dead, self._rung = dead, rung
        self._ear, self._broker_url, self._key_prefix = ear, broker_url, key_prefix
        self._clock, self._dice = clock, dice
        self._bell, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._lock, self._leaving = threading.Lock(), threading.Lock()
        self._told_dead: list[Owner] = []
        self._last: tuple[float, float] | None = None
        self._paused_until = float("-inf")
        self._next_beat = self._next_tidy = self._next_listen = self._next_complaint = float("-inf")
        self._heard = -1
        self._quiet_since: float | None = None
        self._suspected = False
        self._reconnected_at = float("-inf")

    # On a thread ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look, every 250 ms or so."""
        self._thread = threading.Thread(target=self._run, name="orchestrator-keeper", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 0.5) -> None:
        """Look no more, and say that this worker has left; done when it returns, whoever else has called. Never raises."""
        self._stopped.set()
        self._bell.set()
        with self._leaving:
            thread, self._thread = self._thread, None
            if thread is not None and thread is not threading.current_thread():
                thread.join(timeout)
            if self._beats:
                self._beats = False
                try:
                    self._journal().heartbeat(self._label, self._worker, digest=self._digest, leave=True)
                except Exception as away:  # it is noticed all the same, 15 seconds later
                    log.info("could not say goodbye: %s", away)

    def lost(self, session: SessionId, whose: str) -> None:
        """A process is known to have died while it carried a session: the next tick, at once, ends its lease."""
        with self._lock:
            self._told_dead.append((session, whose))
        self._bell.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.tick()
            self._bell.wait(TICK_SECONDS * (0.8 + 0.4 * self._dice()))
            self._bell.clear()

    # A tick -----------------------------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Look once. Returns how many sessions were rung."""
        try:
            return self._tick()
        except (JournalAway, JournalFull) as away:
            # While it was away nobody could renew: what looks dead now may well be alive.
            self._pause()
            self._complain("the keeper waits for the journal: %s", away)
        except Exception as broken:
            self._complain("the keeper stumbled: %r", broken, trace=True)
        return 0

    def _tick(self) -> int:
        journal = self._journal()
        self._disown(journal)
        now_ms = self._look_at_the_clock(journal)
        self._beat(journal)
        rung, more = 0, True
        while more and not self._stopped.is_set():
            begun = self._clock()
            _, more, taken = journal.due(pause=begun < self._paused_until)
            rung += taken
            self._rung(taken)
            if self._clock() - begun > SKEW_SECONDS:
                self._pause(journal)
        self._tidy(journal, now_ms)
        self._listen(journal, now_ms)
        return rung

    def _pause(self, journal: Journal | None = None) -> None:
        try:
            lease_seconds = (journal or self._journal()).lease_ms / 1000
        except Exception:  # not even opened yet: the next tick pauses again
            lease_seconds = 10.0
        self._paused_until = self._clock() + lease_seconds

    def _look_at_the_clock(self, journal: Journal) -> int:
        """The time of Redis. Pauses takeovers for one lease where it cannot be trusted: that it was late itself is no reason."""
        before = self._clock()
        now_ms = journal.time()
        after = self._clock()
        here, there = (before + after) / 2, now_ms / 1000
        took = after - before
        if self._last is not None:
            apart = abs((there - self._last[1]) - (here - self._last[0]))
            if apart > SKEW_SECONDS or took > SKEW_SECONDS:
                log.warning(
                    "no takeovers for one lease: the journal's clock moved %.1f s against ours, its answer took %.1f s",
                    apart,
                    took,
                )
                self._pause(journal)
        elif took > SKEW_SECONDS:
            self._pause(journal)
        self._last = (here, there)
        return now_ms

    def _disown(self, journal: Journal) -> None:
        with self._lock:
            told, self._told_dead = self._told_dead, []
        waiting = list(dict.fromkeys([*told, *self._dead()]))
        try:
            while waiting:
                session, whose = waiting[0]
                if journal.disown(session, whose):
                    log.warning("%s lost its process (%s) and is carried on elsewhere", session, whose.rstrip("."))
                del waiting[0]
        finally:
            with self._lock:
                self._told_dead += waiting

    def _beat(self, journal: Journal) -> None:
        if self._beats and self._clock() >= self._next_beat:
            journal.heartbeat(self._label, self._worker, digest=self._digest)
            self._next_beat = self._clock() + BEAT_SECONDS

    def _tidy(self, journal: Journal, now_ms: int) -> None:
        if self._clock() < self._next_tidy:
            return
        self._next_tidy = self._clock() + TIDY_SECONDS * (0.8 + 0.4 * self._dice())
        begun = self._clock()
        for session in journal.tidy(now_ms):
            if self._stopped.is_set():
                return
            if self._clock() - begun > TIDY_AT_MOST_SECONDS:
                # What is due must be rung for meanwhile; the next tick goes on.
                self._next_tidy = begun
                return
            tidy(journal, session, now_ms)

    def _complain(self, text: str, why: Exception, *, trace: bool = False) -> None:
        if self._clock() >= self._next_complaint:
            self._next_complaint = self._clock() + COMPLAIN_SECONDS
            log.warning(text, why, exc_info=why if trace else None)

    # A deaf consumer --------------------------------------------------------------------------------------------------

    def _listen(self, journal: Journal, now_ms: int) -> None:
        """Whether wakes grow old while our consumer could take them and takes none."""
        ear, now = self._ear, self._clock()
        if ear is None or not self._broker_url.startswith(("redis://", "rediss://")) or now < self._next_listen:
            return
        self._next_listen = now + 1.0
        heard, listens = ear.heard(), ear.listens()
        if not listens or heard != self._heard:
            self._heard, self._quiet_since, self._suspected = heard, now if listens else None, False
            return
        if self._quiet_since is None:
            self._quiet_since = now
        if now - self._quiet_since < DEAF_SECONDS or not self._wakes_grow_old(journal, now_ms):
            self._suspected = False
        elif not self._suspected:
            self._suspected = True  # a process that was stopped and goes on has a moment to catch up
        elif now - self._reconnected_at < AGAIN_SECONDS:
            log.error("the consumer hears nothing although it was connected anew: this worker ends")
            self._quiet_since, self._suspected = None, False
            ear.give_up()
        else:
            log.warning("the consumer hears nothing while wakes wait: connecting it anew")
            self._reconnected_at, self._quiet_since, self._suspected = now, None, False
            ear.reconnect()

    def _wakes_grow_old(self, journal: Journal, now_ms: int) -> bool:
        broker = connect(self._broker_url, timeout=1.0)
        try:
            oldest_ms = journal.oldest_wake_ms(broker, self._label, self._key_prefix)
        finally:
            broker.close()
        return oldest_ms is not None and now_ms - oldest_ms > DEAF_SECONDS * 1000
