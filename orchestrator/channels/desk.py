"""What channels ask of the engine. It is above them; this is all they know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from orchestrator.asides import Context
from orchestrator.core.delivery import Body, Control, Response
from orchestrator.core.names import DeliveryId, SessionId
from orchestrator.core.snapshot import Principal


class Arrival(Protocol):
    """What became of something that came to an address."""

    @property
    def session(self) -> SessionId:
        """Where it went."""
        ...

    @property
    def delivery(self) -> DeliveryId:
        """What it is called there."""
        ...

    @property
    def started(self) -> bool:
        """Whether it began the session."""
        ...

    @property
    def again(self) -> bool:
        """Whether it had come before."""
        ...


class Admission(Protocol):
    """What became of something that came to a session."""

    @property
    def delivery(self) -> DeliveryId:
        """What it is called there."""
        ...

    @property
    def again(self) -> bool:
        """Whether it had come before."""
        ...


class Desk(Protocol):
    """The engine, as channels see it."""

    def arrive(
        self,
        channel: str,
        address: str,
        message: Body,
        *,
        principal: Principal | None = None,
        agent: str | None = None,
        policy: str = "",
        context: Context | None = None,
        output: Mapping[str, object] | None = None,
        delivery: DeliveryId | None = None,
        key: str = "",
        identity: str = "",
        digest: str = "",
    ) -> Arrival:
        """A message to the session at an address, or the first one of a new session."""
        ...

    def control_at(
        self,
        channel: str,
        address: str,
        kind: Literal["cancel"] | Control,
        *,
        turn: str = "",
        principal: Principal | None = None,
        delivery: DeliveryId | None = None,
    ) -> Arrival:
        """A control of the session at an address."""
        ...

    def deliver(
        self,
        session: SessionId,
        message: Body,
        *,
        principal: Principal | None = None,
        policy: str = "",
        context: Context | None = None,
        output: Mapping[str, object] | None = None,
        key: str = "",
    ) -> Admission:
        """A message to a session."""
        ...

    def answer(
        self, session: SessionId, responses: Sequence[Response], *, principal: Principal | None = None, key: str = ""
    ) -> Admission:
        """Answers to requests of a session."""
        ...

    def cancel(self, session: SessionId, *, turn: str = "", principal: Principal | None = None) -> object:
        """Stop a session's turn."""
        ...

    def control(self, session: SessionId, kind: Control, *, principal: Principal | None = None) -> object:
        """Clear, compact or reset a session."""
        ...

    def reserve(self, channel: str, key: str, digest: str) -> object:
        """Remember what a channel's key came with. Raises `DeliveryKeyReused` for another digest under it."""
        ...

    def resolve(self, channel: str, address: str) -> SessionId | None:
        """The live session at an address."""
        ...

    def take_address(self, session: SessionId, channel: str, address: str) -> object:
        """Let an address lead to a session."""
        ...

    def drop_address(self, session: SessionId, channel: str, address: str) -> object:
        """Let it lead there no more."""
        ...
