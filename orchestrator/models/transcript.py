"""A conversation as a text that another model reads: one JSON object a line.

A line is JSON so that nothing in a result can pass for a word of the person. It is no history of calls and results: some
providers refuse those where a request has no tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import to_jsonable_python

from orchestrator.models import capping, rows

LEVELS = ((8_000, 64_000), (2_000, 16_000), (500, 4_000), (150, 500))
"""Bytes that a result and a text may have, tried in this order until the whole fits."""
Known = Callable[[ModelMessage, int], bool]


def transcript(messages: Sequence[ModelMessage], limit: int, without: Known) -> list[str]:
    """The lines of `messages` in about `limit` bytes. Parts that `without(message, place)` knows are not among them.

    Long results are cut before long texts, and only where all that is not enough the oldest lines are left out.
    """
    lines: list[str] = []
    for of_result, of_text in LEVELS:
        lines = [line for message in messages for line in _lines(message, without, of_result, of_text)]
        if sum(map(capping.size, lines)) <= limit:
            return lines
    sizes = accumulate(map(capping.size, reversed(lines)))
    kept = sum(1 for _ in takewhile(lambda total: total <= limit, sizes))
    return [_line({"left_out": f"{len(lines) - kept} older entries"}), *lines[len(lines) - kept :]]


def _lines(message: ModelMessage, without: Known, of_result: int, of_text: int) -> Iterator[str]:
    cut = isinstance(message, ModelResponse) and message.state != "complete"
    for place, part in enumerate(message.parts):
        if without(message, place) or isinstance(part, ThinkingPart):
            continue
        match part:
            case UserPromptPart(content=content):
                yield _line({"person": capping.cut(said(content), of_text)})
            case TextPart(content=text):
                yield _line({"assistant": capping.cut(text, of_text), **({"stopped": True} if cut else {})})
            case ToolCallPart(tool_name=tool):
                yield _line({"call": tool, "input": capping.capped(_plain(rows.parsed(part.args)), of_result)})
            case ToolReturnPart(tool_name=tool, content=content):
                ended = {} if part.outcome == "success" else {"ended": part.outcome}
                yield _line({"result": tool, **ended, "output": capping.capped(_plain(content), of_result)})
            case RetryFeedbackPart():
                pass
            case _:
                who = "person" if isinstance(message, ModelRequest) else "assistant"
                yield _line({who: f"[{part.part_kind}]"})


def said(content: str | Iterable[object]) -> str:
    """What a person said, as one text; files are named and not shown."""
    return content if isinstance(content, str) else "\n".join(_text(piece) for piece in content)


def _text(piece: object) -> str:
    return piece if isinstance(piece, str) else _plain_text(piece)


def _plain(value: Any) -> Any:
    match value:
        case None | str() | bool() | int() | float():
            return value
        case dict():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
    return _plain_text(value)


def _plain_text(value: object) -> str:
    if isinstance(text := getattr(value, "content", None), str):
        return text
    kind = getattr(value, "media_type", None) or type(value).__name__
    name = getattr(value, "url", None) or getattr(value, "identifier", None)
    if name is None:
        return str(to_jsonable_python(value, serialize_unknown=True))
    return f"[file: {kind}, {capping.cut(str(name), 300)}]"


def _line(entry: dict[str, object]) -> str:
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=str)
