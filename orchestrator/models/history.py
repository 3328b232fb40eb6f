"""A history as a provider accepts it: repaired before every request, at a cost that does not grow with its length.

What lies before a point where every call has its result cannot change any more. That part is looked at once per process; a
later request takes it as it is, with the few places that had to be repaired put in.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)

SESSIONS_KEPT = 4096
"""Sessions whose settled part is remembered; a forgotten one is looked at again."""


@dataclass(frozen=True, slots=True)
class _Patch:
    """The messages `begin` to `end` (exclusive), which are `before`, are sent as `instead`."""

    begin: int
    end: int
    before: tuple[weakref.ref[ModelMessage], ...]
    instead: tuple[ModelMessage, ...]


@dataclass(frozen=True, slots=True)
class _Settled:
    """The first `upto` messages are settled. A history that has grown is known again by the `first` and the `last` of
    them and by all that is patched; one that was made shorter may share any of its messages with the one before."""

    upto: int
    first: weakref.ref[ModelMessage]
    last: weakref.ref[ModelMessage]
    patches: tuple[_Patch, ...]

    def begins(self, history: Sequence[ModelMessage]) -> bool:
        """Whether this is the beginning of `history`."""
        return (
            self.upto <= len(history)
            and history[self.upto - 1] is self.last()
            and history[0] is self.first()
            and all(
                now is before()
                for patch in self.patches
                for now, before in zip(history[patch.begin : patch.end], patch.before, strict=True)
            )
        )


class Repairs:
    """What is known of the settled parts of histories. Safe to use from several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Settled] = OrderedDict()
        self._lock = threading.Lock()

    def sendable(
        self, session: str, history: Sequence[ModelMessage], instructions: str = "", context: Sequence[str] = ()
    ) -> list[ModelMessage]:
        """The messages to send: `history` repaired, with `instructions` on the last request and `context` in it, before what the
        person says there and behind the results. The files are to be put in yet. `history` is not changed."""
        with self._lock:
            known = self._known.get(session)
        begin = 0
        patches: tuple[_Patch, ...] = ()
        if known is not None and known.begins(history):
            begin, patches = known.upto, known.patches
        upto = _last_settled(history, begin)
        if upto > begin:
            patches += _patches(history, begin, upto)
            ends = weakref.ref(history[0]), weakref.ref(history[upto - 1])
            self._remember(session, _Settled(upto, *ends, patches))
        messages = list(history)
        messages[upto:] = _repaired(history[upto:])
        for patch in reversed(patches):
            messages[patch.begin : patch.end] = patch.instead
        if context:
            _tell(messages, context)
        if instructions:
            _instruct(messages, instructions)
        return messages

    def _remember(self, session: str, settled: _Settled) -> None:
        with self._lock:
            self._known[session] = settled
            self._known.move_to_end(session)
            if len(self._known) > SESSIONS_KEPT:
                self._known.popitem(last=False)


def _instruct(messages: list[ModelMessage], instructions: str) -> None:
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, ModelRequest):
            messages[place] = replace(message, instructions=instructions)
            return


def _tell(messages: list[ModelMessage], context: Sequence[str]) -> None:
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, ModelRequest):
            parts, told = message.parts, [UserPromptPart(text) for text in context]
            begin = _begin_of_words(message)
            messages[place] = replace(message, parts=[*parts[:begin], *told, *parts[begin:]])
            return


def _begin_of_words(message: ModelRequest) -> int:
    """Where in a request begins what the person says: behind results, pinned instructions and a summary."""
    marks = message.metadata or {}
    marked = {*marks.get("pinned", ()), *marks.get("summary", ())}
    said = (p for p, part in enumerate(message.parts) if isinstance(part, UserPromptPart) and p not in marked)
    return next(said, len(message.parts))


def _repaired(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    kept = [cleaned for message in messages if (cleaned := _without_unsigned_thinking(message)) is not None]
    return repair_messages(kept)


def _without_unsigned_thinking(message: ModelMessage) -> ModelMessage | None:
    """A cut answer's thinking has no signature, and a provider that checks signatures refuses it for ever."""
    if not isinstance(message, ModelResponse) or message.state == "complete":
        return message
    parts = [part for part in message.parts if not (isinstance(part, ThinkingPart) and not part.signature)]
    if len(parts) == len(message.parts):
        return message
    return replace(message, parts=parts) if parts else None


def _patches(history: Sequence[ModelMessage], begin: int, end: int) -> tuple[_Patch, ...]:
    found = _patch(history, begin, end)
    if found is None:
        return ()
    # Something in here is broken: find the small pieces, so that the rest is not kept in memory for it.
    patches = []
    for place in range(begin + 1, end + 1):
        if place == end or _is_settled(history, place):
            if piece := _patch(history, begin, place):
                patches.append(piece)
            begin = place
    return tuple(patches)


def _patch(history: Sequence[ModelMessage], begin: int, end: int) -> _Patch | None:
    before = history[begin:end]
    after = _repaired(before)
    if len(after) == len(before) and all(a is b for a, b in zip(after, before, strict=True)):
        return None
    return _Patch(begin, end, tuple(map(weakref.ref, before)), tuple(after))


def _last_settled(history: Sequence[ModelMessage], floor: int) -> int:
    for place in range(len(history) - 1, floor, -1):
        if _is_settled(history, place):
            return place
    return floor


def _is_settled(history: Sequence[ModelMessage], place: int) -> bool:
    """Whether what is before `place` needs nothing from there on: no call is open, and nothing would be joined across."""
    before, here = history[place - 1], history[place]
    if isinstance(before, ModelResponse):
        return isinstance(here, ModelRequest) and not _called(before)
    if not isinstance(here, ModelResponse) or place < 2:
        return False
    asked = history[place - 2]
    return isinstance(asked, ModelResponse) and sorted(_called(asked)) == sorted(
        part.tool_call_id for part in before.parts if isinstance(part, ToolReturnPart)
    )


def _called(response: ModelResponse) -> list[str]:
    return [part.tool_call_id for part in cast("Sequence[object]", response.parts) if isinstance(part, ToolCallPart)]
