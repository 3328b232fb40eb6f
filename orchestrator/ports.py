"""Where there are really two of a kind: what the engine needs of the world, as protocols.

The values that cross a port are here as well. Nothing in this module does anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from orchestrator.core.delivery import File
from orchestrator.core.event import Outcome
from orchestrator.core.names import SessionId, TurnId
from orchestrator.core.snapshot import Usage


class Wake(Protocol):
    """How "look at this session" is announced.

    Where broker and journal are one Redis, scripts push it themselves: `arguments` are what they need for it, and `publish`
    is never called. With any other broker `atomic` is false and the caller publishes after the script.
    """

    atomic: bool

    def arguments(self, task: str) -> Mapping[str, object]:
        """The script arguments `template wakes queue broker_db journal_db` for wakes that run `task`."""
        ...

    def publish(self, task: str, label: str, session: SessionId, key: str) -> None:
        """Announce through the broker. Losing one costs seconds, never a message."""
        ...


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class AskedTool:
    """A tool call as the model made it. `input` is JSON; a string when the arguments were not JSON at all."""

    provider_id: str
    tool: str
    input: object


@dataclass(frozen=True, slots=True)
class Answer:
    """The complete answer. `row` is the message as JSON, the history's next row, or nothing where nothing was said; `finish` is one of
    stop, tool-calls, length, content-filter, error, other."""

    row: bytes
    text: str
    reasoning: str
    finish: str
    usage: Usage
    calls: tuple[AskedTool, ...] = ()


ModelOutput = TextDelta | ReasoningDelta | Answer


class ModelFailure(Exception):
    """The model call broke. `retryable` ones are tried again, not before `retry_after` seconds when the provider said so.

    `overflow`: the history is too long for the model; it is made shorter, and the call made again, once.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        code: str = "MODEL_CALL_FAILED",
        details: Mapping[str, object] | None = None,
        overflow: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.code = code
        self.details = dict(details or {})
        self.overflow = overflow


class ToolBox(Protocol):
    """The tools of an agent as a model sees them."""

    def check(self, tool: str, given: object) -> dict[str, Any]:
        """The validated arguments of a call. Raises `WrongCall` with a text for the model."""
        ...

    @property
    def result_tool(self) -> str:
        """What the model calls to deliver the result that the turn owes; empty where it owes none."""
        ...

    def result(self, given: object) -> object:
        """The result in the arguments of that call, or in a text. Raises `WrongCall` with a text for the model where none fits."""
        ...


class WrongCall(Exception):
    """A call the model got wrong: an unknown tool, arguments that do not fit. The text is what the model reads."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request. `history` are the messages of the model layer, oldest first; it must not be changed.

    `purpose` says what the text is for: an answer to the person, or the summary that takes the place of an old history.
    `context` is told beside the history, this time. `files` are the bytes of files that the history speaks of, by blob; a text says why
    they are not there.
    """

    session: SessionId
    turn: TurnId
    step: int
    tries: int
    instructions: str
    history: Sequence[Any]
    tools: ToolBox
    purpose: Literal["answer", "summary"] = "answer"
    context: tuple[str, ...] = ()
    files: Mapping[str, bytes | str] = field(default_factory=dict)


class Model(Protocol):
    """A language model.

    One that never waits for anything may say so with an attribute `instant = True`: its answers are then made on the calling
    thread, without an event loop.
    """

    @property
    def name(self) -> str:
        """As the stream shows it, for instance `openai-chat:gpt-5`."""
        ...

    def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        """Stream an answer: deltas, then exactly one `Answer`. Raises `ModelFailure`. Closing the iterator, or
        cancelling the task that iterates, closes the provider's connection."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What the history is told about one call."""

    provider_id: str
    tool: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Message:
    """What a person said: texts in order. `pinned` marks the instructions written once at the head of a history. `files`: what stands in
    the place of a text."""

    texts: tuple[str, ...]
    pinned: bool = False
    files: Mapping[int, File] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compaction:
    """How a history gets shorter: what stands in the place of `messages[:cut]`. What follows stays as it is stored.

    Without `request` nothing has to be asked, only old results are capped. With it, a model is asked with `instructions`, no
    tools and the purpose "summary"; its text is the summary. `words` and `rest` are parts and messages of the library that
    come after the summary: what the person said last, and recent messages that had to be changed.
    """

    cut: int
    request: tuple[Any, ...] = ()
    instructions: str = ""
    words: tuple[Any, ...] = ()
    rest: tuple[Any, ...] = ()


class ModelLayer(Protocol):
    """The one door to the provider library."""

    def model(self, named: str | Model) -> Model:
        """A model by name (made once per process) or itself. Raises `ConfigError` for a name nobody knows."""
        ...

    def toolbox(self, tools: Sequence[Any]) -> ToolBox:
        """The schemas of an agent's tools (made once per tool list)."""
        ...

    def result_box(self, tools: Sequence[Any], schema: str) -> ToolBox:
        """The same with one more tool: the model is to deliver a result that fits this JSON Schema (as text)."""
        ...

    def feedback_row(self, text: str) -> bytes:
        """Why an answer cannot be used, as one history row (JSON)."""
        ...

    def message_row(self, messages: Sequence[Message]) -> bytes:
        """What people said, as one history row (JSON)."""
        ...

    def results_row(self, results: Sequence[Result]) -> bytes:
        """The results of one answer's calls, in call order, as one history row (JSON)."""
        ...

    def read(self, row: bytes) -> Any:
        """A row as a message of the library. Raises `UnreadableHistory`'s cause as `ValueError`."""
        ...

    def calls(self, message: Any) -> tuple[AskedTool, ...]:
        """The tool calls of an answer read from its row, in order."""
        ...

    def files(self, history: Sequence[Any]) -> list[File]:
        """The files that a history speaks of, oldest first."""
        ...

    async def download(self, url: str, media_type: str, limit_bytes: int) -> bytes:
        """What is behind a URL, which may be anybody's: private addresses are refused. Raises `ValueError` with why it is not to be had."""
        ...

    def context_tokens(self, model_name: str) -> int | None:
        """How many tokens a model takes in at once, where that is known. Asks nobody."""
        ...

    def compaction(
        self, messages: Sequence[Any], *, window_tokens: int, used_tokens: int | None, asked: bool
    ) -> Compaction | None:
        """How this history gets shorter, or None where there is nothing to do. Changes nothing and asks nobody.

        `used_tokens` is what the provider counted for the newest answer in `messages` and all before it; None when this
        history was not counted yet, as after a compaction. `asked` means that a person wants a summary; else the caller has found
        that the history is about to be longer than `window_tokens`, and capping old results may be enough.
        """
        ...

    def compacted(self, messages: Sequence[Any], plan: Compaction, summary: str) -> tuple[bytes, ...]:
        """The rows (JSON) in the place of `messages[:plan.cut]`. `summary` is not read where the plan has no request.

        Raises `ValueError` for an empty summary.
        """
        ...
