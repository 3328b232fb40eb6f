"""A value that is too long keeps its start, its end and its structure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.models.capping import SHORTEST, capped, cut, size


def test_what_is_short_enough_is_the_same() -> None:
    for value in (None, 1, "x" * 400, {"a": ["x"]}, ["x"]):
        assert capped(value, 400) is value


def test_start_and_end_of_a_text_survive_and_the_size_of_the_rest_is_said() -> None:
    short = cut("begin " + "x" * 10_000 + " exit code 2", 500)
    assert short.startswith("begin xx")
    assert short.endswith("xx exit code 2")
    assert size(short) <= 500
    left_out = int(short.partition("… ")[2].split()[0])
    assert left_out == 10_018 - (size(short) - size(f"\n[… {left_out} bytes left out here …]\n"))


def test_a_structure_keeps_its_fields() -> None:
    value = {"stdout": "o" * 50_000, "exit_code": 1, "stderr": "e" * 50_000 + "No such file", "lines": [1, 2]}
    short: Any = capped(value, 2_000)
    assert (short["exit_code"], short["lines"]) == (1, [1, 2])
    assert short["stderr"].endswith("No such file")
    assert short["stdout"].startswith("ooo")
    assert size(short) <= 2_000


def test_one_long_text_in_a_structure_may_take_most_of_the_room() -> None:
    short: Any = capped({"text": "x" * 50_000, "code": 0}, 2_000)
    assert size(short["text"]) > 900


def test_a_structure_of_many_small_things_is_cut_as_text() -> None:
    short: Any = capped([{"n": number} for number in range(10_000)], 1_000)
    assert short.startswith('[{"n":0},')
    assert short.endswith('{"n":9999}]')
    assert size(short) <= 1_000


def test_no_character_is_torn() -> None:
    for limit in range(SHORTEST, SHORTEST + 12):
        short = cut("é€😀" * 500, limit)
        assert "\ufffd" not in short
        assert size(short) <= limit


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=2_000) | st.text("ab", min_size=500, max_size=3_000),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=300), inner, max_size=5),
    max_leaves=20,
)


@given(JSON, st.sampled_from([SHORTEST, 400, 8_000]))
def test_the_limit_is_kept_and_what_was_capped_is_not_capped_again(value: object, limit: int) -> None:
    short = capped(value, limit)
    assert size(short) <= limit
    assert capped(short, limit) is short


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": b"\xff"}, {1: "x"}, {"t": ("x", "y")}])
def test_what_is_hardly_json_has_a_size_too(value: object) -> None:
    assert size(value) > 0
