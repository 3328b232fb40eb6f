"""What is stored can be read, by this version and by the next; what cannot be read says so, and in one way."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.core import codec
from orchestrator.core.codec import (
    FACTS,
    MAX_BYTES,
    MAX_DEPTH,
    Unreadable,
    Unstorable,
    pack,
    pack_fact,
    pack_snapshot,
    pack_value,
    unpack,
    unpack_fact,
    unpack_snapshot,
    unpack_value,
)
from orchestrator.core.delivery import Body, Envelope
from orchestrator.core.event import Outcome
from orchestrator.core.fact import Fact
from orchestrator.core.names import Millis, TurnId
from orchestrator.core.snapshot import EMPTY, VERSION, Position, Snapshot, Turn, Usage
from orchestrator.perform import RESULT_DEPTH, plain_json
from tests.core.stored import STORED

GOLDEN = Path(__file__).parent / "golden"

# Any value ----------------------------------------------------------------------------------------------------------

numbers = st.integers(-(2**63), 2**64 - 1)
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
hashable: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.datetimes(timezones=st.none() | st.just(UTC) | offsets),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
)
keys = st.recursive(hashable, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
values = st.recursive(
    keys | st.sets(keys, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8) | numbers | keys, inner, max_size=4)
    ),
    max_leaves=20,
)


def shape(value: object) -> object:
    """A value with its types: 1, True and 1.0 are equal and are not the same."""
    match value:
        case list() | tuple():
            return (type(value), [shape(one) for one in value])
        case set() | frozenset():
            return (type(value), sorted(repr(shape(one)) for one in value))
        case dict():
            return (dict, [(shape(key), shape(one)) for key, one in value.items()])
        case datetime():  # the offset survives; the name of the zone and which of two equal hours it was do not
            return (datetime, value.replace(tzinfo=None, fold=0), value.utcoffset())
        case time():
            return (time, value.replace(fold=0))
        case _:
            return (type(value), value)


@given(values)
@example(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
@example((1, [2, (3, {4})], {"a": (frozenset({b"5"}),)}))
@example({(1, 2): "a key may be a tuple", UUID(int=7): Decimal("-0.10")})
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert repr(shape(unpack_value(pack_value(value)))) == repr(shape(value))


@given(values)
def test_whatever_can_be_packed_can_be_read(value: object) -> None:
    deep = value
    for _ in range(40):
        deep = [deep]
    for one in (value, deep, [[deep] * 2], {"a": {"b": (deep,)}}):
        try:
            packed = pack_value(one)
        except Unstorable:
            continue
        unpack_value(packed)


def nested(depth: int, wrap: type = list) -> Any:
    value: Any = wrap() if wrap is not dict else {}
    for _ in range(depth - 1):
        value = {"a": value} if wrap is dict else wrap([value])
    return value


@pytest.mark.parametrize("wrap", [list, tuple, dict, frozenset])
def test_depth_is_limited_on_both_sides(wrap: type) -> None:
    assert unpack_value(pack_value(nested(MAX_DEPTH - 1, wrap))) == nested(MAX_DEPTH - 1, wrap)
    for depth in (MAX_DEPTH + 1, 200, 600, 5000):
        with pytest.raises(Unstorable):
            pack_value(nested(depth, wrap))
    with pytest.raises(Unreadable, match="deeper"):
        unpack_value(b"\x91" * 200 + b"\xc0")
    with pytest.raises(Unreadable):
        unpack_value(b"\x91" * 100_000 + b"\xc0")


def test_a_value_that_holds_itself_cannot_be_stored() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Unstorable):
        pack_value(circle)


@pytest.mark.parametrize("depth", [10, RESULT_DEPTH - 1, RESULT_DEPTH + 1, MAX_DEPTH, 200, 5000])
def test_a_tool_result_that_is_taken_can_be_read_after_a_crash(depth: int) -> None:
    try:
        taken = plain_json(nested(depth))
    except ValueError:
        taken = None
    assert (taken is None) == (depth > RESULT_DEPTH)
    outcome = Outcome("completed", taken)
    assert unpack(Outcome, pack(outcome)) == outcome


def test_size_is_limited_on_both_sides() -> None:
    with pytest.raises(Unstorable, match="bytes"):
        pack_value(bytes(MAX_BYTES))
    with pytest.raises(Unreadable, match="limit"):
        unpack_value(bytes(MAX_BYTES + 1))
    with pytest.raises(Unreadable):
        unpack_value(b"\xdd\xff\xff\xff\xff")  # says that it has four thousand million elements


class Ours:
    """Nothing that a checkpoint knows."""


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "s"


@dataclass(frozen=True)
class Point:
    x: int
    y: Colour = Colour.RED


@pytest.mark.parametrize("value", [Ours(), Ours, len, object(), 1j, range(3), 2**64, -(2**63) - 1, "\ud800", [Ours()]])
def test_what_cannot_be_kept_is_refused_by_name(value: object) -> None:
    with pytest.raises(Unstorable) as refused:
        pack_value(value)
    assert refused.value.kind


def test_an_enum_is_kept_as_its_value_and_a_dataclass_as_its_fields() -> None:
    # The declared type makes them what they were again: the data name no class.
    assert unpack_value(pack_value([Colour.RED, Size.SMALL, Point(1)])) == ["red", "s", {"x": 1, "y": "red"}]


@settings(max_examples=500)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xc1")
@example(b"\x81\x90\xc0")  # a list as a key
@example(b"\xd4\x05\x61")  # a Decimal that is none
@example(b"\xd4\x63\x00")  # an extension of a newer version
@example(msgpack.packb(msgpack.ExtType(7, pack_value([[1]]))))  # a set of lists
@example(msgpack.packb(msgpack.ExtType(4, msgpack.packb([10**12, 0, 0]))))
@example(msgpack.packb(msgpack.ExtType(1, b"yesterday")))
def test_garbage_is_unreadable_and_nothing_else(data: bytes) -> None:
    readers: list[Any] = [unpack_value, unpack_fact, unpack_snapshot]
    readers += [lambda data, cls=cls: unpack(cls, data) for cls in (Envelope, Body, Outcome, Position, Turn)]
    for read in readers:
        try:
            read(data)
        except Unreadable:
            continue


# Our values ---------------------------------------------------------------------------------------------------------


def of(declared: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type, as the codec understands it."""
    if isinstance(declared, typing.NewType):
        return of(declared.__supertype__)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if declared is object:
        return st.none() | st.text(max_size=5) | st.integers(0, 99)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(of(one) for one in arguments))
    if origin is not None and issubclass(origin, Mapping):
        # Fields that a newer version writes.
        return st.dictionaries(st.text(max_size=4).map("new_".__add__), numbers | st.text(max_size=9), max_size=2)
    if dataclasses.is_dataclass(declared):
        hints = typing.get_type_hints(declared)
        made = {one.name: of(hints[one.name]) for one in dataclasses.fields(declared)}
        return st.builds(typing.cast(Any, declared), **made)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        type(None): st.none(),
        str: st.text(max_size=12),
        bool: st.booleans(),
        int: st.integers(0, 2**53),
        float: st.floats(allow_nan=False),
        bytes: st.binary(max_size=12),
    }
    return simple[declared]


