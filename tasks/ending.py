"""How a worker ends: it takes nothing more, lets go of its sessions within the grace, says goodbye, and never hangs.

Celery waits for every running task, for ever. So the sessions are drained beside it, by a thread that begins with the signal,
and a timer ends the process when Celery does not. In a prefork worker it is the children who carry sessions: each is told.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

BEYOND_SECONDS = 3.5
"""How long after the grace Celery has to end by itself. The engine's own drain may take three of them."""
LOOK_SECONDS = 0.1
GOODBYE_SECONDS = 1.5
RESULT_SECONDS = 0.2
"""How long a child has to hand its last result to its parent."""


class Ending:
    """The end of one worker."""

    def __init__(
        self,
        grace_seconds: float,
        *,
        drain: Callable[[float], bool],
        goodbye: Callable[[], None],
        children: Callable[[], Sequence[int]] = lambda: (),
        busy_children: Callable[[], Iterable[int]] = lambda: (),
        nudge: Callable[[], None] = lambda: None,
    ) -> None:
        """`drain` lets go of the sessions of this process and says whether it has to be ended hard."""
        self._grace = grace_seconds
        self._drain = drain
        self._goodbye = goodbye
        self._children = children
        self._busy_children = busy_children
        self._nudge = nudge
        self.begun = False
        self.code = 0

    def begin(self, code: int = 0) -> None:
        """Begin to end; only the first call does something. Returns at once: it may be a signal handler that calls."""
        if self.begun:
            return
        self.begun, self.code = True, code
        threading.Thread(target=self._end, name="orchestrator-ending", daemon=True).start()
        # Celery's own end comes first in all but bad cases; a drain that hangs must not keep us either.
        threading.Thread(target=self._at_last, name="orchestrator-deadline", daemon=True).start()

    def _end(self) -> None:
        self._nudge()
        threading.Thread(target=self._tell_children, name="orchestrator-children", daemon=True).start()
        hard = False
        try:
            hard = self._drain(self._grace)
        except Exception:
            log.exception("draining failed")
        if hard:
            log.warning("something could not be stopped: this process ends without it")
            self.now()

    def _tell_children(self) -> None:
        # Those that do nothing end with the pool. One may still be handed a message that was on its way: so we look again.
        told = set[int]()
        while True:
            for pid in set(self._busy_children()) - told:
                told.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            time.sleep(LOOK_SECONDS)

    def _at_last(self) -> None:
        time.sleep(self._grace + BEYOND_SECONDS)
        log.warning("the grace is over and Celery still waits: this process ends")
        self.now()

    def now(self) -> None:
        """End this process. What its children still run ends with it."""
        # A journal that hangs may not hold us.
        leaving = threading.Thread(target=self._goodbye, daemon=True)
        leaving.start()
        leaving.join(GOODBYE_SECONDS)
        for pid in self._children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        logging.shutdown()
        os._exit(self.code)


def end_child(grace_seconds: float, drain: Callable[[float], bool]) -> None:
    """In a child of a prefork worker: let SIGTERM mean the same as in its parent."""
    told = False

    def told_to_end(*_: object) -> None:
        # Told twice, by its group and by its parent, it still ends once; a parent in a hurry kills.
        nonlocal told
        if not told:
            told = True
            threading.Thread(target=leave, name="orchestrator-ending", daemon=True).start()

    def leave() -> None:
        try:
            drain(grace_seconds)
        except Exception:
            log.exception("draining failed")
        time.sleep(RESULT_SECONDS)
        os._exit(0)

    signal.signal(signal.SIGTERM, told_to_end)


def let_a_second_signal_kill(children: Callable[[], Sequence[int]]) -> None:
    """After Celery has set its handlers: the first SIGTERM or SIGINT is its own, a second one or SIGQUIT ends us at once.

    Celery's cold shutdown would wait for every thread of the pool.
    """
    first: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    told = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if told or number == signal.SIGQUIT:
            for pid in children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os._exit(1)
        told = True
        if callable(first[number]):
            first[number](number, frame)
        install()

    def install() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, handle)

    install()
