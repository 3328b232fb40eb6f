"""What takes more than one request, written once for both clients: a flow yields what is to be asked and is sent the answers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.client import asks
from orchestrator.client.asks import Ask, Beside, Message, Sent
from orchestrator.client.errors import BadRequest

T = TypeVar("T")
Flow = Generator[Ask[Any], Any, T]


@dataclass(frozen=True, slots=True)
class Begun:
    """A session that was started with a message. The answer to a create does not say its delivery."""

    session: str
    delivery: str | None


def create(*, key: str, agent: str, may_ask: bool, operation: str, named: bool) -> Flow[str]:
    """A session without a message. A caller with a name says which operation it is; of others a second one does no harm."""
    if operation or named:
        try:
            named_ask = asks.create(None, {}, agent=agent, may_ask=may_ask, operation=operation or key)
            return (yield named_ask)  # type: ignore[no-any-return]  # the ask says what
        except BadRequest as refused:
            if operation or not _knows_no_names(refused):
                raise
    return (yield asks.create(None, {}, agent=agent, may_ask=may_ask, operation=""))  # type: ignore[no-any-return]


def start(
    message: Message, beside: Beside, *, key: str, agent: str, may_ask: bool, operation: str, named: bool
) -> Flow[Begun]:
    """A session with its first message, once, whatever gets lost on the way.

    A caller with a name says which operation it is. The server takes none from callers without one: these make an empty session first,
    and send the message into it under its key.
    """
    if operation or named:
        try:
            ask = asks.create(message, beside, agent=agent, may_ask=may_ask, operation=operation or key)
            return Begun((yield ask), None)
        except BadRequest as refused:
            if operation or not _knows_no_names(refused):
                raise
    session = yield from create(key=key, agent=agent, may_ask=may_ask, operation="", named=False)
    sent: Sent = yield asks.send(asks.of_session(session), message, beside, key=key)
    return Begun(sent.session, sent.delivery)


def _knows_no_names(refused: BadRequest) -> bool:
    """Whether this is a server that lets in callers without a name and nobody else: it does not look at credentials."""
    return "operationId" in str(refused)
