"""What `/info` says of the App: its first agent and all tools, in the one shape that eve's clients accept."""

from __future__ import annotations

import hashlib
import inspect
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ConfigDict, create_model
from pydantic.errors import PydanticUserError

from orchestrator.agent import Agent, App
from orchestrator.tool import Tool, ToolContext

VERSION = 5
APPLICATION = {"kind": "application"}
ANYTHING: Mapping[str, Any] = {"type": "object"}


def info(app: App, model: str = "") -> dict[str, object]:
    """The description; `model` is what overrides the agents' own."""
    agent = app.agents[0]
    named = model or _model(agent)
    tools = {tool.name: tool for each in app.agents for tool in each.tools}
    about: dict[str, object] = {"description": agent.description} if agent.description else {}
    return {
        "kind": "eve-agent-info",
        "version": VERSION,
        "mode": "production",
        "agent": {
            "name": agent.name,
            "nodeId": "root",
            "agentRoot": "agent",
            "appRoot": ".",
            "config": _source("agent"),
            "model": {"id": named, "routing": {"kind": "external", "provider": named.partition(":")[0] or named}},
            **about,
        },
        "capabilities": {"devRoutes": False},
        "channels": {"routes": [], "shadowed": []},
        "composition": {"disabled": [], "shadowed": []},
        "connections": [],
        "diagnostics": {"discoveryErrors": 0, "discoveryWarnings": 0},
        "hooks": [],
        "instructions": {"dynamic": [], "static": []},
        "kernelEffects": [],
        "memories": [],
        "remoteAgents": {"entries": [], "total": 0},
        "sandbox": {
            **_source("sandbox"),
            "revisionHash": hashlib.sha256("".join(one.digest for one in app.agents).encode()).hexdigest()[:16],
        },
        "schedules": [],
        "skills": {"dynamic": [], "static": []},
        "subagents": {"local": [], "total": 0},
        "tools": {"dynamic": [], "static": [_tool(tool) for tool in tools.values()]},
        "workspace": {"resourceRoot": None, "rootEntries": []},
    }


def _source(path: str) -> dict[str, object]:
    backing = {"kind": "filesystem", "sourcePath": path, "externalDependencies": []}
    return {
        "logicalPath": path,
        "sourceId": path,
        "sourceKind": "module",
        "owner": APPLICATION,
        "binding": {"logicalPath": path, "owner": APPLICATION, "backing": backing},
    }


def _model(agent: Agent) -> str:
    if agent.model is None:
        return "none"
    return agent.model if isinstance(agent.model, str) else getattr(agent.model, "name", "") or "custom"


def _tool(tool: Tool) -> dict[str, object]:
    return {
        **_source(f"tools/{tool.name}"),
        "name": tool.name,
        "description": tool.description,
        "inputSchema": arguments(tool),
        "hasAuth": False,
        "hasExecute": True,
        "hasModelOutputProjection": False,
        "hasOutputSchema": False,
        "requiresApproval": tool.approval is not None and tool.approval.fixed != "never",
    }


@cache
def arguments(tool: Tool) -> Mapping[str, Any]:
    """The arguments of a tool as JSON Schema, from its signature.

    The worker's own schema has the docstring's words as well. It is made by the model library, which the web does not load.
    """
    fields: dict[str, Any] = {}
    try:
        # Names that only type checkers import cannot be found here.
        hints = typing.get_type_hints(
            inspect.unwrap(tool.fn), localns={"ToolContext": ToolContext}, include_extras=True
        )
        parameters = list(inspect.signature(tool.fn).parameters.values())[1 if tool.takes_context else 0 :]
        for place, parameter in enumerate(parameters):
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                return ANYTHING
            default = ... if parameter.default is parameter.empty else parameter.default
            # Under a name that no base class has, shown under its own.
            fields[f"a{place}"] = (hints.get(parameter.name, Any), _field(parameter.name, default))
        made = create_model(tool.name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        schema = made.model_json_schema(by_alias=True)
    except (PydanticUserError, NameError, TypeError, ValueError, AttributeError):
        return ANYTHING
    return {name: value for name, value in schema.items() if name != "title"}


def _field(name: str, default: object) -> Any:
    from pydantic import Field

    return Field(default, alias=name)
