"""Values as bytes and back: version-stamped msgpack of our frozen dataclasses.

What is read is decided by the declared type, never by a name in the data. Fields this version does not know survive a round
trip in `extra`; fields that have their default are not written. Free values (authored state, results) keep datetime, date, time,
timedelta, Decimal, UUID, bytes, set, frozenset and tuple. Nothing here can run code that the data names: no pickle.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin
from uuid import UUID

import msgpack

from orchestrator.core import fact as facts
from orchestrator.core.snapshot import VERSION, Snapshot

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64
SNAPSHOT_LIMIT = 64 * 1024
"""A snapshot holds names and numbers; one that is larger is a fault of ours."""

T = TypeVar("T")
Encoder = Callable[[Any], object]
Decoder = Callable[[Any], Any]


class Unstorable(Exception):
    """A value that no checkpoint can hold; `kind` names its type."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Unreadable(Exception):
    """Bytes that this version cannot read; the text says why."""


# Free values -----------------------------------------------------------------------------------------------------------

_TO_EXT: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    datetime: (1, lambda v: v.isoformat().encode()),
    date: (2, lambda v: v.isoformat().encode()),
    time: (3, lambda v: v.isoformat().encode()),
    timedelta: (4, lambda v: msgpack.packb((v.days, v.seconds, v.microseconds))),
    Decimal: (5, lambda v: str(v).encode()),
    UUID: (6, lambda v: v.bytes),
    set: (7, lambda v: pack_value(list(v))),
    frozenset: (8, lambda v: pack_value(list(v))),
    tuple: (9, lambda v: pack_value(list(v))),
}

_FROM_EXT: dict[int, Callable[[bytes], object]] = {
    1: lambda b: datetime.fromisoformat(b.decode()),
    2: lambda b: date.fromisoformat(b.decode()),
    3: lambda b: time.fromisoformat(b.decode()),
    4: lambda b: timedelta(*msgpack.unpackb(b)),
    5: lambda b: Decimal(b.decode()),
    6: lambda b: UUID(bytes=b),
    7: lambda b: set(cast("list[object]", unpack_value(b))),
    8: lambda b: frozenset(cast("list[object]", unpack_value(b))),
    9: lambda b: tuple(cast("list[object]", unpack_value(b))),
}


