"""What a user says a channel is: who may come in, what a request means, and who hears what a session says.

    tickets = Channel("tickets")

    @tickets.on("message.completed")
    def answer(event: Event, to: ReplyTo) -> None:
        helpdesk.comment(to.address, event.data["message"], key=to.key)

Nothing here knows HTTP servers or Redis: a request is a value, and so is what it says.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from orchestrator.core.delivery import Control
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import BadRequest, ConfigError, Unauthorized
from orchestrator.parts import Message, Uploads
from orchestrator.tool import NAME

Policy = Literal["", "steer", "queue"]
Order = Literal["cancel"] | Control
Kind = Literal["message"] | Order
ORDERS: tuple[Order, ...] = ("cancel", "clear", "compact", "reset")
KINDS: tuple[Kind, ...] = ("message", *ORDERS)
MAX_ADDRESS_BYTES = 1024
ALL = "*"


class NotVerified(Unauthorized):
    """This request could not be verified."""


# What comes in ------------------------------------------------------------------------------------------------------------


class Headers(Mapping[str, str]):
    """The headers of a request; their names in any case."""

    __slots__ = ("_found",)

    def __init__(self, given: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> None:
        pairs = given.items() if isinstance(given, Mapping) else given
        self._found = {name.lower(): text for name, text in pairs}

    def __getitem__(self, name: str) -> str:
        return self._found[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"Headers({sorted(self._found)})"  # the values may be secrets


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a channel sees it. `body` is what was signed: its bytes, untouched."""

    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=Headers)
    body: bytes = b""
    query: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Mapping[str, Any]:
        """The body as a JSON object. Raises `BadRequest`."""
        try:
            found = json.loads(self.body.decode())
        except (ValueError, RecursionError):
            raise BadRequest(problem="The body is not JSON (in UTF-8).") from None
        if not isinstance(found, dict):
            raise BadRequest(problem="The body must be a JSON object.")
        return found


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a request says: a message for the session at `address`, or a control of it.

    `delivery_key` is the sender's id of this request; the same one again is the same message for 24 hours. `principal` is who
    speaks; without one it is the channel itself. `turn` is what a cancel is meant for.
    """

    address: str
    message: Message = ""
    principal: Principal | None = None
    delivery_key: str = ""
    agent: str = ""
    turn_policy: Policy = ""
    kind: Kind = "message"
    turn: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request with this and do nothing else: a URL that wants to be verified, for example. `body` is sent as JSON
    unless it is a text or bytes."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def address_of(given: object) -> str:
    """An address that can be one. Raises `BadRequest`."""
    if not isinstance(given, str) or not given:
        raise BadRequest(problem="The address is empty or no text: name the conversation.")
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise BadRequest(problem="The address holds half a character (a lone surrogate).") from None
    if size > MAX_ADDRESS_BYTES:
        raise BadRequest(problem=f"The address has {size} bytes; there may be {MAX_ADDRESS_BYTES}.")
    return given


# What goes out ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a session's stream, as every reader gets it."""

    type: str
    data: Mapping[str, Any]
    meta: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The event's own id: the same on every read."""
        return str(self.meta.get("id", ""))


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """Where an answer goes. `key` is the same each time this is tried, and for nothing else: hand it to whoever must not post twice.
    `attempt` counts from 1, in this process."""

    channel: str
    address: str
    session: SessionId
    key: str
    attempt: int = 1


