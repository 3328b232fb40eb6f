"""Erasing a session: nothing that names it is left, and nothing that comes late brings it back."""

from __future__ import annotations

from typing import Any

from orchestrator.core.names import SessionId
from orchestrator.ids import erased_key
from orchestrator.journal.addresses import Addresses
from orchestrator.journal.scripts import Value

DOORS = 16
"""Addresses that one call lets go of."""


class Erasing(Addresses):
    """Erase."""

    def erase(self, session: SessionId) -> bool:
        """Do a piece of a session's erasure. True when nothing is left of it, also if there is no such session. Call it until then; the
        keeper goes on if nobody does. From the first call on it is gone for all others. Raises `JournalAway`.
        """
        done = self._erase_piece(session)
        if done:
            self._settle_all()
        return done

    def _erase_piece(self, session: SessionId) -> bool:
        if self._erase(session, "begin")[0] == b"gone":
            return True
        listed = list(self._list(session).items())
        for key, one in listed[:DOORS]:
            self._let_go(session, key, one.number + 1)
            self._forget_door(session, key)
        if listed and self._erase(session, "forgotten", rest=[key for key, _ in listed[:DOORS]])[0] == b"again":
            return False
        if len(listed) > DOORS:
            return False
        gen = 0
        while gen >= 0:
            answer = self._erase(session, "bodies", gen)
            if answer[0] != b"done":
                return bool(answer[0] == b"gone")
            gen = answer[1]
        return bool(self._erase(session, "end")[0] != b"again")

    def _erase(
        self, session: SessionId, step: str, gen: int = 0, rest: list[Value] | list[str] | None = None
    ) -> list[Any]:
        keys = self.keys(session)
        named = {"grave": erased_key(session), "step": step, "hist": keys.hist(0)[:-1], "gen": gen, "base": keys.base}
        return self._run("erase", keys, named, rest or ())
