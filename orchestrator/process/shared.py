"""The process: made once in each process that works on sessions, after any fork, when the first session comes."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

import orchestrator.ids as ids
from orchestrator.agent import Agent, App
from orchestrator.clock import RedisClock, steady
from orchestrator.config import Settings
from orchestrator.core.names import SessionId, Token
from orchestrator.errors import ConfigError, JournalAway
from orchestrator.journal import Address, Gone, Journal, Reads
from orchestrator.journal.tails import Listener, news_channels
from orchestrator.ports import Model, ModelLayer
from orchestrator.process.files import Files
from orchestrator.process.history import Histories
from orchestrator.process.loops import Loops, Threads
from orchestrator.process.owned import DRAIN, NEWS, Owned
from orchestrator.process.pulse import Pulse
from orchestrator.process.pump import Pump
from orchestrator.watching import NOBODY, Watch

log = logging.getLogger(__name__)
T = TypeVar("T")
Entries = Callable[[App, Sequence[Address], Sequence[str]], tuple[bytes, ...]]
"""What has to be posted when these lines are committed, for a session with these addresses."""
MOST_MISSED = 4096
ERASED = "erased"
"""What is said of a session that is not there any more."""
_DRAWN = ids.ulid(0)[-8:]


def base36(number: int) -> str:
    """A number in base 36."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, place = divmod(number, 36)
        text = digits[place] + text
    return text or "0"


def worker_id() -> str:
    """The 8 characters that say which worker this is; what it forks shares them, another program that it starts does not."""
    return os.environ.get("ORCHESTRATOR_WORKER", _DRAWN)[:8].ljust(8, "0")


def owner_prefix(worker: str, pid: int) -> str:
    """What the tokens of one process begin with."""
    return f"{worker}{base36(pid)}."


class Process:
    """What the sessions of one process share."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        journal: Journal,
        reads: Reads,
        clock: RedisClock,
        *,
        layer: ModelLayer | None = None,
        dice: Callable[[], float] = random.random,
        tool_threads: int = 256,
        entries: Entries | None = None,
        watch: Watch = NOBODY,
    ) -> None:
        self.app = app
        self.settings = settings
        self.journal = journal
        self.reads = reads
        self.clock = clock
        self.entries = entries
        self.watch = watch
        self.dice = dice
        self.pid = os.getpid()
        self.prefix = owner_prefix(worker_id(), self.pid)
        self.loops = Loops()
        self.threads = Threads(tool_threads)
        self.histories = Histories()
        self.files = Files()
        self.pump = Pump(journal)
        self.pulse = Pulse(journal, settings.lease_seconds, self.owned)
        self.draining = threading.Event()
        self.grace_over = threading.Event()
        self.one_alone = threading.Lock()
        self.hard_exit_needed = False
        self._layer = layer
        self._lock = threading.Lock()
        self._owned: dict[SessionId, Owned] = {}
        self._missed: OrderedDict[SessionId, int] = OrderedDict()
        self._empty = threading.Condition(self._lock)
        self._news: Listener | None = None

    @cached_property
    def layer(self) -> ModelLayer:
        """The model layer, loaded when it is first needed."""
        with self._lock:
            if self._layer is None:
                from orchestrator.models import Layer

                self._layer = Layer()
            return self._layer

    def model(self, agent: Agent) -> Model:
        """The model an agent runs on here. Raises `ConfigError`."""
        named = self.settings.model or agent.model
        if named is None:
            raise ConfigError(
                problem=f"The agent {agent.name!r} has no model.",
                remedy="Write Agent(model=...), or set ORCHESTRATOR_MODEL where its workers run.",
            )
        return self.layer.model(named)

    def new_token(self) -> Token:
        """A token that nobody else makes: worker, pid, ULID."""
        return Token(self.prefix + ids.ulid(self.clock.now()))

    def repeat(self, call: Callable[[], T], *, patience: float = float("inf")) -> T:
        """Say the same thing to the journal again until it is clear what has happened. Raises `JournalAway` after `patience`
        seconds, or when the grace of a leaving process is over."""
        pause, until = 0.02, steady() + patience
        while True:
            try:
                return call()
            except JournalAway:
                if steady() > until or self.grace_over.is_set():
                    raise
                time.sleep(pause * (1 + self.dice()))
                pause = min(pause * 2, 0.5)

    # Who is worked on -------------------------------------------------------------------------------------------------

    def owned(self) -> list[Owned]:
        """The sessions worked on here."""
        with self._lock:
            return list(self._owned.values())

    def enter(self, owned: Owned) -> None:
        """A session was granted to a driver of this process."""
        with self._lock:
            self._owned[owned.session] = owned
            # Said between the grant and now, or after everybody was told to leave.
            if self._missed.pop(owned.session, 0) > owned.last_n:
                owned.mailbox.put(NEWS)
            if self.grace_over.is_set():
                owned.mailbox.put(DRAIN)
            if self._news is None:
                self._news = Listener(
                    self.journal.client, self._heard, "orchestrator-news", also_when_joined=self._heard_of_all
                )
                self._news.want(news_channels(self.settings.prefix))
        self.pulse.start()

    def leave(self, owned: Owned) -> None:
        """A driver has let go of its session."""
        with self._lock:
            if self._owned.get(owned.session) is owned:
                del self._owned[owned.session]
            self._empty.notify_all()

    def _heard(self, text: str) -> None:
        name, number, kind = text.split(" ", 2)
        session, n = SessionId(name), int(number)
        with self._lock:
            owned = self._owned.get(session)
            if owned is None:
                self._missed[session] = n
                while len(self._missed) > MOST_MISSED:
                    self._missed.popitem(last=False)
        if owned is not None and kind == ERASED:
            owned.lose(Gone())
        elif owned is not None:
            owned.last_n = max(owned.last_n, n)
            owned.mailbox.put(NEWS)

    def _heard_of_all(self) -> None:
        for owned in self.owned():
            owned.mailbox.put(NEWS)

    # Leaving ----------------------------------------------------------------------------------------------------------

    def drain(self, grace_seconds: float) -> bool:
        """Take nothing new, let effects end within the grace, then give back what is left. True if nothing runs here any more.

        Where something could not be stopped, `hard_exit_needed` is set: its session was given back, so the process must not live on.
        """
        self.draining.set()
        until = steady() + grace_seconds
        self._wait_empty(until)
        self.grace_over.set()
        for owned in self.owned():
            owned.mailbox.put(DRAIN)
        empty = self._wait_empty(steady() + 3.0)
        self.watch.flush()
        return empty

    def close(self) -> None:
        """End the threads. Whoever still works here is not waited for: `drain` is, and comes first."""
        if self._news is not None:
            self._news.close()
        self.pulse.close()
        self.pump.close()
        self.loops.close()
        self.threads.close()

    def _wait_empty(self, until: float) -> bool:
        with self._lock:
            while self._owned:
                left = until - steady()
                if left <= 0:
                    return False
                self._empty.wait(min(left, 0.5))
            return True

    def alone_command(self, session: SessionId) -> list[str] | None:
        """The command of a child process that carries one session on, or None where the App has no name to import it by."""
        if not self.settings.app:
            return None
        return [sys.executable, "-m", "tasks.alone", session]
