"""What `/info` says, in the one shape that eve's clients accept."""

from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest

import web
from orchestrator.agent import Agent, App
from orchestrator.config import Settings
from orchestrator.engine import Engine
from orchestrator.models.scripted import ScriptedModel, answers
from orchestrator.tool import Tool, ToolContext, tool
from tests.web.support import http_of
from web.info import arguments


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@tool
def find_order(order_id: str, size: Size = Size.SMALL) -> dict[str, Any]:
    """Find an order.

    Args:
        order_id: The number on the receipt.
    """
    return {}


@tool(name="refund-it")
async def refund(ctx: ToolContext, order_id: str, amount: Decimal, note: str | None = None) -> str:
    """Refund an order."""
    return ""


@tool
def copy(self_: int, model_config: str, schema: Literal["a", "b"] = "a") -> None:
    """Parameters with names that others use."""


def said(app: App, base: str = "/eve/v1", **settings: Any) -> dict[str, Any]:
    engine = Engine(app, Settings(url="redis://127.0.0.1:1/0", allow_anonymous="all", **settings))
    answer = http_of(web.create_app(engine=engine)).get(f"{base}/info")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json
    return found


SUPPORT = Agent("support", model="anthropic:claude", tools=[find_order, refund], description="Helps customers.")
SOURCE = {"logicalPath", "sourceId", "sourceKind", "owner", "binding"}


@pytest.mark.parametrize("base", ["/eve/v1", "/v1"])
def test_the_description_has_exactly_the_keys_that_a_strict_client_accepts(base: str) -> None:
    told = said(App(agents=[SUPPORT]), base)
    assert set(told) == {
        *("kind", "version", "mode", "agent", "capabilities", "channels", "composition", "connections", "diagnostics"),
        *("hooks", "instructions", "kernelEffects", "memories", "remoteAgents", "sandbox", "schedules", "skills"),
        *("subagents", "tools", "workspace"),
    }
    assert (told["kind"], told["version"]) == ("eve-agent-info", 5)
    agent = told["agent"]
    assert set(agent) == {"name", "nodeId", "agentRoot", "appRoot", "config", "model", "description"}
    assert (agent["name"], agent["description"]) == ("support", "Helps customers.")
    assert agent["model"] == {"id": "anthropic:claude", "routing": {"kind": "external", "provider": "anthropic"}}
    assert set(agent["config"]) == SOURCE
    assert set(told["sandbox"]) == SOURCE | {"revisionHash"}


def test_each_tool_is_described_once() -> None:
    other = Agent("other", tools=[refund, copy])
    tools = said(App(agents=[SUPPORT, other]))["tools"]
    assert tools["dynamic"] == []
    assert [(each["name"], each["description"]) for each in tools["static"]] == [
        ("find_order", "Find an order."),
        ("refund-it", "Refund an order."),
        ("copy", "Parameters with names that others use."),
    ]
    flags = {"hasAuth", "hasExecute", "hasModelOutputProjection", "hasOutputSchema", "requiresApproval"}
    for each in tools["static"]:
        assert set(each) == SOURCE | flags | {"name", "description", "inputSchema"}
        assert each["binding"]["logicalPath"] == each["logicalPath"]
        assert each["binding"]["owner"] == each["owner"]


def test_the_arguments_are_those_of_the_function_without_its_context() -> None:
    schema = arguments(refund)
    assert set(schema["properties"]) == {"order_id", "amount", "note"}
    assert schema["required"] == ["order_id", "amount"]
    assert schema["additionalProperties"] is False
    assert arguments(find_order)["properties"]["size"]["default"] == "small"
    assert set(arguments(copy)["properties"]) == {"self_", "model_config", "schema"}


@pytest.mark.parametrize("annotation", ["Missing", "object()"])
def test_a_tool_whose_arguments_cannot_be_described_takes_any(annotation: str) -> None:
    def odd(value: int) -> None: ...

    odd.__annotations__["value"] = annotation
    assert arguments(Tool(odd, "odd")) == {"type": "object"}


def test_the_model_is_the_one_that_is_used() -> None:
    scripted = Agent("scripted", model=ScriptedModel([answers("hi")]))
    assert said(App(agents=[scripted]))["agent"]["model"]["id"] == "scripted"
    assert said(App(agents=[SUPPORT]), model="openai-chat:gpt-5")["agent"]["model"]["id"] == "openai-chat:gpt-5"
    assert said(App(agents=[Agent("none")]))["agent"]["model"]["id"]
