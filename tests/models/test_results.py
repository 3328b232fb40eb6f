"""A result that is owed, and context beside the history, as a provider is sent them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.event import Outcome
from orchestrator.models import Layer
from orchestrator.models.scripted import ScriptedModel, asks, delivers
from orchestrator.ports import Message, ModelCall, Result, WrongCall
from orchestrator.tool import ToolContext, tool
from tests.fake_openai import text, tools, use
from tests.models.conftest import NAME, Provider, ask, call

PRICE: dict[str, Any] = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}


@tool
def final_result(ctx: ToolContext, x: int) -> str:
    """A tool that has the name we would take."""
    return str(x)


def owing(layer: Layer, schema: object, made: ModelCall) -> ModelCall:
    return replace(made, tools=layer.result_box((), json.dumps(schema)))


def test_the_model_is_given_a_tool_for_the_result_and_must_call_something(layer: Layer, provider: Provider) -> None:
    fake = provider([tools(use("final_result", cents=5))])
    asked = owing(layer, PRICE, call(layer, "price?"))
    answer = ask(layer.model(NAME), asked)
    [sent] = fake.calls[0].body["tools"]
    assert sent["function"]["name"] == "final_result"
    assert sent["function"]["parameters"]["properties"] == PRICE["properties"]
    assert fake.calls[0].body["tool_choice"] == "required"
    assert asked.tools.result(answer.calls[0].input) == {"cents": 5}


def test_a_result_that_is_no_object_is_an_argument_and_its_references_move_along(
    layer: Layer, provider: Provider
) -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/price"}, "$defs": {"price": PRICE}}
    fake = provider([tools(use("final_result", result=[{"cents": 5}]))])
    asked = owing(layer, schema, call(layer, "prices?"))
    answer = ask(layer.model(NAME), asked)
    inner = fake.calls[0].body["tools"][0]["function"]["parameters"]["properties"]["result"]
    assert inner["items"] == {"$ref": "#/properties/result/$defs/price"}
    assert asked.tools.result(answer.calls[0].input) == [{"cents": 5}]


@pytest.mark.parametrize("given", [{"cents": "x"}, {}, [], "no JSON", '{"cents": 1.5}', None])
def test_what_does_not_fit_says_what_to_correct(layer: Layer, given: object) -> None:
    box = layer.result_box((), json.dumps(PRICE))
    with pytest.raises(WrongCall, match="call final_result again"):
        box.result(given)


def test_a_text_may_be_a_result(layer: Layer) -> None:
    assert layer.result_box((), json.dumps(PRICE)).result(' {"cents": 5}\n') == {"cents": 5}
    assert layer.result_box((), '{"type":"string"}').result("3") == "3"
    assert layer.result_box((), '{"type":"integer"}').result("3") == 3


def test_a_tool_keeps_its_name(layer: Layer) -> None:
    assert layer.result_box((final_result,), "{}").result_tool == "final_result_"
    assert layer.toolbox((final_result,)).result_tool == ""


def test_context_comes_before_the_words_and_behind_the_results(layer: Layer, provider: Provider) -> None:
    fake = provider([text("a"), text("b")])
    first = layer.message_row([Message(("Always.",), pinned=True), Message(("hello",))])
    asked = replace(call(layer, [layer.read(first)]), context=("cart: empty", "page: home"))
    ask(layer.model(NAME), asked)
    assert said(fake.calls[0].messages) == [("user", "Always.\n\ncart: empty\n\npage: home\n\nhello")]
    called = layer.read(ask(ScriptedModel([asks("look")]), call(layer)).row)
    [look] = layer.calls(called)
    returned = layer.read(layer.results_row([Result(look.provider_id, "look", Outcome("completed", "nothing"))]))
    ask(layer.model(NAME), replace(asked, history=[*asked.history, called, returned]))
    assert said(fake.calls[1].messages) == [
        *[("user", "Always.\n\nhello"), ("assistant", ""), ("tool", "nothing")],
        ("user", "cart: empty\n\npage: home"),
    ]


def said(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Roles and texts; neighbours of one role are one."""
    found: list[tuple[str, str]] = []
    for message in messages:
        content = message.get("content") or ""
        words = content if isinstance(content, str) else "\n\n".join(part["text"] for part in content)
        if found and found[-1][0] == message["role"]:
            words = f"{found.pop()[1]}\n\n{words}"
        found.append((message["role"], words))
    return found


def test_feedback_is_told_apart_from_what_a_person_says(layer: Layer, provider: Provider) -> None:
    fake = provider([text("a"), text("b")])
    asked = call(layer, "hello")
    answer = ask(layer.model(NAME), asked)
    rows = [*asked.history, layer.read(answer.row), layer.read(layer.feedback_row("It does not fit."))]
    ask(layer.model(NAME), replace(asked, history=rows))
    last = fake.calls[1].messages[-1]
    assert last["role"] == "user"
    assert "It does not fit." in str(last["content"])
    assert "retry_feedback" in str(last["content"])


@pytest.mark.parametrize("result", [{"cents": 5}, [1], "text", None])
def test_a_scripted_result_is_read_back_from_its_row(layer: Layer, result: object) -> None:
    answer = ask(ScriptedModel([delivers(result)]), owing(layer, {}, call(layer)))
    [read] = layer.calls(layer.read(answer.row))
    assert (read.tool, read.input) == ("final_result", result)
