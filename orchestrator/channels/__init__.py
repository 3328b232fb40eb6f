"""Channels: how messages reach a session by the address of a conversation, and how what it says is posted back.

Channel StandardWebhook      what a user writes or uses: who may come in, what a request says, who hears the session's events
Incoming Reply Request       what goes in and out of a channel's hooks
Event ReplyTo on             what a handler of events is told
handle                       `app.channel(name)`: send, cancel, clear, compact, reset by address
entries post_outbox          the worker's side: what is written with a commit, and posted after it
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator.channels.channel import Channel, Event, Incoming, Reply, ReplyTo, Request, on
from orchestrator.channels.entries import entries, listens
from orchestrator.channels.handles import AddressHandle, ChannelHandle, Sent, SessionHandle, handle

if TYPE_CHECKING:
    from orchestrator.channels.webhook import StandardWebhook

__all__ = [
    "AddressHandle",
    "Channel",
    "ChannelHandle",
    "Event",
    "Incoming",
    "Reply",
    "ReplyTo",
    "Request",
    "Sent",
    "SessionHandle",
    "StandardWebhook",
    "entries",
    "handle",
    "listens",
    "on",
]


def __getattr__(name: str) -> Any:
    if name != "StandardWebhook":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("orchestrator.channels.webhook").StandardWebhook


def __dir__() -> list[str]:
    return sorted(__all__)
