"""The only place that touches the world: models and tools.

What happens out there comes back through a mailbox, as values; nobody here knows of Redis or decides anything.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from pydantic_core import PydanticSerializationError, to_jsonable_python

from orchestrator.core import codec
from orchestrator.core.event import Outcome, encode, storable
from orchestrator.core.names import CallId
from orchestrator.core.snapshot import Call
from orchestrator.errors import UnreadableHistory
from orchestrator.ports import Answer, Model, ModelCall, ModelFailure, ReasoningDelta, TextDelta
from orchestrator.process.loops import Loops, Running, Threads
from orchestrator.state import Change
from orchestrator.tool import Fatal, Retry, Tool, ToolContext

RESULT_LIMIT = 1024 * 1024
"""Bytes of JSON that one tool result may have."""
ERROR_LIMIT = 8_000
"""Characters of an error's text that the model is told."""
RESULT_DEPTH = codec.MAX_DEPTH - 8
"""How deep it may be nested: a record has some levels of its own, and must be readable after a crash."""
Mailbox = SimpleQueue[object]
Say = Callable[[str, str], None]
Ours = Callable[[], bool]
"""Whether the session is still owned here. Asked last, where a loop or a thread at last begins what it was handed."""


class Stop(BaseException):
    """The work on a session must end here. Caught in turn/carry.py only; no tool can eat it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The model's answer is complete."""

    run: object
    answer: Answer


@dataclass(frozen=True, slots=True)
class Broke:
    """The model call broke."""

    run: object
    failure: ModelFailure


@dataclass(frozen=True, slots=True)
class Returned:
    """A tool call has its outcome, and perhaps changes of state. `fatal` is why the turn cannot go on."""

    run: object
    call: CallId
    outcome: Outcome
    changes: tuple[Change, ...] = ()
    fatal: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A function of the user's own has judged something: what it said, or why it could not."""

    run: object
    about: str
    said: object = None
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Nothing was begun: by then the session may have been another's."""

    run: object
    call: CallId | None = None


class Run(Protocol):
    """Something that is going on out there."""

    @property
    def ended(self) -> threading.Event: ...
    def cancel(self) -> None: ...


def ask_model(model: Model, call: ModelCall, say: Say, mailbox: Mailbox, loops: Loops, run: object, ours: Ours) -> Run:
    """Call the model. Its deltas go to `say`, then exactly one `Answered`, `Broke` or `Withheld` into the mailbox, unless it is
    cancelled."""

    async def ask() -> None:
        if not ours():
            mailbox.put(Withheld(run))
            return
        answer: Answer | None = None
        try:
            async for out in model.answer(call):
                match out:
                    case TextDelta(text):
                        say("message", text)
                    case ReasoningDelta(text):
                        say("reasoning", text)
                    case Answer():
                        answer = out
            if answer is None:
                raise ModelFailure("The model's stream ended without an answer.", retryable=True)
        except ModelFailure as failure:
            mailbox.put(Broke(run, failure))
        except asyncio.CancelledError:
            # If it was us, nobody listens any more; else the model has waited for something that was cancelled.
            mailbox.put(Broke(run, ModelFailure("The model's call was cancelled from within.", retryable=True)))
            raise
        except UnreadableHistory as unreadable:
            mailbox.put(unreadable)
        except Exception as broken:
            text = f"{type(broken).__name__}: {broken}"
            mailbox.put(Broke(run, ModelFailure(text, retryable=False, details={"name": type(broken).__name__})))
        else:
            mailbox.put(Answered(run, answer))

    if getattr(model, "instant", False):
        return _now(ask())
    return loops.run(ask())


def judge(
    fn: Callable[[Any], object],
    given: object,
    about: str,
    mailbox: Mailbox,
    loops: Loops,
    threads: Threads,
    run: object,
) -> Run:
    """Let a function of the user's own, sync or async, judge something. Its `Judged` comes into the mailbox, whatever happens in it."""

    def broke(broken: BaseException) -> None:
        mailbox.put(Judged(run, about, broken=f"{type(broken).__name__}: {_said(broken)}"))

    async def wait_for(found: Any) -> None:
        try:
            mailbox.put(Judged(run, about, await found))
        except asyncio.CancelledError:
            raise
        except BaseException as broken:
            broke(broken)

    if inspect.iscoroutinefunction(fn):
        return loops.run(wait_for(fn(given)))
    going = Done()
    going.ended.clear()

    def block() -> None:
        try:
            found = fn(given)
            if inspect.isawaitable(found):
                loops.run(wait_for(found))
            else:
                mailbox.put(Judged(run, about, found))
        except BaseException as broken:
            broke(broken)
        finally:
            going.ended.set()

    threads.run(block)
    return going


def _now(work: Coroutine[Any, Any, None]) -> Done:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return Done()
    work.close()
    raise RuntimeError("a model that says it is instant has waited for something")


