"""The pulse: keeps the leases of the sessions this process works on, and only of those whose driver is alive.

A driver says until when its effect may take (`busy_until`); beyond that its lease runs out like a dead one's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from orchestrator.clock import steady
from orchestrator.errors import JournalAway, OrchestratorError
from orchestrator.journal import Gone, Journal, Superseded
from orchestrator.process.owned import Owned

log = logging.getLogger(__name__)


AGAIN_SECONDS = 0.2
"""How soon a beat that failed is tried again."""


class Pulse:
    """One thread that renews every third of a lease."""

    def __init__(self, journal: Journal, lease_seconds: float, owned: Callable[[], Iterable[Owned]]) -> None:
        self._journal = journal
        self._every = lease_seconds / 3
        self._owned = owned
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin, once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="orchestrator-pulse", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Renew nothing more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        pause = self._every
        while not self._ended.wait(pause):
            pause = self._every
            try:
                self.beat()
            except JournalAway:
                pause = AGAIN_SECONDS
            except Exception:  # nothing may end this thread: every lease of the process hangs on it
                log.exception("the pulse stumbled")

    def beat(self) -> None:
        """Renew what is alive. A lease that a commit has just renewed can wait for the next beat."""
        now = steady()
        alive = [
            owned
            for owned in self._owned()
            if not owned.lost and owned.busy_until > now and owned.lease_until - now < 2.2 * self._every
        ]
        if not alive:
            return
        answers = self._journal.renew([(owned.session, owned.token) for owned in alive])
        for owned in alive:
            match answers.get(owned.session):
                case "done":
                    owned.renewed(now)
                case "gone":
                    owned.lose(Gone())
                case "superseded":
                    owned.lose(Superseded())
                case _:
                    pass

    def renew(self, owned: Owned) -> bool:
        """Renew one lease now. False if it is not ours any more or the journal does not answer."""
        asked = steady()
        try:
            answer = self._journal.renew([(owned.session, owned.token)])[owned.session]
        except OrchestratorError:
            return False
        if answer == "done":
            owned.renewed(asked)
            return True
        owned.lose(Gone() if answer == "gone" else Superseded())
        return False
