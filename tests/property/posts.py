"""What a session has left to be posted, and what was posted of it: at least once, in order, and nothing that it did not leave."""

from __future__ import annotations

import json
from collections.abc import Sequence

import redis

from orchestrator.channels import ReplyTo
from orchestrator.channels.entries import Entry
from orchestrator.core.names import SessionId
from orchestrator.ids import address_shard
from orchestrator.journal.keys import door
from orchestrator.journal.outbox import DROP
from tests.property.agent import CHANNEL, HEARD
from tests.property.order import Must


class Posts:
    """The outbox of one session. What was done is done, also if the store forgets it."""

    def __init__(self, client: redis.Redis, prefix: str, session: SessionId, must: Must, tries: int) -> None:
        """An entry whose handler has failed so often may be given up."""
        self._client, self._prefix, self._session, self._must = client, prefix, session, must
        self._most_tries = tries
        self._done: set[str] = set()

    def begins(self, to: ReplyTo, left: Sequence[bytes], *, all_known: bool) -> None:
        """A handler is told something: it was left to be told, and all before it is done."""
        keys = [self._key(entry) for entry in left]
        if to.key not in keys:
            self._must(not all_known, f"{to.key} was posted, and nobody left it")
            return
        undone = [key for key in keys[: keys.index(to.key)] if key not in self._done and not key.startswith("drop")]
        self._must(not undone, f"{to.key} was posted before {undone}")

    def done(self, key: str) -> None:
        """It was posted."""
        self._done.add(key)

    def taken(self, entries: Sequence[bytes], tries: int) -> None:
        """Somebody is about to post these, the first of them for the `tries`-th time."""
        if entries and tries >= self._most_tries:
            self._done.add(self._key(entries[0]))

    def settled(self, entries: Sequence[bytes]) -> None:
        """These left the outbox."""
        for entry in entries:
            if entry.startswith(DROP):
                key = entry.removeprefix(DROP).decode()
                led = self._client.get(door(self._prefix, key, address_shard(key)).address)
                self._must(
                    led != self._session.encode(), f"the address {key} was settled, and leads to {self._session}"
                )
            else:
                key = self._key(entry)
                self._must(key in self._done, f"{key} left the outbox, and was not posted")

    def whole(self, left: Sequence[bytes], events: Sequence[bytes], address: str) -> None:
        """Every committed event of a kind that is heard was left once for this address, in order."""
        told = [Entry.unpack(entry) for entry in left if not entry.startswith(DROP)]
        lines = [entry.line for entry in told if entry.address == address and entry.channel == CHANNEL]
        heard = [line.decode() for line in events if json.loads(line)["type"] in HEARD]
        self._must(lines == heard, f"{address} was told {len(lines)} of {len(heard)} events")

    def _key(self, entry: bytes) -> str:
        if entry.startswith(DROP):
            return entry.decode(errors="replace").lstrip("\0")
        read = Entry.unpack(entry)
        return read.key(self._session, read.event)
