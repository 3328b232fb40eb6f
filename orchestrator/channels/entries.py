"""What a commit leaves in the outbox for channels: one entry for each event, address and handler. Pure.

An entry holds the event's own line, so that it can be posted when the stream is long gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.agent import App
from orchestrator.channels.channel import Channel, Event
from orchestrator.core.names import SessionId
from orchestrator.ids import address_key

VERSION = 1
OPERATION = "op"
"""The kind of an address that is no way to a conversation: the key of a create."""


class Address(Protocol):
    """One of a session's addresses, as the journal lists them."""

    @property
    def channel(self) -> str:
        """Whose it is."""
        ...

    @property
    def text(self) -> str:
        """The name of the conversation there."""
        ...

    @property
    def kind(self) -> str:
        """Whether it is a way to a conversation."""
        ...


class UnreadableEntry(Exception):
    """An entry of another version, or none of ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to post: `handler` of `channel` is told the event in `line`, for `address`."""

    channel: str
    handler: str
    address: str
    line: str
    suffix: str = ""
    """Tells posts of one event to several addresses of a channel apart."""

    def pack(self) -> bytes:
        """As it is stored."""
        return json.dumps(
            [VERSION, self.channel, self.handler, self.address, self.suffix, self.line],
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode("utf-8", "surrogatepass")  # an address may hold what is no character; a commit must not fail for it

    @classmethod
    def unpack(cls, packed: bytes) -> Entry:
        """From what is stored. Raises `UnreadableEntry`."""
        try:
            version, channel, handler, address, suffix, line = json.loads(packed)
        except (ValueError, TypeError) as broken:
            raise UnreadableEntry(str(broken)) from broken
        if version != VERSION:
            raise UnreadableEntry(f"version {version}")
        return cls(channel, handler, address, line, suffix)

    @property
    def event(self) -> Event:
        """The event itself."""
        found = json.loads(self.line)
        return Event(found["type"], found["data"], found["meta"])

    def key(self, session: SessionId, event: Event) -> str:
        """The key under which it is posted, each time it is tried."""
        return "/".join([session, event.id, self.handler, *([self.suffix] if self.suffix else [])])


def listens(app: App) -> bool:
    """Whether any channel of the App has a handler: only then addresses have to be looked up for a commit."""
    return any(channel.is_heard for channel in app.channels)


def entries(app: App, addresses: Sequence[Address], events: Iterable[str]) -> tuple[bytes, ...]:
    """What has to be posted when these lines are committed, in their order, for a session with these addresses."""
    found = [(channel, sorted(_addresses(channel, addresses))) for channel in app.channels if channel.is_heard]
    if not any(of_channel for _, of_channel in found):
        return ()
    return tuple(entry.pack() for line in events for channel, known in found for entry in _of(channel, known, line))


def _addresses(channel: Channel, addresses: Sequence[Address]) -> list[str]:
    return [one.text for one in addresses if one.channel == channel.name and one.kind != OPERATION]


def _of(channel: Channel, addresses: list[str], line: str) -> Iterator[Entry]:
    for handler in channel.handlers(type_of(line)):
        for place, address in enumerate(addresses):
            suffix = address_key(channel.name, address)[:8] if place else ""
            yield Entry(channel.name, handler.name, address, line, suffix)


def type_of(line: str) -> str:
    """The type of an event, without reading all of it."""
    head = '{"type":"'
    if line.startswith(head):
        return line[len(head) : line.index('"', len(head))]
    return str(json.loads(line)["type"])
