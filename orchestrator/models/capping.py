"""Values that are too long, cut in the middle: the start says what it is, the end has the exit code and the error."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

LEAF_SHARES = (2, 8, 32)
"""A text in a structure may take so much (1/n) of what the whole may have; the first that fits is taken."""
SHORTEST = 120
"""Texts of so many bytes are not worth a cut, which has to be said in their middle."""


def size(value: object) -> int:
    """The bytes of a value as a model reads it."""
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    return len(_json(value))


def capped(value: object, limit: int) -> object:
    """`value` itself if it has no more than `limit` bytes, else less of it: with its structure where that is possible.
    A limit under `SHORTEST` is not kept.

    What comes out is never cut again under the same limit.
    """
    if size(value) <= limit:
        return value
    if isinstance(value, str):
        return cut(value, limit)
    shorter: object = value
    for share in LEAF_SHARES:
        shorter = _with_short_texts(value, limit // share)
        if size(shorter) <= limit:
            return shorter
    return cut(_json(shorter).decode(), limit)


def cut(text: str, limit: int) -> str:
    """Start and end of a text, with the size of what lay between them."""
    whole = text.encode(errors="replace")
    if len(whole) <= max(limit, SHORTEST):
        return text
    mark = _mark(len(whole))
    half = max(0, limit - len(mark.encode())) // 2
    start = whole[:half].decode(errors="ignore")
    end = whole[len(whole) - half :].decode(errors="ignore")
    return start + _mark(len(whole) - size(start) - size(end)) + end


def _json(value: object) -> bytes:
    return to_json(value, serialize_unknown=True, bytes_mode="base64")


def _mark(left_out: int) -> str:
    return f"\n[… {left_out} bytes left out here …]\n"


def _with_short_texts(value: Any, limit: int) -> Any:
    match value:
        case str():
            return cut(value, limit)
        case dict():
            return {name: _with_short_texts(inner, limit) for name, inner in value.items()}
        case list() | tuple():
            return [_with_short_texts(inner, limit) for inner in value]
    return value
