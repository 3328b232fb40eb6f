"""Keeping processes running: started again when they die, told to end in order, never left behind.

A child gets a session of its own, so that Ctrl-C in our terminal reaches it as our SIGTERM and not twice. Should we be killed,
the kernel tells our children (on Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

LEAST_PAUSE = 0.2
MOST_PAUSE = 5.0
PROVEN_SECONDS = 10.0
"""A process that has lived that long starts without a pause when it dies."""
PR_SET_PDEATHSIG = 1
HOPELESS = 2
"""The exit code of a process that cannot be started as it was asked for: another start changes nothing."""

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with(parent: int, number: int) -> None:
    """In a child, before it becomes what it shall be: let the kernel send it a signal when its parent ends."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)


@dataclass(slots=True)
class Child:
    """A process that shall run: what to start, how to tell it to end, and how patient to be then."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    patience_seconds: float
    orphan_signal: int = signal.SIGKILL
    quiet: bool = False
    """Its standard output goes to our standard error."""
    log: IO[bytes] | None = None
    """Where all that it says goes instead, if anywhere."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started: float = field(default=0.0, init=False)
    _pause: float = field(default=0.0, init=False)

    def start(self) -> None:
        """Start it. Call from the main thread: the kernel watches the thread that did."""
        parent, number = os.getpid(), self.orphan_signal
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=self.log or (sys.stderr.fileno() if self.quiet else None),
            stderr=self.log,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent, number),
        )

    def look(self) -> int | None:
        """Start it again if it has died, not before its pause is over. Its exit code if it cannot run at all."""
        if self.process is None or self.process.poll() is None:
            return None
        code, lived = self.process.returncode, time.monotonic() - self._started
        if code == HOPELESS:
            return code
        if self._pause == 0.0:
            self._pause = LEAST_PAUSE
            _say(f"{self.name} (pid {self.process.pid}) ended with {code}, starting it again")
        if lived >= PROVEN_SECONDS:
            self._pause = LEAST_PAUSE
        if lived >= self._pause:
            pause = min(self._pause * 2, MOST_PAUSE) if lived < PROVEN_SECONDS else LEAST_PAUSE
            self.start()
            self._pause = pause
        return None

    def tell(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Runs children until it is told to end."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = list(children)
        self._told = 0
        self._failed = 0

    def run(self, each_time: Callable[[], None] = lambda: None) -> int:
        """Start all, look after them until SIGTERM or SIGINT, then end them in the order they were given in."""
        before = {number: signal.signal(number, self._told_to_end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for child in self._children:
                child.start()
            while not self._told and not self._failed:
                for child in self._children:
                    self._failed = self._failed or child.look() or 0
                each_time()
                _nap(0.1, lambda: bool(self._told))
            self._end()
        finally:
            for child in self._children:
                child.tell(signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._failed

    def end(self) -> None:
        """End them, as SIGTERM does."""
        self._told += 1

    def _told_to_end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._told += 1
        if self._told == 2:
            _say("ending at once")

    def _end(self) -> None:
        for patience in dict.fromkeys(child.patience_seconds for child in self._children):
            group = [child for child in self._children if child.patience_seconds == patience]
            for child in group:
                child.tell(signal.SIGTERM)
            until = time.monotonic() + patience
            while any(child.lives for child in group) and time.monotonic() < until and self._told < 2:
                time.sleep(0.02)
            for child in group:
                if child.lives:
                    _say(f"{child.name} does not end in time, killing it")
                child.tell(signal.SIGKILL)
                if child.process is not None:
                    child.process.wait()


def _nap(seconds: float, over: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not over() and time.monotonic() < until:
        time.sleep(0.02)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
