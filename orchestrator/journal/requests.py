"""Requests as they are kept: notes, for as long as the session is, and links that answer one of them, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from orchestrator.core.names import DeliveryId, RequestId, SessionId
from orchestrator.errors import LinkUnknown
from orchestrator.ids import link_key, shards
from orchestrator.journal.client import spoken
from orchestrator.journal.erasing import Erasing
from orchestrator.journal.keys import shard_key


@dataclass(frozen=True, slots=True)
class Claimed:
    """A link that was used, now or before, for `delivery`."""

    session: SessionId
    request: RequestId
    delivery: DeliveryId


class Requests(Erasing):
    """Notes and links."""

    def notes(self, session: SessionId, names: Sequence[RequestId]) -> dict[RequestId, bytes]:
        """What is noted of these requests."""
        if not names:
            return {}
        with spoken():
            found = cast("list[bytes | None]", self.client.hmget(self.keys(session).req, list(names)))
        return {name: note for name, note in zip(names, found, strict=True) if note is not None}

    def all_notes(self, session: SessionId) -> list[bytes]:
        """What is noted of all requests of a session."""
        with spoken():
            return cast("list[bytes]", self.client.hvals(self.keys(session).req))

    def look_at(self, token: str) -> Claimed:
        """Where a link leads, and for which delivery it was used (empty: for none yet). Raises `LinkUnknown`, `JournalAway`."""
        with spoken():
            found = cast("list[bytes | None]", self.client.hmget(self._link(token), ["session", "request", "owner"]))
        session, request, owner = ((part or b"").decode() for part in found)
        if not session:
            raise LinkUnknown()
        return Claimed(SessionId(session), RequestId(request), DeliveryId(owner))

    def _link(self, token: str) -> str:
        shard = token[:2]
        if shard not in shards():
            raise LinkUnknown()
        return shard_key(self.prefix, shard, f"link:{link_key(token)}")

    def claim(self, token: str, delivery: DeliveryId) -> Claimed:
        """Use a link for a delivery. Raises `LinkUnknown`, `JournalFull`, `JournalAway`."""
        answer = self._run("claim", None, {"link": self._link(token), "delivery": delivery}, level=self.durability)
        if answer[0] == b"gone":
            raise LinkUnknown()
        session, request, owner = (part.decode() for part in answer[2:])
        return Claimed(SessionId(session), RequestId(request), DeliveryId(owner))
