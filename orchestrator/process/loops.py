"""Event loops on threads of their own, and threads for functions that block.

Model calls and async tools are coroutines here; the threads of Celery's pool wait for what they yield.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

STREAMS_PER_LOOP = 50
T = TypeVar("T")


class Running:
    """A coroutine that runs on one of the loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, leave: Callable[[], None]) -> None:
        self._loop = loop
        self._leave = leave
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self.ended = threading.Event()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin; called on the loop's own thread."""
        if self._cancelled:
            work.close()
            self._finish(None)
            return
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.cancelled():
            task.exception()
        self._leave()
        self.ended.set()

    def cancel(self) -> None:
        """Cancel it. Returns at once; `ended` says when it is over."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


class Loops:
    """As many loops as the running streams need, made when they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: list[tuple[asyncio.AbstractEventLoop, list[int]]] = []

    def run(self, work: Coroutine[Any, Any, None]) -> Running:
        """Run a coroutine on the loop that has least to do."""
        with self._lock:
            loop, load = min(self._loops, key=lambda pair: pair[1][0], default=(None, [0]))
            if loop is None or load[0] >= STREAMS_PER_LOOP:
                loop, load = self._new()
            load[0] += 1

        def leave() -> None:
            with self._lock:
                load[0] -= 1

        running = Running(loop, leave)
        loop.call_soon_threadsafe(running.start, work)
        return running

    def _new(self) -> tuple[asyncio.AbstractEventLoop, list[int]]:
        loop, load = asyncio.new_event_loop(), [0]
        self._loops.append((loop, load))
        threading.Thread(target=loop.run_forever, name=f"orchestrator-loop-{len(self._loops)}", daemon=True).start()
        return loop, load


class Threads:
    """Threads for sync tools. Ours, so that a tool that hangs takes a thread of nobody else."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="orchestrator-tool")

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Run a function."""
        return self._pool.submit(work)
