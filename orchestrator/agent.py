"""What a user says an agent is: values, no behaviour."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.tool import NAME, SessionView, Tool

if TYPE_CHECKING:
    from orchestrator.config import Settings
    from orchestrator.ports import Model

Instructions = str | Callable[[SessionView], str]
"""A text, or a function of the session that makes one."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: a name, instructions, a model, tools.

    `instructions` are rebuilt for each turn and sent as the system's; a deploy changes them under a running conversation.
    `user_instructions` are written once, at the head of the history, and stay as they were written.
    `model` is a name that pydantic-ai knows (`openai-chat:gpt-5`, `anthropic:claude-sonnet-5`, ...) or a model object such as
    `ScriptedModel`; `ORCHESTRATOR_MODEL` overrides it. `description` is for people and other agents.
    """

    name: str
    instructions: Instructions = ""
    model: str | Model | None = None
    tools: Sequence[Tool] = ()
    user_instructions: Instructions = ""
    description: str = ""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                problem=f"{self.name!r} is no name for an agent.",
                remedy="Use up to 48 characters of a-z, 0-9, '.', '_' and '-'.",
            )
        names = [tool.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    problem=f"The agent {self.name!r} has two tools called {name!r}.",
                    remedy="Rename one: @tool(name=...).",
                )
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise ConfigError(
                    problem=f"The agent {self.name!r} was given {tool!r} as a tool.",
                    remedy="Put @tool above the function.",
                )

    @property
    def digest(self) -> str:
        """16 hex characters that say which definition this is: name, model, fixed instructions, tools."""
        told = [self.instructions, self.user_instructions]
        parts = [self.name, str(self.model), *(text for text in told if isinstance(text, str))]
        parts += [f"{tool.name}:{tool.description}" for tool in self.tools]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class App:
    """The agents that one deployment offers. The first is used where none is named."""

    agents: Sequence[Agent]
    settings: Settings | None = None
    by_name: dict[str, Agent] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.agents:
            raise ConfigError(problem="The App has no agent.", remedy="Write App(agents=[Agent(...)]).")
        for agent in self.agents:
            if agent.name in self.by_name:
                raise ConfigError(problem=f"The App has two agents called {agent.name!r}.", remedy="Rename one.")
            self.by_name[agent.name] = agent
