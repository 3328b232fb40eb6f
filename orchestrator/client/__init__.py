"""The HTTP API from outside: sessions, messages, answers, and streams that go on where they were cut off.

    with Client("https://agents.example.com", auth=KEY) as client:
        turn = client.start("My book never came: B-1006.")
        print(turn.text())

Ways in:           Client AsyncClient, and what they give: Session Turn Address and their async twins
What comes out:    Outcome events Answer Request
How long it waits: Patience
What can go wrong: ClientError and its tree in `orchestrator.client.errors`

It needs neither Celery nor Redis nor Flask, and starts nothing.
"""

from __future__ import annotations

from orchestrator.client import events
from orchestrator.client.aio import AsyncAddress, AsyncClient, AsyncSession, AsyncTurn
from orchestrator.client.errors import (
    AddressTaken,
    BadRequest,
    ClientError,
    DeliveryKeyReused,
    Forbidden,
    InboxFull,
    NoAnswer,
    Refused,
    RequestUnknown,
    ServerAway,
    SessionNotActive,
    SessionNotFound,
    StreamBroken,
    TookTooLong,
    Unauthorized,
)
from orchestrator.client.events import Event
from orchestrator.client.retrying import Patience
from orchestrator.client.sync import Address, Client, Session, Turn
from orchestrator.client.turns import Outcome
from orchestrator.client.values import (
    Answer,
    Failure,
    Health,
    Request,
    RequestRecord,
    SessionRecord,
    SessionSeen,
    Usage,
)

__all__ = [
    "Address",
    "AddressTaken",
    "Answer",
    "AsyncAddress",
    "AsyncClient",
    "AsyncSession",
    "AsyncTurn",
    "BadRequest",
    "Client",
    "ClientError",
    "DeliveryKeyReused",
    "Event",
    "Failure",
    "Forbidden",
    "Health",
    "InboxFull",
    "NoAnswer",
    "Outcome",
    "Patience",
    "Refused",
    "Request",
    "RequestRecord",
    "RequestUnknown",
    "ServerAway",
    "Session",
    "SessionNotActive",
    "SessionNotFound",
    "SessionRecord",
    "SessionSeen",
    "StreamBroken",
    "TookTooLong",
    "Turn",
    "Unauthorized",
    "Usage",
    "events",
]