def _ext(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    found = _TO_EXT.get(type(value))
    if found is None:
        raise Unstorable(type(value).__name__)
    return msgpack.ExtType(found[0], found[1](value))


def _from_ext(code: int, data: bytes) -> object:
    if code not in _FROM_EXT:
        raise Unreadable(f"extension {code} is of a newer version")
    return _FROM_EXT[code](data)


def pack_value(value: object) -> bytes:
    """A free value as bytes. Raises `Unstorable` for what cannot be kept."""
    try:
        packed = cast(bytes, msgpack.packb(value, default=_ext, strict_types=True))
    except (ValueError, OverflowError, RecursionError) as broken:
        raise Unstorable(f"{type(value).__name__} ({broken})") from broken
    if len(packed) > MAX_BYTES:
        raise Unstorable(f"{type(value).__name__} of {len(packed)} bytes")
    if too_deep(value):
        raise Unstorable(f"{type(value).__name__} nested deeper than {MAX_DEPTH}")
    return packed


def unpack_value(data: bytes) -> object:
    """A free value from bytes. Raises `Unreadable`."""
    if len(data) > MAX_BYTES:
        raise Unreadable(f"{len(data)} bytes, the limit is {MAX_BYTES}")
    try:
        value = msgpack.unpackb(data, ext_hook=_from_ext, strict_map_key=False)
    except Unreadable:
        raise
    except Exception as broken:
        raise Unreadable(str(broken) or type(broken).__name__) from broken
    if too_deep(value):
        raise Unreadable(f"nested deeper than {MAX_DEPTH}")
    return cast(object, value)


def too_deep(value: object, limit: int = MAX_DEPTH) -> bool:
    """Whether a value is nested deeper than what can be read."""
    if not limit:
        return True
    if isinstance(value, dict):
        return any(too_deep(one, limit - 1) for one in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(too_deep(one, limit - 1) for one in value)
    return False


# Our dataclasses -------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _checked(kind: type | tuple[type, ...]) -> Decoder:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise Unreadable(f"{type(value).__name__} where {kind} is declared")
        return value

    return check


def _one_of(cases: tuple[Any, ...]) -> Decoder:
    check = _checked(tuple({type(case) for case in cases}))

    def pick(value: Any) -> Any:
        if check(value) not in cases:
            raise Unreadable(f"{value!r} is none of {cases}")
        return value

    return pick


def _member(declared: type[Enum]) -> Decoder:
    def pick(value: Any) -> Any:
        try:
            return declared(value)
        except ValueError as unknown:
            raise Unreadable(str(unknown)) from unknown

    return pick


@cache
def _coder(declared: Any) -> tuple[Encoder, Decoder]:
    """How values of a declared type are written and read."""
    if isinstance(declared, typing.NewType):
        return _coder(declared.__supertype__)
    origin = get_origin(declared)
    if declared in (str, int, bool, bytes):
        return _same, _checked(declared)
    if declared is float:
        return _same, _checked((float, int))
    if origin is typing.Literal:
        return _same, _one_of(get_args(declared))
    if origin is tuple:
        (of, rest) = get_args(declared)
        assert rest is Ellipsis
        write, read = _coder(of)
        check = _checked(list)
        return (
            (lambda values: [write(value) for value in values]),
            (lambda values: tuple(read(value) for value in check(values))),
        )
    if origin is types.UnionType or origin is typing.Union:
        return _union(get_args(declared))
    if isinstance(declared, type) and issubclass(declared, Enum):
        return (lambda value: value.value), _member(declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        return _fields(declared)
    if origin is not None and issubclass(origin, Mapping):
        return dict, _checked(dict)
    if declared is object:
        return _same, _same
    raise TypeError(f"{declared} has no form in a checkpoint")


def _union(members: tuple[Any, ...]) -> tuple[Encoder, Decoder]:
    (only,) = [member for member in members if member is not type(None)]
    write, read = _coder(only)
    return (
        (lambda value: None if value is None else write(value)),
        (lambda value: None if value is None else read(value)),
    )


_MISSING = object()


@cache
def _fields(cls: type) -> tuple[Encoder, Decoder]:
    hints = typing.get_type_hints(cls)
    plan: list[tuple[str, object, Encoder, Decoder]] = []
    for field in dataclasses.fields(cls):
        if field.name != "extra":
            write, read = _coder(hints[field.name])
            plan.append((field.name, _MISSING if field.default is dataclasses.MISSING else field.default, write, read))
    names = {name for name, *_ in plan}
    keeps = "extra" in hints

    def encode(value: Any) -> object:
        out: dict[str, object] = {}
        for name, default, write, _ in plan:
            part = getattr(value, name)
            if part != default:
                out[name] = write(part)
        if keeps and value.extra:
            out.update(value.extra)
        return out

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise Unreadable(f"{type(data).__name__} where {cls.__name__} is declared")
        known: dict[str, Any] = {}
        for name, default, _, read in plan:
            if name in data:
                known[name] = read(data[name])
            elif default is _MISSING:
                raise Unreadable(f"{cls.__name__} without {name}")
        if keeps and len(data) > len(known):
            known["extra"] = {key: value for key, value in data.items() if key not in names}
        return cls(**known)

    return encode, decode


def _written(fields: object) -> bytes:
    # As strict as for free values: what a newer version has put into `extra` goes back as it came, a tuple as a tuple.
    return cast(bytes, msgpack.packb(fields, default=_plain, strict_types=True))


def _plain(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Enum):
        return str.__str__(value)  # a name that somebody gave as a subclass
    return _ext(value)


def pack(value: object) -> bytes:
    """One of our dataclasses as bytes."""
    write, _ = _coder(cast(Any, type(value)))
    packed = _written(write(value))
    if len(packed) > MAX_BYTES:
        raise Unstorable(f"{type(value).__name__} of {len(packed)} bytes")
    return packed


def unpack(cls: type[T], data: bytes) -> T:
    """One of our dataclasses from bytes. Raises `Unreadable`."""
    return cast(T, _coder(cast(Any, cls))[1](unpack_value(data)))


# Facts and snapshots ---------------------------------------------------------------------------------------------------

FACTS: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(facts.Fact)}
"""The closed table of facts: the only names that are looked up when a journal is read."""


def pack_fact(fact: facts.Fact) -> bytes:
    """A fact as bytes: its name and its fields."""
    write, _ = _coder(cast(Any, type(fact)))
    return _written([type(fact).__name__, write(fact)])


def unpack_fact(data: bytes) -> facts.Fact:
    """A fact from bytes. Raises `Unreadable`."""
    match unpack_value(data):
        case [str(name), fields] if name in FACTS:
            return cast("facts.Fact", _coder(FACTS[name])[1](fields))
        case [str(name), _]:
            raise Unreadable(f"fact {name} is of a newer version")
        case _:
            raise Unreadable("not a fact")


UPCASTERS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Version → what lifts a snapshot of that version to the next one. A stored value that changes meaning gets an entry."""


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot as bytes, at most 64 KiB."""
    packed = _written({"v": VERSION, **cast("dict[str, object]", _coder(Snapshot)[0](snapshot))})
    if len(packed) > SNAPSHOT_LIMIT:
        raise Unstorable(f"snapshot of {len(packed)} bytes")
    return packed


def unpack_snapshot(data: bytes) -> Snapshot:
    """A snapshot from bytes, lifted to this version. Raises `Unreadable` for a newer one."""
    value = unpack_value(data)
    if not isinstance(value, dict) or not isinstance(value.get("v"), int):
        raise Unreadable("not a snapshot")
    while value["v"] < VERSION:
        lift = UPCASTERS.get(value["v"])
        if lift is None:
            raise Unreadable(f"snapshot version {value['v']} is too old")
        value = lift(value)
    if value["v"] > VERSION:
        raise Unreadable(f"snapshot version {value['v']} is newer than {VERSION}")
    return cast(Snapshot, _coder(Snapshot)[1](value))