snapshots = of(Snapshot).map(lambda made: replace(made, v=VERSION))


@given(snapshots)
def test_a_snapshot_comes_back_with_fields_that_nobody_here_knows(snapshot: Snapshot) -> None:
    assert unpack_snapshot(pack_snapshot(snapshot)) == snapshot


@given(st.one_of(*(of(kind) for kind in FACTS.values())))
def test_a_fact_comes_back(fact: Fact) -> None:
    again = unpack_fact(pack_fact(fact))
    assert (type(again), again) == (type(fact), fact)


@given(st.one_of(of(Envelope), of(Body), of(Outcome), of(Position)))
def test_what_else_is_stored_comes_back(value: Any) -> None:
    assert unpack(type(value), pack(value)) == value


def fields_of(snapshot: Snapshot) -> dict[str, Any]:
    made: dict[str, Any] = msgpack.unpackb(pack_snapshot(snapshot), strict_map_key=False)
    return made


@given(
    snapshots.map(fields_of),
    st.sampled_from([*(one.name for one in dataclasses.fields(Snapshot)), "turn.phase", "turn.calls", "usage.input"]),
    st.none() | values.filter(lambda value: value != {}),
)
def test_a_damaged_snapshot_is_unreadable_or_a_snapshot(stored: dict[str, Any], place: str, wrong: object) -> None:
    first, _, second = place.partition(".")
    if second and isinstance(stored.get(first), dict):
        stored[first][second] = wrong
    elif not second:
        stored[first] = wrong
    try:
        packed = pack_value(stored)
    except Unstorable:
        return
    try:
        read = unpack_snapshot(packed)
    except Unreadable:
        return
    assert unpack_snapshot(pack_snapshot(read)) == read


def test_unknown_fields_survive_at_every_level() -> None:
    turn = Turn(TurnId("turn_0"), 0, (), None, "support", Millis(1))
    stored = fields_of(replace(EMPTY, turn=turn, usage=Usage(1)))
    stored["mood"] = "sunny"
    stored["turn"]["weather"] = [1, {"deep": b"x"}]
    stored["turn"]["since"] = msgpack.ExtType(2, b"2026-03-01")
    stored["usage"]["of"] = msgpack.ExtType(9, msgpack.packb([1, 2]))
    stored["usage"]["joules"] = 7
    snapshot = unpack_snapshot(msgpack.packb(stored))
    assert snapshot.turn is not None
    moved = replace(snapshot, judged=3, usage=snapshot.usage + Usage(2), turn=replace(snapshot.turn, step=1))
    again = fields_of(moved)
    assert (again["mood"], again["turn"]["weather"], again["usage"]["joules"]) == ("sunny", [1, {"deep": b"x"}], 7)
    assert (again["judged"], again["usage"]["input"]) == (3, 3)
    read = unpack_snapshot(pack_snapshot(moved))
    assert read.turn is not None
    assert (read.turn.extra["since"], read.usage.extra["of"]) == (date(2026, 3, 1), (1, 2))


