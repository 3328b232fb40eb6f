"""The delta pump: what all sessions of a process have to stream goes out in one pipeline, every 50 ms, more slowly under load."""

from __future__ import annotations

import logging
import threading
import time

from orchestrator.errors import JournalAway
from orchestrator.journal import Journal
from orchestrator.process.owned import Owned

log = logging.getLogger(__name__)
SOONEST_SECONDS = 0.05
LATEST_SECONDS = 0.25


class Pump:
    """One thread that sends."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._some = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._talking: dict[str, Owned] = {}
        self._thread: threading.Thread | None = None

    def hint(self, owned: Owned) -> None:
        """This session has something to say."""
        with self._lock:
            self._talking[owned.token] = owned
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="orchestrator-pump", daemon=True)
                self._thread.start()
        self._some.set()

    def flush(self, owned: Owned) -> None:
        """Send what this session has to say, now. Raises `JournalAway` when it is not clear whether it arrived."""
        while owned.has_something_to_say:
            with owned.sending:
                append = owned.next_append()
                if append is None:
                    return
                if owned.lost:
                    owned.append_heard(owned.lost)
                    return
                command = self._journal.append_command(owned.session, owned.token, *append)
                owned.append_heard(self._journal.append_many([command])[0])

    def close(self) -> None:
        """End the thread. What was not sent is not sent."""
        self._ended.set()
        self._some.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        pause = SOONEST_SECONDS
        while True:
            self._some.wait()
            if self._ended.wait(pause):
                return
            self._some.clear()
            with self._lock:
                talking, self._talking = list(self._talking.values()), {}
            began = time.perf_counter()
            try:
                self._send(talking)
            except Exception as broken:  # nothing may end this thread: every stream of the process hangs on it
                if not isinstance(broken, JournalAway):
                    log.exception("the pump stumbled")
                for owned in talking:
                    if owned.has_something_to_say and not owned.lost:
                        self.hint(owned)
            spent = time.perf_counter() - began
            pause = min(LATEST_SECONDS, max(SOONEST_SECONDS, 4 * spent))

    def _send(self, talking: list[Owned]) -> None:
        locked: list[Owned] = []
        commands = []
        try:
            for owned in talking:
                if owned.lost:
                    continue
                if not owned.sending.acquire(blocking=False):
                    # A driver is sending for itself: what was said since is for the next round.
                    self.hint(owned)
                    continue
                locked.append(owned)
                append = owned.next_append()
                if append is None:
                    locked.pop()
                    owned.sending.release()
                    continue
                commands.append(self._journal.append_command(owned.session, owned.token, *append))
            if commands:
                for owned, answer in zip(locked, self._journal.append_many(commands), strict=True):
                    owned.append_heard(answer)
        finally:
            for owned in locked:
                owned.sending.release()