Handle = Callable[[Event, ReplyTo], object]
H = TypeVar("H", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Handler:
    """Somebody who hears events. `name` is part of the key under which it posts: it must not change while posts are due."""

    name: str
    types: tuple[str, ...]
    run: Handle

    def hears(self, type: str) -> bool:
        """Whether events of this type are for it."""
        return type in self.types or ALL in self.types


def on(*types: str) -> Callable[[H], H]:
    """Above a method of a channel's class: it hears events of these types (`"*"`: all of them)."""
    _refuse_no_types(types)

    def mark(method: H) -> H:
        setattr(method, _MARK, types)
        return method

    return mark


_MARK = "_orchestrator_hears"


class Channel:
    """A way in and out: a name, and hooks to override. Without any, messages come in over the API and `app.channel(name)`.

    `agent` serves the conversations that begin here (the App's first if empty). `turn_policy` is for messages that do not say
    theirs (the App's if empty). `uploads` says which files a message may bring (what the App says without it).
    """

    name: str = ""
    agent: str = ""
    turn_policy: Policy = ""
    uploads: Uploads | None = None
    timeout_seconds: float = 15.0
    """How long a handler may take. One that takes longer has failed; a sync one is left to itself."""
    tries: int = 10
    """How often a handler that raises is tried before its event is given up."""

    def __init__(
        self, name: str = "", *, agent: str = "", turn_policy: Policy = "", uploads: Uploads | None = None
    ) -> None:
        self.name = name or type(self).name
        self.agent = agent or type(self).agent
        self.turn_policy = turn_policy or type(self).turn_policy
        self.uploads = uploads or type(self).uploads
        check_name(self.name)
        if self.turn_policy not in ("", "steer", "queue"):
            raise ConfigError(
                problem=f"The channel {self.name!r} has the turn policy {self.turn_policy!r}.",
                remedy="Use steer, queue or nothing.",
            )
        self._handlers: dict[str, Handler] = {}
        known = dict.fromkeys(name for base in reversed(type(self).__mro__) for name in vars(base))
        for method_name in known:
            if types := getattr(getattr(type(self), method_name, None), _MARK, ()):
                self._add(method_name, types, getattr(self, method_name))
        if type(self).on_event is not Channel.on_event:
            self._add("on_event", (ALL,), self.on_event)

    # In ---------------------------------------------------------------------------------------------------------------

    def verify(self, request: Request) -> None:
        """Return if this request may come in. It is the only check of `POST /v1/webhooks/<channel>`; a channel that does not
        override it has no such route. Raise `Unauthorized` or `BadRequest`."""
        del request
        raise NotVerified

    def parse(self, request: Request) -> Incoming | Reply | None:
        """What a verified request says. None: nothing that concerns us. Raise `BadRequest` for what makes no sense.

        Unless overridden: a JSON object with `address` and `message`, and perhaps `agent` and `turnPolicy`.
        """
        body = request.json()
        for name in ("address", "message"):
            if name not in body:
                raise BadRequest(problem=f"{name} is missing.")
        agent, policy = body.get("agent", ""), body.get("turnPolicy", "")
        if not isinstance(agent, str):
            raise BadRequest(problem="agent must be a text.")
        if policy not in ("", "steer", "queue"):
            raise BadRequest(problem="turnPolicy must be steer or queue.")
        return Incoming(body["address"], body["message"], agent=agent, turn_policy=policy)

    def key(self, request: Request) -> str:
        """The sender's id of this request, or nothing. What `parse` says in `delivery_key` comes before it."""
        del request
        return ""

    def identity(self, incoming: Incoming) -> str:
        """The identity of the message itself, or nothing: two requests with different ids and one identity are one message."""
        del incoming
        return ""

    def fetch_file(self, url: str) -> bytes | Awaitable[bytes | None] | None:
        """The bytes behind a URL that came with a message of this channel, for URLs that need its credentials. Sync or async; called in a
        worker, once. None: it is fetched like any other. What it raises is told to the model in the file's place."""
        del url
        return None

    @property
    def fetches(self) -> bool:
        """Whether it fetches files itself."""
        return type(self).fetch_file is not Channel.fetch_file

    @property
    def takes_webhooks(self) -> bool:
        """Whether it verifies requests of its own."""
        return type(self).verify is not Channel.verify

    # Out --------------------------------------------------------------------------------------------------------------

    def on_event(self, event: Event, to: ReplyTo) -> object:
        """Override it to hear every committed event. Sync or async; it is called again, with the same `to.key`, when it raises."""
        del event, to
        return None

    def on(self, *types: str) -> Callable[[H], H]:
        """Above a function `(event, to)`, sync or async: it hears events of these types (`"*"`: all of them)."""
        _refuse_no_types(types)

        def add(function: H) -> H:
            self._add(getattr(function, "__name__", type(function).__name__), types, function)
            return function

        return add

    @property
    def is_heard(self) -> bool:
        """Whether it has any handler."""
        return bool(self._handlers)

    def handlers(self, type: str) -> list[Handler]:
        """Who hears events of this type, in the order in which they were named."""
        return [handler for handler in self._handlers.values() if handler.hears(type)]

    def handler(self, name: str) -> Handler | None:
        """The handler of this name, if there is one (still)."""
        return self._handlers.get(name)

    def _add(self, name: str, types: tuple[str, ...], run: Handle) -> None:
        if name in self._handlers:
            raise ConfigError(
                problem=f"The channel {self.name!r} has two handlers called {name!r}.",
                remedy="Rename one: the name is part of the key it posts under.",
            )
        self._handlers[name] = Handler(name, types, run)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def check_name(name: str) -> None:
    """Refuse what cannot be a channel's name. Raises `ConfigError`."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            problem=f"{name!r} is no name for a channel.",
            remedy="Use up to 48 characters of a-z, 0-9, '.', '_' and '-'.",
        )


def _refuse_no_types(types: tuple[str, ...]) -> None:
    if not types or not all(isinstance(type, str) for type in types):
        raise ConfigError(problem="on() without an event type.", remedy='Write on("message.completed"), or on("*").')