class Text(str):
    """A text that is not quite one."""

    __slots__ = ()


def test_names_that_were_given_as_a_kind_of_text_are_stored_as_text() -> None:
    for name in (Text("support"), Size.SMALL):
        turn = Turn(TurnId("turn_0"), 0, (), None, name, Millis(1))
        stored = unpack_snapshot(pack_snapshot(replace(EMPTY, turn=turn)))
        assert stored.turn is not None
        assert type(stored.turn.agent) is str
        assert stored.turn.agent == name


@pytest.mark.parametrize(
    ("place", "wrong"),
    [("phase", "dreaming"), ("step", "one"), ("calls", {}), ("calls", [7]), ("deliveries", None), ("phase", [])],
)
def test_a_field_of_another_type_or_case_is_unreadable(place: str, wrong: object) -> None:
    stored = fields_of(replace(EMPTY, turn=Turn(TurnId("turn_0"), 0, (), None, "support", Millis(1))))
    stored["turn"][place] = wrong
    with pytest.raises(Unreadable):
        unpack_snapshot(msgpack.packb(stored))


@dataclass(frozen=True, slots=True)
class Declared:
    """What the codec can do and no stored value of ours uses yet."""

    colour: Colour = Colour.RED
    point: Point | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


def test_the_declared_type_makes_enums_and_dataclasses() -> None:
    value = Declared(Colour.RED, Point(3))
    assert unpack(Declared, pack(value)) == value
    wrongs: list[object] = [{"colour": "beige"}, {"colour": []}, {"point": {"y": "red"}}, {"point": 3}]
    for wrong in wrongs:
        with pytest.raises(Unreadable):
            unpack(Declared, msgpack.packb(wrong))


def test_the_data_cannot_name_a_class() -> None:
    with pytest.raises(Unreadable, match="newer"):
        unpack_fact(msgpack.packb(["Snapshot", {}]))
    wrongs: list[object] = [["TurnStarted"], ["TurnStarted", 7], [["TurnStarted"], {}], {"TurnStarted": {}}, None]
    for wrong in wrongs:
        with pytest.raises(Unreadable):
            unpack_fact(msgpack.packb(wrong))


def test_a_snapshot_that_is_too_large_is_a_fault_of_ours() -> None:
    with pytest.raises(Unstorable, match="snapshot"):
        pack_snapshot(replace(EMPTY, pending=("x" * 70_000,)))


# Versions -----------------------------------------------------------------------------------------------------------


def test_a_newer_snapshot_is_left_to_a_newer_worker() -> None:
    with pytest.raises(Unreadable, match="newer"):
        unpack_snapshot(msgpack.packb({"v": VERSION + 1}))
    wrongs: list[object] = [{}, {"v": "1"}, {"v": None}, [], None, {"v": 0}, {"v": -3}]
    for wrong in wrongs:
        with pytest.raises(Unreadable):
            unpack_snapshot(msgpack.packb(wrong))


def test_an_upcaster_lifts_an_older_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_minus_one(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "v": 0, "turns": old["count"]}

    def from_zero(old: dict[str, Any]) -> dict[str, Any]:
        return {"v": 1, "next_turn": old["turns"], "kept": old["kept"]}

    monkeypatch.setitem(codec.UPCASTERS, -1, from_minus_one)
    monkeypatch.setitem(codec.UPCASTERS, 0, from_zero)
    old = msgpack.packb({"v": -1, "count": 4, "kept": "as it was"})
    assert unpack_snapshot(old) == replace(EMPTY, next_turn=4, extra={"kept": "as it was"})


def read_golden(name: str, data: bytes) -> object:
    match name.split("-")[0]:
        case "snapshot":
            return unpack_snapshot(data)
        case "fact":
            return unpack_fact(data)
        case "value":
            return unpack_value(data)
        case _:
            return unpack(type(STORED[name]), data)


@pytest.mark.parametrize("name", sorted(STORED))
def test_what_a_release_has_written_stays_readable(name: str) -> None:
    """The files are never written anew. A value that changes its meaning gets an upcaster and a file of its own."""
    data = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert shape(read_golden(name, data)) == shape(STORED[name])


def test_every_golden_file_is_read() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(STORED)


def test_every_kind_of_fact_is_stored_by_a_name_that_is_known() -> None:
    assert set(FACTS.values()) == set(typing.get_args(Fact))
