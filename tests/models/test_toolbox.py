"""Schemas out of plain functions, and what a model hears when it calls one wrongly."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from orchestrator.errors import ConfigError
from orchestrator.models import Layer
from orchestrator.models.toolbox import Tools
from orchestrator.ports import WrongCall
from orchestrator.tool import Tool, ToolContext, tool

if TYPE_CHECKING:
    from collections.abc import Iterator


class Colour(Enum):
    RED = "red"


class Address(BaseModel):
    street: str
    number: int = 1

    @field_validator("street")
    @classmethod
    def known(cls, street: str) -> str:
        if street == "nowhere":
            raise ValueError("there is no such street")
        return street


@dataclass
class Point:
    x: int
    y: int


@tool
async def refund(
    ctx: ToolContext,
    order_id: str,
    amount: Decimal,
    when: date | None = None,
    to: Address | None = None,
    colour: Colour = Colour.RED,
    times: Annotated[int, Field(ge=1, le=3)] = 1,
    how: Literal["cash", "card"] = "card",
) -> Iterator[str]:
    """Refund an order.

    A person approves every call.

    Args:
        ctx: Ours.
        order_id: The number on
            the receipt.
        amount: How much.
    """
    raise NotImplementedError


@tool
def measure(points: list[Point], unit: str) -> float:
    """Measure a path.

    Parameters
    ----------
    points : list
        Where it leads.
    unit : str
        In what.
    """
    return 0.0


@tool
def nothing() -> None:
    """Do nothing."""


@tool
def move(to: Address) -> None:
    """Move somewhere."""


ALL = (refund, measure, nothing, move)


def box(*tools: Tool) -> Tools:
    return Tools(tools or ALL)


def schema(name: str) -> dict[str, Any]:
    definition = next(d for d in box().definitions if d.name == name)
    return definition.parameters_json_schema


def test_a_schema_has_the_parameters_and_not_the_context() -> None:
    found = schema("refund")
    assert list(found["properties"]) == ["order_id", "amount", "when", "to", "colour", "times", "how"]
    assert found["required"] == ["order_id", "amount"]
    assert found["properties"]["how"]["enum"] == ["cash", "card"]
    assert found["properties"]["times"]["maximum"] == 3


@pytest.mark.parametrize("name", [made.name for made in ALL])
def test_a_schema_allows_nothing_else(name: str) -> None:
    assert schema(name)["additionalProperties"] is False


def test_docstrings_describe_the_tool_and_its_parameters() -> None:
    google, numpy = schema("refund")["properties"], schema("measure")["properties"]
    assert "The number on" in google["order_id"]["description"]
    assert numpy["points"]["description"] == "Where it leads."
    descriptions = {d.name: d.description for d in box().definitions}
    assert descriptions["refund"] == "Refund an order.\n\nA person approves every call."
    assert descriptions["measure"] == "Measure a path."


def test_arguments_become_python_values() -> None:
    given = '{"order_id":"A-1","amount":"12.50","when":"2026-11-30","to":{"street":"High St"},"colour":"red","times":2}'
    arguments = box().check("refund", given)
    assert arguments["order_id"] == "A-1"
    assert arguments["amount"] == Decimal("12.50")
    assert arguments["when"] == date(2026, 11, 30)
    assert arguments["to"] == Address(street="High St")
    assert arguments["colour"] is Colour.RED
    assert box().check("measure", {"points": [{"x": 1, "y": 2}], "unit": "m"})["points"] == [Point(1, 2)]


def test_arguments_can_be_handed_to_the_function() -> None:
    @tool
    def add(ctx: ToolContext, a: int, b: int = 2) -> int:
        return a + b

    assert add.fn(None, **box(add).check("add", {"a": 1})) == 3


def test_text_and_values_are_checked_alike() -> None:
    assert box().check("refund", {"order_id": "A", "amount": "1.5", "when": "2026-11-30"}) == box().check(
        "refund", '{"order_id":"A","amount":"1.5","when":"2026-11-30"}'
    )


@pytest.mark.parametrize("given", [{}, "", " ", "{}"])
def test_a_tool_without_parameters_takes_no_arguments(given: object) -> None:
    assert box().check("nothing", given) == {}


def test_a_single_object_may_come_with_or_without_its_name() -> None:
    assert box().check("move", {"street": "High St"}) == {"to": Address(street="High St")}


@pytest.mark.parametrize(
    ("name", "given", "heard"),
    [
        ("refund", {"amount": 1}, "order_id: Field required"),
        ("refund", {"order_id": "A", "amount": "much"}, "amount: Input should be a valid decimal"),
        (
            "refund",
            {"order_id": "A", "amount": 1, "to": {"street": "nowhere"}},
            "to.street: Value error, there is no such",
        ),
        ("refund", {"order_id": "A", "amount": 1, "colour": "blue"}, "colour: Input should be 'red'"),
        ("refund", {"order_id": "A", "amount": 1, "times": 9}, "times: Input should be less than or equal to 3"),
        ("refund", {"order_id": "A", "amount": 1, "ctx": {}}, "ctx: "),
        ("refund", '{"order_id": "A", "amou', "arguments: Invalid JSON"),
        ("refund", [1], "arguments: "),
        ("refund", "null", "arguments: "),
        ("nothing", {"x": 1}, "x: "),
    ],
)
def test_a_wrong_call_says_which_argument_is_wrong_and_why(name: str, given: object, heard: str) -> None:
    with pytest.raises(WrongCall) as wrong:
        box().check(name, given)
    assert heard in str(wrong.value)
    assert "pydantic.dev" not in str(wrong.value)


def test_an_unknown_tool_names_those_that_there_are() -> None:
    with pytest.raises(WrongCall, match=r"no tool 'rfund'.*refund, measure, nothing, move"):
        box().check("rfund", {})
    with pytest.raises(WrongCall, match="There are no tools"):
        Tools(()).check("rfund", {})


def test_a_tool_may_be_wrapped_and_have_another_name() -> None:
    def wrapped(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return inner

    @tool(name="look-up")
    @wrapped
    def find(ctx: ToolContext, when: date) -> str:
        """Look it up."""
        return when.isoformat()

    assert box(find).check("look-up", {"when": "2026-11-30"}) == {"when": date(2026, 11, 30)}


def test_a_tool_that_no_model_could_call_is_refused_when_it_is_set_up() -> None:
    @tool
    def unnamed(x: int, /) -> None: ...

    @tool
    def strange(x: object, lock: functools.partial[int]) -> None: ...

    for wrong in (unnamed, strange):
        with pytest.raises(ConfigError, match=wrong.name):
            box(wrong)


def test_a_toolbox_is_made_once_per_tool_list() -> None:
    layer = Layer()
    assert layer.toolbox([refund, move]) is layer.toolbox((refund, move))
    assert layer.toolbox([refund, move]) is not layer.toolbox([move, refund])
