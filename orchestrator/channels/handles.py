"""`app.channel(name)`: what a program says to a session, by the address of its conversation or by its id.

    support = app.channel("support")
    support.from_("ticket-1007").send("Where is my order?", principal=customer)

All of it is admission: it returns when the message is stored, not when it is answered.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from orchestrator.asides import Context
from orchestrator.channels.channel import Order, Policy, address_of, check_name
from orchestrator.channels.desk import Desk
from orchestrator.core.delivery import Response
from orchestrator.core.names import DeliveryId, RequestId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import SessionNotActive
from orchestrator.parts import Message, body_of

if TYPE_CHECKING:
    from orchestrator.agent import App

HERE = "orchestrator.here"
"""Makes the engine of this process. Named and not imported: the App, a value, offers handles, and the engine is far above it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was accepted. `started`: it began this session. `again`: it had been accepted before, under the same key."""

    session: SessionId
    delivery: DeliveryId
    started: bool = False
    again: bool = False


class ChannelHandle:
    """A channel, ready to be used. Thread-safe; connects when first used."""

    def __init__(self, name: str, desk: Callable[[], Desk]) -> None:
        check_name(name)
        self.name = name
        self._desk = desk

    def from_(self, address: str) -> AddressHandle:
        """The conversation of this name: the session that has it now, or the one that the next message starts."""
        return AddressHandle(self.name, address_of(address), self._desk)

    def attach(self, session: str) -> SessionHandle:
        """A session by its id: exactly that one, never another in its place."""
        return SessionHandle(self.name, SessionId(session), self._desk)

    def resolve(self, address: str) -> SessionId | None:
        """The live session that has this address."""
        return self._desk().resolve(self.name, address_of(address))

    def __repr__(self) -> str:
        return f"ChannelHandle({self.name!r})"


class AddressHandle:
    """A conversation of a channel, by its address."""

    def __init__(self, channel: str, address: str, desk: Callable[[], Desk]) -> None:
        self.channel = channel
        self.address = address
        self._desk = desk

    def send(
        self,
        message: Message,
        *,
        principal: Principal | None = None,
        delivery_key: str = "",
        turn_policy: Policy = "",
        agent: str | None = None,
        context: Context | None = None,
        output: Mapping[str, object] | None = None,
    ) -> Sent:
        """A message to the session that has this address, or the first one of a new session.

        `context` is for this turn's model calls and is not kept in the history: a text, several, or an object. `output` is a JSON
        schema that the turn's result must fit.

        The same `delivery_key` with the same message is the same message for 24 hours, also after a reset. Raises
        `DeliveryKeyReused`, `InboxFull`, `BadRequest`, `JournalFull`, `JournalAway`.
        """
        found = self._desk().arrive(
            self.channel,
            self.address,
            body_of(message),
            principal=principal,
            agent=agent,
            policy=turn_policy,
            context=context,
            output=output,
            key=delivery_key,
        )
        return Sent(found.session, found.delivery, found.started, found.again)

    def answer(
        self,
        request: str,
        *,
        option: str = "",
        text: str = "",
        principal: Principal | None = None,
        delivery_key: str = "",
    ) -> Sent:
        """An answer to a request of the session that has this address. The stream says whether it counts.

        Raises `RequestUnknown` for what the session has never asked, `SessionNotActive`; else as `send`.
        """
        session = self.resolve()
        if session is None:
            raise SessionNotActive(session=f"{self.channel}/{self.address}")
        return _answer(self._desk(), session, Response(RequestId(request), option, text), principal, delivery_key)

    def cancel(self, turn: str = "", *, principal: Principal | None = None) -> SessionId | None:
        """Stop the open turn (only `turn`, if given). Returns the session that was told, None if there is none."""
        return self._control("cancel", principal, turn=turn)

    def clear(self, *, principal: Principal | None = None) -> SessionId | None:
        """Forget the history, at the end of the open turn. Returns the session that was told, None if there is none."""
        return self._control("clear", principal)

    def compact(self, *, principal: Principal | None = None) -> SessionId | None:
        """Make the history shorter, at the end of the open turn. Returns the session that was told, None if there is none."""
        return self._control("compact", principal)

    def reset(self, *, principal: Principal | None = None) -> SessionId | None:
        """End the session; the next message starts another. Returns the one that was ended, None if there is none."""
        return self._control("reset", principal)

    def resolve(self) -> SessionId | None:
        """The live session that has this address."""
        return self._desk().resolve(self.channel, self.address)

    def _control(self, kind: Order, principal: Principal | None, *, turn: str = "") -> SessionId | None:
        try:
            found = self._desk().control_at(self.channel, self.address, kind, turn=turn, principal=principal)
        except SessionNotActive:
            return None
        return found.session

    def __repr__(self) -> str:
        return f"AddressHandle({self.channel!r}, {self.address!r})"


class SessionHandle:
    """One session by its id, and the addresses of this channel that lead to it."""

    def __init__(self, channel: str, session: SessionId, desk: Callable[[], Desk]) -> None:
        self.channel = channel
        self.session = session
        self._desk = desk

    def send(
        self,
        message: Message,
        *,
        principal: Principal | None = None,
        delivery_key: str = "",
        turn_policy: Policy = "",
        context: Context | None = None,
        output: Mapping[str, object] | None = None,
    ) -> Sent:
        """A message to this session. Raises `SessionNotActive`, never starts another; else as by address."""
        found = self._desk().deliver(
            self.session,
            body_of(message),
            principal=principal,
            policy=turn_policy,
            context=context,
            output=output,
            key=delivery_key,
        )
        return Sent(self.session, found.delivery, again=found.again)

    def answer(
        self,
        request: str,
        *,
        option: str = "",
        text: str = "",
        principal: Principal | None = None,
        delivery_key: str = "",
    ) -> Sent:
        """An answer to a request of this session. The stream says whether it counts.

        Raises `RequestUnknown` for what the session has never asked, `SessionNotActive`; else as `send`.
        """
        return _answer(self._desk(), self.session, Response(RequestId(request), option, text), principal, delivery_key)

    def cancel(self, turn: str = "", *, principal: Principal | None = None) -> SessionId | None:
        """Stop the open turn (only `turn`, if given). Returns the session, None if it is not live."""
        return self._told(lambda desk: desk.cancel(self.session, turn=turn, principal=principal))

    def clear(self, *, principal: Principal | None = None) -> SessionId | None:
        """Forget the history, at the end of the open turn. Returns the session, None if it is not live."""
        return self._told(lambda desk: desk.control(self.session, "clear", principal=principal))

    def compact(self, *, principal: Principal | None = None) -> SessionId | None:
        """Make the history shorter, at the end of the open turn. Returns the session, None if it is not live."""
        return self._told(lambda desk: desk.control(self.session, "compact", principal=principal))

    def reset(self, *, principal: Principal | None = None) -> SessionId | None:
        """End it. Returns the session, None if it is not live."""
        return self._told(lambda desk: desk.control(self.session, "reset", principal=principal))

    def alias(self, address: str) -> None:
        """From now on this address leads here too; those it has stay. Repeats are free.

        Raises `AddressTaken` (of another live session), `AddressesFull` (256), `SessionNotActive`, `BadRequest`.
        """
        self._desk().take_address(self.session, self.channel, address_of(address))

    def drop(self, address: str) -> None:
        """This address leads here no more: the next message to it starts a new session. Nothing if it does not lead here."""
        self._desk().drop_address(self.session, self.channel, address_of(address))

    def _told(self, call: Callable[[Desk], object]) -> SessionId | None:
        try:
            call(self._desk())
        except SessionNotActive:
            return None
        return self.session

    def __repr__(self) -> str:
        return f"SessionHandle({self.channel!r}, {self.session!r})"


def _answer(desk: Desk, session: SessionId, said: Response, principal: Principal | None, key: str) -> Sent:
    found = desk.answer(session, [said], principal=principal, key=key)
    return Sent(session, found.delivery, again=found.again)


# Whose engine -------------------------------------------------------------------------------------------------------------

_LOCK = threading.Lock()
_MADE: dict[tuple[int, int], tuple[App, Desk]] = {}
"""By process and App: what was connected before a fork belongs to the parent."""


def handle(app: App, name: str, engine: Desk | None = None) -> ChannelHandle:
    """The channel `name` of this App, one of its channels or any other name. Without `engine` all handles of an App share one.

    Raises `ConfigError` for what is no name.
    """
    return ChannelHandle(name, (lambda: engine) if engine is not None else lambda: desk_of(app))


def desk_of(app: App) -> Desk:
    """The engine that the handles of this App share in this process. Raises `ConfigError`."""
    key = (os.getpid(), id(app))
    with _LOCK:
        if key not in _MADE:
            made: Desk = import_module(HERE).engine_of(app)
            _MADE[key] = (app, made)  # the App is kept: its id must not become another's
        return _MADE[key][1]
