"""What comes in: a delivery is admitted once, looked at through its head, and used or dropped by one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.core.names import NEVER, DeliveryId, Millis, RequestId
from orchestrator.core.snapshot import Principal

DeliveryKind = Literal["message", "answers", "cancel", "clear", "compact", "reset", "tail_seen"]
Control = Literal["clear", "compact", "reset"]
TurnPolicy = Literal["steer", "queue"]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to one request: the option that was chosen, or that there is a text (in the body)."""

    request: RequestId
    option: str = ""
    text: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """An answer to one request as it is given: the option that was chosen, a text, or both."""

    request: RequestId
    option: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is stored as a delivery's head. `guard`: the turn a cancel is meant for, the index a reader had seen, or why a reset was
    asked for. `trace`: the trace it came in (a `traceparent`), if any. `size`: the bytes of its body, without its `files`, which are
    counted. `words`: a message of few words, as options are compared with. `answers`: to requests."""

    kind: str
    principal: Principal | None = None
    policy: str = "steer"
    guard: str = ""
    trace: str = ""
    at: Millis = NEVER
    size: int = 0
    words: str = ""
    answers: tuple[Answered, ...] = ()
    files: int = 0
    v: int = 1
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """A delivery as `advance` sees it: `n` is its admission number, `at_seq` the journal position it saw."""

    id: DeliveryId
    n: int
    at_seq: int
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class File:
    """A file of a message. Its bytes are in the journal under `blob`; those behind a `url` from when they were first needed.

    `size` in bytes, 0 while nobody knows. `channel` is what may fetch the URL itself. `data` are the bytes on their way in: they are not
    stored with the message.
    """

    media_type: str
    name: str = ""
    size: int = 0
    url: str = ""
    blob: str = ""
    channel: str = ""
    data: bytes = b""
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """What stands for it in a text."""
        return f"[file: {self.name} ({self.media_type})]" if self.name else f"[file: {self.media_type}]"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message. The text of a file is what stands for it."""

    type: Literal["text", "file"]
    text: str
    file: File | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Body:
    """A message as it was sent: its parts, in order. Of answers: their texts, one for each that has one.

    `context` is what the model is told beside it in its turn only, `output` the JSON Schema (as text) of the result it wants.
    """

    parts: tuple[Part, ...]
    context: tuple[str, ...] = ()
    output: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The parts' text, one after the other on lines of their own."""
        return "\n".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Aside:
    """What came with the messages of a turn beside what they say: context in their order, and the schema that was asked for last."""

    context: tuple[str, ...] = ()
    output: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.context or self.output)

    def also(self, body: Body) -> Aside:
        """With what came with one more message."""
        return Aside((*self.context, *body.context), body.output or self.output, self.extra)


NO_ASIDE = Aside()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something to be admitted. `blobs` are the bytes of its files, by the names under which its body speaks of them."""

    id: DeliveryId
    envelope: Envelope
    body: Body | None = None
    blobs: Mapping[str, bytes] = field(default_factory=dict)
