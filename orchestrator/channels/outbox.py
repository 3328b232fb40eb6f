"""The poster: what commits have left in a session's outbox is told to the handlers of its channels, in order.

At least once: an entry leaves the outbox after its handler has returned, so a process that dies in between posts it again, under the
same key. A handler that raises is tried again later, and what stands behind it waits. One that goes on raising is given up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from concurrent.futures import Future
from functools import partial
from typing import Any

from orchestrator.channels.channel import Channel, Handler, ReplyTo
from orchestrator.channels.entries import Entry
from orchestrator.clock import steady
from orchestrator.core.names import SessionId, Token
from orchestrator.errors import JournalAway
from orchestrator.process.shared import Process

log = logging.getLogger(__name__)

SPARE_MS = 5_000
"""How much longer than its handler may take an entry is ours: the time to say that it was posted."""
FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 300_000
ELSEWHERE_TRIES = 8
"""How often an entry is looked at that this version cannot post: two minutes in which a worker of another version may come for it."""
MOST_AT_ONCE = 256
"""Entries that one visit posts; the next visit goes on."""
PATIENCE = 5.0


def post_outbox(process: Process, session: SessionId) -> int:
    """Post what is due of a session's outbox, unless another process does. Returns how many entries it is rid of.

    Whatever a handler does, nothing is raised. What is left is in `due`: somebody comes for it.
    """
    try:
        return _post_all(process, session)
    except JournalAway as away:
        log.warning("%s: its outbox is left for later, the journal does not answer: %s", session, away)
        return 0


def _post_all(process: Process, session: SessionId) -> int:
    longest = max((channel.timeout_seconds for channel in process.app.channels), default=0.0)
    lease_ms = int(longest * 1000) + SPARE_MS
    posted = 0
    while posted < MOST_AT_ONCE and not process.draining.is_set():
        # One at a time: what was posted and not yet settled when a process dies is posted again. A holder of its own for each: a
        # settlement that comes late must not be taken for that of the next.
        holder = process.new_token()
        taken = process.repeat(partial(process.journal.take_out, session, holder, lease_ms, 1), patience=PATIENCE)
        if not taken:
            return posted
        pause = None if taken[0].done else _post(process, session, taken[0].entry, taken[0].tries)
        _settle(process, session, holder, pause)
        if pause is not None:
            return posted
        posted += 1
    return posted


def _settle(process: Process, session: SessionId, holder: Token, pause: int | None) -> None:
    done, retry_in_ms = (1, 0) if pause is None else (0, pause)
    process.repeat(
        lambda: process.journal.settle_out(session, holder, done, retry_in_ms=retry_in_ms), patience=PATIENCE
    )


def _post(process: Process, session: SessionId, packed: bytes, tries: int) -> int | None:
    """Tell a handler. None: rid of it; else in how many ms it is to be tried again."""
    key, most = f"{session}/?", ELSEWHERE_TRIES
    try:
        entry = Entry.unpack(packed)
        event = entry.event
        key = entry.key(session, event)
        channel, handler = _listener(process, entry)
        most = channel.tries
        to = ReplyTo(entry.channel, entry.address, session, key, tries)
        _run(process, handler, (event, to), channel.timeout_seconds)
    except Exception as broken:
        if tries >= most:
            log.exception("%s: given up after %d tries", key, tries)
            return None
        pause = int(min(FIRST_PAUSE_MS * 2.0 ** min(tries - 1, 30), LONGEST_PAUSE_MS))
        log.warning("%s: try %d failed, the next comes in %g s: %r", key, tries, pause / 1000, broken)
        return pause
    return None


class NotHere(Exception):
    """This version of the App has no such handler."""


def _listener(process: Process, entry: Entry) -> tuple[Channel, Handler]:
    for channel in process.app.channels:
        if channel.name == entry.channel and (handler := channel.handler(entry.handler)) is not None:
            return channel, handler
    raise NotHere(f"no handler {entry.handler} of a channel {entry.channel}")


class HandlerLeft(Exception):
    """A handler wanted to end the process, or was cancelled: it has failed as any other."""


def _run(process: Process, handler: Handler, given: tuple[Any, ...], seconds: float) -> None:
    """Call a handler, sync on a thread or async on a loop of the process. Raises what it raises, `TimeoutError` if it takes too long."""
    until = steady() + seconds
    if _is_async(handler.run):
        _on_loop(process, handler.run(*given), seconds)
        return

    def call() -> object:
        try:
            return handler.run(*given)
        except Exception:
            raise
        except BaseException as left:
            raise HandlerLeft(repr(left)) from left

    found = process.threads.run(call).result(seconds)
    if inspect.isawaitable(found):
        _on_loop(process, found, max(until - steady(), 0.001))


def _is_async(run: Any) -> bool:
    return inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(getattr(run, "__call__", None))  # noqa: B004


def _on_loop(process: Process, work: Any, seconds: float) -> None:
    ended: Future[None] = Future()

    async def watched() -> None:
        try:
            async with asyncio.timeout(seconds):
                await work
        except Exception as broken:
            ended.set_exception(broken)
        except asyncio.CancelledError:
            ended.set_exception(HandlerLeft("cancelled"))
            raise
        except BaseException as left:
            # Passed on, it would end the loop, and with it what else runs there.
            ended.set_exception(HandlerLeft(repr(left)))
        else:
            ended.set_result(None)

    process.loops.run(watched())
    ended.result(seconds + SPARE_MS / 2000)