class Done:
    """Something that was over as soon as it began."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.ended.set()

    def cancel(self) -> None:
        """Nothing is left to cancel."""


@dataclass(slots=True)
class ToolRun:
    """One tool call that is going on. A sync function cannot be stopped: `cancel` only tells it."""

    call: Call
    until: float
    context: ToolContext
    running: Running | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Tell it to stop; a coroutine is stopped."""
        self.context.cancelled.set()
        if self.running is not None:
            self.running.cancel()

    @property
    def unstoppable(self) -> bool:
        """Whether it still runs and nothing can be done about it."""
        return not self.ended.is_set() and self.running is None


def run_tool(
    call: Call,
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext,
    mailbox: Mailbox,
    loops: Loops,
    threads: Threads,
    run: object,
    now: float,
    ours: Ours,
) -> ToolRun:
    """Start a tool call. Its `Returned` comes into the mailbox, whatever happens in the tool, or `Withheld`."""
    going = ToolRun(call, now + tool.timeout if tool.timeout is not None else float("inf"), context)
    given = (context,) if tool.takes_context else ()

    if inspect.iscoroutinefunction(tool.fn) or inspect.isasyncgenfunction(tool.fn):

        async def work() -> None:
            try:
                if not ours():
                    mailbox.put(Withheld(run, call.id))
                    return
                if inspect.isasyncgenfunction(tool.fn):
                    value = await _last_async(tool.fn(*given, **arguments), context)
                else:
                    value = await tool.fn(*given, **arguments)
                mailbox.put(_returned(run, call, value, context))
            except asyncio.CancelledError:
                if not context.cancelled.is_set():
                    # Nobody of ours has cancelled it: it has waited for something that was.
                    mailbox.put(_raised(run, call, RuntimeError("The tool was cancelled from within.")))
                raise
            except BaseException as broken:
                mailbox.put(_raised(run, call, broken))
            finally:
                going.ended.set()

        going.running = loops.run(work())
        return going

    def block() -> None:
        if context.cancelled.is_set():  # it was given up while it waited for a thread
            going.ended.set()
            return
        try:
            if not ours():
                mailbox.put(Withheld(run, call.id))
                return
            value = tool.fn(*given, **arguments)
            if inspect.isgenerator(value):
                value = _last(value, context)
            mailbox.put(_returned(run, call, value, context))
        except BaseException as broken:
            mailbox.put(_raised(run, call, broken))
        finally:
            going.ended.set()

    threads.run(block)
    return going


def _last(values: Any, context: ToolContext) -> object:
    last: object = None
    first = True
    for value in values:
        if not first:
            context.progress(last)
        last, first = value, False
    return last


async def _last_async(values: Any, context: ToolContext) -> object:
    last: object = None
    first = True
    async for value in values:
        if not first:
            context.progress(last)
        last, first = value, False
    return last


def _returned(run: object, call: Call, value: object, context: ToolContext) -> Returned:
    try:
        plain = plain_json(value)
    except ValueError as broken:
        return Returned(run, call.id, failed("RESULT_NOT_STORABLE", str(broken)))
    return Returned(run, call.id, Outcome("completed", plain), tuple(context.state.changes))


def _raised(run: object, call: Call, broken: BaseException) -> Returned:
    match broken:
        case Fatal():
            text = storable(_said(broken)) or "The tool said that the turn cannot go on."
            return Returned(run, call.id, failed("TOOL_FATAL", text, "Fatal"), fatal=text)
        case Retry():
            return Returned(run, call.id, failed("TOOL_RETRY", _said(broken), "Retry"))
        case _:
            name, text = type(broken).__name__, _said(broken)
            return Returned(run, call.id, failed("ACTION_RESULT_FAILED", f"{name}: {text}" if text else name, name))


def _said(broken: BaseException) -> str:
    """The text of an exception, which may be one that has none to give."""
    try:
        return str(broken)
    except Exception:
        return ""


def plain_json(value: object) -> object:
    """A value as JSON has it, so that what is stored is what a repeat would see. Raises `ValueError` with what to do."""
    if value is None or type(value) is bool or (type(value) is int and abs(value) < 2**63):
        return value
    if isinstance(value, str) and len(value) < RESULT_LIMIT // 4:
        return storable(value)
    try:
        plain: object = to_jsonable_python(value, inf_nan_mode="strings")
        text = encode(plain)
        if (kept := storable(text)) is not text:
            plain, text = json.loads(kept), kept
        size = len(text.encode())
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as broken:
        raise ValueError(
            f"The tool's result ({type(value).__name__}) cannot be stored as JSON: {str(broken)[:200]}. "
            "Return text, numbers, lists, dicts, dataclasses or pydantic models."
        ) from broken
    if codec.too_deep(plain, RESULT_DEPTH):
        raise ValueError(f"The tool's result is nested deeper than {RESULT_DEPTH}. Return something flatter.")
    if size > RESULT_LIMIT:
        raise ValueError(f"The tool's result has {size} bytes as JSON; the limit is {RESULT_LIMIT}. Return less.")
    return plain


def failed(code: str, message: str, name: str = "") -> Outcome:
    """The outcome of a call that went wrong."""
    message = storable(message if len(message) <= ERROR_LIMIT else f"{message[:ERROR_LIMIT]}…")
    error = {"code": code, "message": message, **({"name": name} if name else {})}
    return Outcome("failed", {"code": code, "message": message}, error)
