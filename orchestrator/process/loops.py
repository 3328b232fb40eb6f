"""Event loops on threads of their own, and threads for functions that block.

Model calls and async tools are coroutines here; the threads of Celery's pool wait for what they yield.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

STREAMS_PER_LOOP = 50
END_SECONDS = 1.0
"""How long the end of a loop is waited for."""
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
        with suppress(RuntimeError):  # the loop has ended, and has cancelled it
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
        self._threads: list[threading.Thread] = []

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
        # A factory, so that the runner does not set the loop of the thread that asks for it.
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop, load = runner.get_loop(), [0]
        self._loops.append((loop, load))
        name = f"orchestrator-loop-{len(self._loops)}"
        self._threads.append(threading.Thread(target=_live, args=(runner,), name=name, daemon=True))
        self._threads[-1].start()
        return loop, load

    def close(self) -> None:
        """Cancel what runs and end the loops. A coroutine that does not let itself be cancelled is left behind."""
        with self._lock:
            loops, self._loops = self._loops, []
            threads, self._threads = self._threads, []
        for loop, _ in loops:
            loop.call_soon_threadsafe(loop.stop)
        for thread in threads:
            thread.join(END_SECONDS)


def _live(runner: asyncio.Runner) -> None:
    # The runner cancels what is left and closes the loop when it is stopped.
    with runner:
        runner.get_loop().run_forever()


class Threads:
    """Threads for sync tools. Ours, so that a tool that hangs takes a thread of nobody else."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="orchestrator-tool")

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Run a function, in the context of whoever asks for it, as coroutines are."""
        return self._pool.submit(copy_context().run, work)

    def close(self) -> None:
        """Begin nothing more. A function that runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
