"""Tools: plain functions a model may call, and what they are told about the call.

`@tool` stores the function; the schema a model sees is made in the worker, from the signature and the docstring.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, overload

from orchestrator.approval import Approval
from orchestrator.core.names import CallId, RequestId, SessionId, TurnId
from orchestrator.core.snapshot import OnInterrupt, Principal
from orchestrator.errors import ConfigError
from orchestrator.state import StateView

NAME = re.compile(r"[a-z0-9._-]{1,48}")
TOOL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
DEFAULT_TIMEOUT_SECONDS = 900.0


class Fatal(Exception):
    """Raised by a tool: the turn cannot go on. It fails with this text; the session stays usable."""


class Retry(Exception):
    """Raised by a tool: the model should correct its arguments. It reads this text as the call's result."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """What a tool or an instruction may know of its session. `auth` is who caused the turn, None for nobody known."""

    id: SessionId
    turn: TurnId
    auth: Principal | None = None
    parent: SessionId | None = None


@dataclass(frozen=True, slots=True)
class UserFile:
    """A file that a person has sent. `size` in bytes, 0 for one behind a `url`."""

    name: str
    media_type: str
    size: int
    url: str
    _read: Callable[[], bytes] = field(repr=False)

    def read(self) -> bytes:
        """Its bytes. Raises `FileNotFoundError` with why there are none."""
        return self._read()


@dataclass(frozen=True, slots=True)
class Approved:
    """The leave that a call has: by which request, who gave it (None: nobody known), and what they said with it."""

    request: RequestId
    responder: Principal | None
    text: str = ""


@dataclass(slots=True)
class ToolContext:
    """What a tool is told about its call.

    `idempotency_key` is the same for every attempt of this call and for no other: hand it to whatever must not happen twice.
    `attempt` counts from 1. `cancelled` is set when the turn was told to stop: a long tool looks at it and returns early.
    `files` are those that people have sent and the conversation still speaks of, oldest first. `approval` says who let the call run, if
    somebody had to; it runs as whoever caused the turn all the same.
    """

    session: SessionView
    call_id: CallId
    idempotency_key: str
    attempt: int = 1
    cancelled: threading.Event = field(default_factory=threading.Event)
    state: StateView = field(default_factory=StateView)
    files: Sequence[UserFile] = ()
    approval: Approved | None = None
    _progress: Callable[[object], None] = field(default=lambda _: None, repr=False)

    def progress(self, value: object) -> None:
        """Show `value` (JSON) on the stream as what the call has to say so far. Not stored with the result."""
        self._progress(value)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Its effects may run twice when a worker dies in the middle: use `ctx.idempotency_key`. `on_interrupt="report"` never
    starts a call twice; the model is told that the outcome is unknown. `"ask"`, the default of calls that need approval, has a
    person decide whether such a call runs again. `timeout` is in seconds (None: no limit); a sync function cannot be stopped, it is
    left behind and the model is told that it may have partly run. `approval` says which calls a person must approve.
    """

    fn: Callable[..., Any]
    name: str
    timeout: float | None = DEFAULT_TIMEOUT_SECONDS
    on_interrupt: OnInterrupt = "rerun"
    approval: Approval | None = None
    is_question: bool = False

    @property
    def description(self) -> str:
        """The first paragraph of the docstring."""
        return (inspect.getdoc(self.fn) or "").split("\n\n", 1)[0]

    @property
    def takes_context(self) -> bool:
        """Whether the first parameter is the `ToolContext`."""
        return _takes_context(self.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, for tests and for other code."""
        return self.fn(*args, **kwargs)


@cache
def _takes_context(fn: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(fn).parameters.values())
    annotation: object = parameters[0].annotation if parameters else None
    return annotation is ToolContext or (isinstance(annotation, str) and annotation.rpartition(".")[2] == "ToolContext")


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
    on_interrupt: OnInterrupt | None = None,
    approval: Approval | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
    on_interrupt: OnInterrupt | None = None,
    approval: Approval | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool. Its parameters need type annotations; its docstring is what the model reads.

    A function that yields reports progress: each value but the last is shown, the last is the result.
    """

    def make(function: Callable[..., Any]) -> Tool:
        called = name or function.__name__
        if not TOOL_NAME.fullmatch(called):
            raise ConfigError(
                problem=f"{called!r} is no name for a tool.",
                remedy="Use letters, digits, '_' and '-', at most 64, beginning with a letter.",
            )
        if on_interrupt not in (None, "rerun", "report", "ask"):
            raise ConfigError(
                problem=f"The tool {called!r} has on_interrupt={on_interrupt!r}.",
                remedy='Use "rerun", "report" or "ask".',
            )
        gated = approval is not None and approval.fixed != "never"
        return Tool(function, called, timeout, on_interrupt or ("ask" if gated else "rerun"), approval)

    return make(fn) if fn is not None else make


def _ask_question(question: str, options: list[str] | None = None) -> dict[str, str]:  # noqa: ARG001  # the model's
    """Ask the person something that only they know, and wait for the answer.

    Args:
        question: The question, as the person reads it.
        options: Two or three answers to choose from, where that helps. Without them any text answers.
    """
    raise AssertionError("a question is answered by a person")


ask_question = Tool(_ask_question, "ask_question", None, is_question=True)
"""A tool with which the model asks the person. Its result is `{"status": "answered", "answer": ...}`, `unavailable` where nobody can be
asked, or `{"status": "interrupted"}` when they said something else."""
