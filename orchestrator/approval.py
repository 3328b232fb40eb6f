"""Approvals: which calls of a tool a person must approve, what they are asked, and who may answer.

    @tool(approval=always(prompt="Refund {amount} EUR for {order_id}?"))
    @tool(approval=once())
    @tool(approval=Approval(lambda call: "ask" if call.input["amount"] > 100 else "run"))

Approval is leave, and nothing more: the call runs as whoever caused the turn, with exactly the arguments that were shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from orchestrator.core.names import CallId, RequestId, SessionId, TurnId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import ConfigError

Fixed = Literal["never", "once", "always"]
Says = Literal["run", "ask"]


@dataclass(frozen=True, slots=True)
class Deny:
    """A policy's answer: this call must not run. The model reads the reason."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class GatedCall:
    """What a policy is told about a call. `approved` are the tools that were approved in this session."""

    session: SessionId
    turn: TurnId
    call: CallId
    tool: str
    input: Mapping[str, object]
    requester: Principal | None
    approved: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Responder:
    """What a response policy is told: the call, who caused it, who has answered, and what."""

    call: GatedCall
    request: RequestId
    responder: Principal | None
    decision: Literal["approve", "cancel"]
    text: str = ""


Verdict = Says | Deny | bool
"""`run` or True: no leave is needed. `ask`: a person decides. `Deny` or False: it must not run."""
Policy = Callable[[GatedCall], Verdict | Awaitable[Verdict]]
ResponsePolicy = Callable[[Responder], bool | Awaitable[bool]]
Prompt = str | Callable[[GatedCall], str]


@dataclass(frozen=True, slots=True)
class Approval:
    """When a call needs leave, what is asked, who may give it, and for how long.

    `policy` is a function of the call (sync or async), or `never`, `once` (the first time in a session), `always`. One that raises
    asks. It is asked once more when the call has leave and is about to run: by then it can only still forbid it (`Deny`).
    `prompt` is a text with the arguments in braces, or a function. `response` says whether who has answered may; without it that is the
    person who caused the turn. It is asked for refusals, too. After `expires` the call is refused.
    """

    policy: Fixed | Policy = "always"
    prompt: Prompt = ""
    response: ResponsePolicy | None = None
    expires: timedelta | None = None

    def __post_init__(self) -> None:
        if isinstance(self.policy, str) and self.policy not in ("never", "once", "always"):
            raise ConfigError(
                problem=f"{self.policy!r} is no policy.", remedy="Use never, once, always or a function of the call."
            )
        if self.expires is not None and self.expires <= timedelta(0):
            raise ConfigError(problem="An approval expires at once.", remedy="Give `expires` a time above zero.")

    @property
    def fixed(self) -> Fixed | None:
        """The policy where it is no function."""
        return self.policy if isinstance(self.policy, str) else None

    def text(self, call: GatedCall) -> str:
        """What people are asked. A prompt that cannot be made is replaced by a plain one."""
        plain = f"Run {call.tool}?"
        try:
            made: object = self.prompt.format(**call.input) if isinstance(self.prompt, str) else self.prompt(call)
        except Exception:
            return plain
        return made if isinstance(made, str) and made else plain


def never() -> Approval:
    """No call needs leave."""
    return Approval("never")


def once(*, prompt: Prompt = "", response: ResponsePolicy | None = None, expires: timedelta | None = None) -> Approval:
    """The first call in a session needs leave."""
    return Approval("once", prompt, response, expires)


def always(
    *, prompt: Prompt = "", response: ResponsePolicy | None = None, expires: timedelta | None = None
) -> Approval:
    """Every call needs leave."""
    return Approval("always", prompt, response, expires)


def verdict_of(said: object) -> Says | Deny:
    """What a policy has said. Raises `ValueError` for what is no verdict."""
    match said:
        case True | "run":
            return "run"
        case "ask":
            return "ask"
        case False:
            return Deny()
        case Deny():
            return said
        case _:
            raise ValueError(f"{said!r} is no verdict: say run, ask or Deny(reason)")
