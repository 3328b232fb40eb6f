"""The outbox: what a session has to do elsewhere, written by its own commits, done after them and at least once."""

from __future__ import annotations

from typing import cast

from orchestrator.core.names import SessionId
from orchestrator.journal.addresses import Addresses
from orchestrator.journal.answers import Out
from orchestrator.journal.client import spoken

DROP = b"\0drop "
"""How the entries begin that an end leaves for addresses of other shards."""


class Outbox(Addresses):
    """Take out, settle."""

    def take_out(self, session: SessionId, holder: str, lease_ms: int = 30_000, most: int = 64) -> list[Out]:
        """The first entries of a session's outbox, if nobody else holds it and no next try is waited for; nobody else gets them
        for `lease_ms`. Address drops among them are carried out here and come back as `done`. Settle what you took, with the same
        `holder`. Raises `JournalAway`."""
        keys = self.keys(session)
        with spoken():
            turn = cast("bytes | None", self.client.hget(keys.own, "out_turn"))
        named = {"holder": holder, "turn": turn or b"0", "lease_ms": lease_ms, "most": most}
        answer = self._run("take_out", keys, named)
        if answer[0] != b"done":
            return []
        taken = list[Out]()
        for number, entry in enumerate(answer[3], answer[1]):
            drop = entry.startswith(DROP)
            if drop:
                key, _, drop_number = entry.removeprefix(DROP).decode().partition(" ")
                self._let_go(session, key, int(drop_number))
            taken.append(Out(number, entry, drop, 1 if taken else answer[2]))
        return taken

    def settle_out(self, session: SessionId, holder: str, done: int, retry_in_ms: int = 0) -> int:
        """The first `done` entries are done with. Returns how many are left; they are looked at again in `retry_in_ms`. Safe to repeat."""
        named = {"holder": holder, "done": done, "retry_ms": retry_in_ms, "grace_ms": self.grace_ms}
        answer = self._run("settle_out", self.keys(session), named)
        return int(answer[1]) if answer[0] == b"done" else 0
