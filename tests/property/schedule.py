"""One thing at a time, in an order that a die decides: workers pause before each call of the journal, effects wherever they wait.

A worker is the real driver on a thread of its own, but only one thread runs at any moment, and who goes on is the test's choice.
So the same seed is the same story.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator
from queue import Empty
from typing import Any


class Crash(BaseException):
    """The process died here."""


class Pause:
    """Awaited where an effect may be overtaken by anything else."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _Thread:
    """A thread that is used again and again."""

    def __init__(self) -> None:
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.work: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="property", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            assert self.work is not None
            self.work()
            self.work = None
            self.back.release()


_IDLE: list[_Thread] = []


class Fiber:
    """Work that can be stopped in the middle, and left there."""

    current: Fiber | None = None

    def __init__(self, work: Callable[[], None]) -> None:
        self.done = False
        self.ready: Callable[[], bool] = lambda: True
        self.broken: BaseException | None = None
        self._killed = False
        self._work = work
        self._thread = _IDLE.pop() if _IDLE else _Thread()
        self._thread.work = self._run

    def _run(self) -> None:
        try:
            if not self._killed:
                self._work()
        except Crash:
            pass
        except BaseException as broken:
            self.broken = broken
        self.done = True

    def resume(self) -> None:
        """Let it go on until it pauses or ends. Raises what it raised."""
        before, Fiber.current = Fiber.current, self
        self._thread.go.release()
        self._thread.back.acquire()
        Fiber.current = before
        if self.done:
            _IDLE.append(self._thread)
            if self.broken is not None:
                raise self.broken

    def pause(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Called by the work itself: others first."""
        self.ready = ready
        self._thread.back.release()
        self._thread.go.acquire()
        if self._killed:
            raise Crash

    def kill(self) -> None:
        """It never gets to do anything again."""
        self._killed = True
        while not self.done:
            self.resume()


class Box:
    """A mailbox whose reader lets others work while it is empty."""

    steady: Callable[[], float]

    def __init__(self) -> None:
        self._items: list[object] = []

    def put(self, item: object) -> None:
        """Add something."""
        self._items.append(item)

    def empty(self) -> bool:
        """Whether there is nothing."""
        return not self._items

    def get(self, timeout: float | None = None) -> object:
        """The next thing. Raises `Empty` after so many seconds of the world."""
        until = float("inf") if timeout is None else Box.steady() + timeout
        if not self._items:
            assert Fiber.current is not None
            Fiber.current.pause(lambda: bool(self._items) or Box.steady() >= until)
        if not self._items:
            raise Empty
        return self._items.pop(0)

    def get_nowait(self) -> object:
        """The next thing that is there. Raises `Empty`."""
        if not self._items:
            raise Empty
        return self._items.pop(0)


class Doing:
    """A coroutine out there: a model call, an async tool. It stands where `process.loops` hands one out."""

    def __init__(self, owner: object, work: Coroutine[Any, Any, None]) -> None:
        self.owner = owner
        self.ended = threading.Event()
        self._work = work

    def step(self) -> None:
        """Let it go on to its next pause."""
        try:
            self._work.send(None)
        except (StopIteration, asyncio.CancelledError):
            self.ended.set()

    def cancel(self) -> None:
        """Stop it at its pause."""
        if self.ended.is_set():
            return
        with contextlib.suppress(StopIteration, asyncio.CancelledError):
            self._work.throw(asyncio.CancelledError())
        self._work.close()
        self.ended.set()


class Block:
    """A function out there: a sync tool or handler, which cannot be stopped."""

    def __init__(self, owner: object, work: Callable[[], object]) -> None:
        self.owner = owner
        self.ended = threading.Event()
        self._work = work
        self._came: object = None
        self._broken: Exception | None = None

    def step(self) -> None:
        """All of it."""
        try:
            self._came = self._work()
        except Exception as broken:
            self._broken = broken
        self.ended.set()

    def result(self, seconds: float) -> object:
        """What came of it; others go on meanwhile. Raises what it raised, or `TimeoutError` after so many seconds of the world."""
        until = Box.steady() + seconds
        if not self.ended.is_set():
            assert Fiber.current is not None
            Fiber.current.pause(lambda: self.ended.is_set() or Box.steady() >= until)
        if not self.ended.is_set():
            raise TimeoutError
        if self._broken is not None:
            raise self._broken
        return self._came
