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
    """A session that was started with a message, whose delivery has no id of its own in some answers."""

    session: str
    delivery: str | None


def start(
    message: Message, beside: Beside, *, key: str, agent: str, may_ask: bool, operation: str, named: bool
) -> Flow[Begun]:
    """A session with its first message, once, whatever gets lost on the way.

    A caller with a name says which operation it is. The server takes none from callers without one: these make an empty session first,
    of which a second one does no harm, and send the message into it under its key.
    """
    if operation or named:
        try:
            return Begun(
                (yield asks.create(message, beside, agent=agent, may_ask=may_ask, operation=operation or key)), None
            )
        except BadRequest as refused:
            # A server that lets in callers without a name and nobody else does not look at credentials: we have none there.
            if operation or "operationId" not in str(refused):
                raise
    session: str = yield asks.create(None, {}, agent=agent, may_ask=may_ask, operation="")
    sent: Sent = yield asks.send(asks.of_session(session), message, beside, key=key)
    return Begun(sent.session, sent.delivery)
