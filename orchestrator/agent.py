"""What a user says an agent is: values, no behaviour."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from orchestrator.core.budget import Budget, Budgets
from orchestrator.core.delivery import TurnPolicy
from orchestrator.errors import ConfigError
from orchestrator.parts import ANY_FILES, Uploads
from orchestrator.tool import NAME, SessionView, Tool

if TYPE_CHECKING:
    from orchestrator.auth import Authenticator
    from orchestrator.channels import Channel, ChannelHandle
    from orchestrator.config import Settings
    from orchestrator.core.names import SessionId
    from orchestrator.core.snapshot import Principal
    from orchestrator.ports import Model

Access = Callable[["Principal | None", "SessionId", str], bool]
Instructions = str | Callable[[SessionView], str]
"""A text, or a function of the session that makes one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session may use: tokens in and out as the provider counts them, US dollars where the price is known, and steps (answers of
    the model). What begins with `turn_` is for each turn by itself.

    The model call that crosses a limit is finished. Before the next one the turn asks whether it may go on; `continue` gives it as much
    again of everything, `stop` cancels the turn. Where nobody can be asked, the turn fails. None: no limit.
    """

    input_tokens: int | None = 40_000_000
    output_tokens: int | None = None
    cost_usd: float | None = None
    steps: int | None = None
    turn_input_tokens: int | None = None
    turn_output_tokens: int | None = None
    turn_cost_usd: float | None = None
    turn_steps: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (most := getattr(self, name)) is not None and not most > 0:
                raise ConfigError(
                    problem=f"Limits({name}={most!r}) is not above 0.", remedy="Give a number, or None for no limit."
                )

    @property
    def budgets(self) -> Budgets:
        """The same as the engine counts it."""
        session = Budget(self.input_tokens, self.output_tokens, _micro(self.cost_usd), self.steps)
        turn = Budget(self.turn_input_tokens, self.turn_output_tokens, _micro(self.turn_cost_usd), self.turn_steps)
        return Budgets(session, turn)


def _micro(usd: float | None) -> int | None:
    return None if usd is None else max(1, round(usd * 1_000_000))


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: a name, instructions, a model, tools.

    `instructions` are rebuilt for each turn and sent as the system's; a deploy changes them under a running conversation.
    `user_instructions` are written once, at the head of the history, and stay as they were written.
    `model` is a name that pydantic-ai knows (`openai-chat:gpt-5`, `anthropic:claude-sonnet-5`, ...) or a model object such as
    `ScriptedModel`; `ORCHESTRATOR_MODEL` overrides it. `description` is for people and other agents.
    When the history fills the share `compact_at` of the model's `context_window` (tokens; known for most models, given here for
    others), what was said long ago is summed up.
    `limits` are what one session may use. A step whose model call fails until it is given up is tried on `fallback_model`.
    """

    name: str
    instructions: Instructions = ""
    model: str | Model | None = None
    tools: Sequence[Tool] = ()
    user_instructions: Instructions = ""
    description: str = ""
    context_window: int | None = None
    compact_at: float = 0.9
    limits: Limits = Limits()
    fallback_model: str | Model | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                problem=f"{self.name!r} is no name for an agent.",
                remedy="Use up to 48 characters of a-z, 0-9, '.', '_' and '-'.",
            )
        if not 0 < self.compact_at <= 1 or (self.context_window is not None and self.context_window < 1):
            raise ConfigError(
                problem=f"The agent {self.name!r} has a context_window below 1 or a compact_at that is no share.",
                remedy="Give the model's tokens as context_window, and a share between 0 and 1 as compact_at.",
            )
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise ConfigError(
                    problem=f"The agent {self.name!r} was given {tool!r} as a tool.",
                    remedy="Put @tool above the function.",
                )
        names = [tool.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    problem=f"The agent {self.name!r} has two tools called {name!r}.",
                    remedy="Rename one: @tool(name=...).",
                )

    @property
    def digest(self) -> str:
        """16 hex characters that say which definition this is: name, model, fixed instructions, tools."""
        told = [self.instructions, self.user_instructions]
        parts = [self.name, str(self.model), *(text for text in told if isinstance(text, str))]
        parts += [f"{tool.name}:{tool.description}" for tool in self.tools]
        parts += [str(self.fallback_model)] if self.fallback_model else []
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, eq=False)
class App:
    """What one deployment offers: agents (the first is used where none is named) and the channels that lead to them.

    `turn_policy` says what a message does that comes while its sender's turn is open, where neither the message nor its
    channel says it: `steer` joins the turn, `queue` waits for its end.
    `auth` are the credentials that are accepted (`orchestrator.auth`), in the order in which they are asked; without it the
    settings say it. `access(principal, session, action)` may let a user into a session they have no part in. `uploads` says which
    files a message may bring.
    """

    agents: Sequence[Agent]
    channels: Sequence[Channel] = ()
    turn_policy: TurnPolicy = "steer"
    auth: Sequence[Authenticator] = ()
    access: Access | None = None
    settings: Settings | None = None
    uploads: Uploads = ANY_FILES
    by_name: dict[str, Agent] = field(init=False, default_factory=dict)
    channels_by_name: dict[str, Channel] = field(init=False, default_factory=dict)

    def channel(self, name: str) -> ChannelHandle:
        """A channel to talk through from Python: `app.channel("support").from_("customer-17").send("Hello")`."""
        from importlib import import_module

        made: ChannelHandle = import_module("orchestrator.channels").handle(self, name)
        return made

    def __post_init__(self) -> None:
        if self.turn_policy not in get_args(TurnPolicy):
            raise ConfigError(problem=f"turn_policy={self.turn_policy!r} is no policy.", remedy="Use steer or queue.")
        names = [channel.name for channel in self.channels]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(problem=f"The App has two channels called {name!r}.", remedy="Rename one.")
        self.channels_by_name.update({channel.name: channel for channel in self.channels})
        if not self.agents:
            raise ConfigError(problem="The App has no agent.", remedy="Write App(agents=[Agent(...)]).")
        for agent in self.agents:
            if agent.name in self.by_name:
                raise ConfigError(problem=f"The App has two agents called {agent.name!r}.", remedy="Rename one.")
            self.by_name[agent.name] = agent
        for channel in self.channels:
            if channel.agent and channel.agent not in self.by_name:
                raise ConfigError(
                    problem=f"The channel {channel.name!r} wants the agent {channel.agent!r}, which the App has not.",
                    remedy=f"It has: {', '.join(self.by_name)}.",
                )
