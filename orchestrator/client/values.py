"""What the API speaks of beside events: requests and answers to them, usage, and how sessions are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, and what they cost where the price is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            sum(costs) if costs else None,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed: a code for programs, a text for people."""

    code: str
    message: str
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """A tool call as it was asked for, or would run. Kinds other than `tool-call` name themselves in other fields of the raw data."""

    kind: str
    call_id: str = ""
    tool_name: str = ""
    input: Any = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call gave: `output` is JSON."""

    kind: str
    call_id: str = ""
    tool_name: str = ""
    output: Any = None
    is_error: bool = False
    error_name: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One of the answers that a request offers."""

    id: str
    label: str = ""
    description: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to one request: an option of it, a text, or both."""

    request_id: str
    option: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What a turn asks people. `kind` is `tool-approval`, `question` or `session-limit`."""

    request_id: str
    kind: str
    prompt: str = ""
    action: Action | None = None
    options: tuple[Option, ...] = ()
    display: str = ""
    allow_freeform: bool = False

    def answer(self, option: str = "", text: str = "") -> Answer:
        """Any answer: the id of an option, a text, or both."""
        return Answer(self.request_id, option, text)

    def approve(self, text: str = "") -> Answer:
        """Leave for the call of a `tool-approval`."""
        return Answer(self.request_id, "approve", text)

    def deny(self, text: str = "") -> Answer:
        """No leave for it. The model reads the text."""
        return Answer(self.request_id, "cancel", text)


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a request ended: approved, denied, answered, cancelled, ignored or invalid."""

    request_id: str
    kind: str
    outcome: str
    response: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request and all that became of it. Times are milliseconds since 1970; `link` is there while it is open, for who may answer."""

    request_id: str
    kind: str
    state: str
    turn_id: str = ""
    prompt: str = ""
    action: Action | None = None
    options: tuple[Option, ...] = ()
    digest: str = ""
    requester: Any = None
    asked_ms: int | None = None
    expires_ms: int | None = None
    option_id: str | None = None
    text: str | None = None
    decided_by: Any = None
    ended_ms: int | None = None
    answers: tuple[Any, ...] = ()
    link: str | None = None


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as it is now. `events` is how many its stream has, `waiting` how many messages wait, `turn_id` the open turn."""

    session_id: str
    agent: str
    status: str
    events: int
    turn_id: str | None = None
    waiting: int = 0
    attempt: int = 0
    epoch: int = 0
    created_ms: int = 0
    deployment: str = ""


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """A session in a list, and when it was last used (milliseconds since 1970)."""

    session_id: str
    last_activity_ms: int


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server can do its work. `said` is all that it says of itself."""

    ok: bool
    journal: str
    said: Mapping[str, Any]
