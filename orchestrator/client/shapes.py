"""JSON becomes values by their annotations: `readShape` is the field `read_shape`, and fields that nobody knows are left alone.

What does not fit raises `Misfit`. What is there without being asked for never does: the server may say more tomorrow.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Read = Callable[[Any], Any]
Field = tuple[str, str, Read, bool]
"""Its name, its name in JSON, how it is read, whether it must be there."""
_KNOWN: dict[type, tuple[Field, ...]] = {}


class Misfit(ValueError):
    """What came has another shape than the class says."""


def read(kind: type[T], given: object, **more: object) -> T:
    """A value of a dataclass from a JSON object; `more` are fields that come from elsewhere. Raises `Misfit`."""
    if not isinstance(given, Mapping):
        raise Misfit(f"{kind.__name__} is an object, not {type(given).__name__}")
    values = dict(more)
    for name, key, reads, needed in _fields(kind):
        if name in more:
            continue
        if key in given:
            values[name] = reads(given[key])
        elif needed:
            raise Misfit(f"{kind.__name__} has no {key}")
    return kind(**values)


def _fields(kind: type) -> tuple[Field, ...]:
    if kind not in _KNOWN:
        hints = typing.get_type_hints(kind)
        _KNOWN[kind] = tuple(
            (
                one.name,
                one.metadata.get("key", _camel(one.name)),
                _reader(hints[one.name]),
                one.default is MISSING and one.default_factory is MISSING,
            )
            for one in fields(kind)
        )
    return _KNOWN[kind]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _reader(hint: Any) -> Read:
    if hint is Any or hint is object:
        return lambda given: given
    if is_dataclass(hint):
        return partial(read, typing.cast(type, hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (_reader(one) for one in arguments if one is not type(None))
        return lambda given: None if given is None else inner(given)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda given: tuple(map(item, _is(list, given)))
    return partial(_is, Mapping if origin is not None else hint)


def _is(kind: type, given: Any) -> Any:
    if kind is float and type(given) is int:
        return float(given)
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise Misfit(f"{type(given).__name__} in the place of {kind.__name__}")
    return given
