"""Files: bytes too many for a script. They are written first and go by themselves; whoever needs them has the journal keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from orchestrator.core.names import SessionId, Token
from orchestrator.errors import JournalAway
from orchestrator.journal.calling import Calling
from orchestrator.journal.client import spoken
from orchestrator.journal.keys import Keys

UNKEPT_SECONDS = 600
"""How long bytes that nobody has kept are there."""
TRIES = 5


class Blobs(Calling):
    """Write, read and keep the bytes of files."""

    def _run_with_blobs(
        self, name: str, at: Keys, named: Mapping[str, object], blobs: Mapping[str, bytes], rest: Sequence[str] = ()
    ) -> list[Any]:
        """Run a script that admits something with these bytes. They are written when it asks for them, and so not for what it refuses.
        Raises `JournalFull`, `JournalAway`."""
        named = {**named, "blobs": " ".join(blobs)}
        for _ in range(TRIES):
            answer = self._run(name, at, named, rest, level=self.durability)
            if answer[0] != b"blobs":
                return answer
            self.write_blobs(SessionId(answer[1].decode()), blobs)
        raise JournalAway(reason="the files of a message are gone before it is admitted")

    def write_blobs(self, session: SessionId, blobs: Mapping[str, bytes]) -> None:
        """Write bytes where there are none yet; ten minutes later they go, unless they are kept. Raises `JournalFull`, `JournalAway`."""
        keys = self.keys(session)
        with spoken():
            pipe = self.client.pipeline(transaction=False)
            for name, data in blobs.items():
                pipe.set(keys.blob(name), data, ex=UNKEPT_SECONDS, nx=True)
            pipe.execute()

    def keep_blobs(self, session: SessionId, token: Token, names: Sequence[str]) -> list[str]:
        """Keep what was fetched for files of the history. Returns those that are not there; all, if the session is not this owner's.
        Raises `JournalAway`."""
        keys = self.keys(session)
        answer = self._run("keep_blob", keys, {"token": token, "base": keys.base}, names)
        return [name.decode() for name in answer[1:]] if answer[0] == b"done" else list(names)

    def blob_sizes(self, session: SessionId, names: Sequence[str]) -> dict[str, int]:
        """How many bytes each has; 0 for what is not there. Raises `JournalAway`."""
        keys = self.keys(session)
        with spoken():
            pipe = self.client.pipeline(transaction=False)
            for name in names:
                pipe.strlen(keys.blob(name))
            return dict(zip(names, pipe.execute() if names else [], strict=True))

    def blobs(self, session: SessionId, names: Sequence[str]) -> dict[str, bytes]:
        """The bytes that are there. Raises `JournalAway`."""
        keys = self.keys(session)
        with spoken():
            found = cast("list[bytes | None]", self.client.mget([keys.blob(name) for name in names])) if names else []
        return {name: data for name, data in zip(names, found, strict=True) if data is not None}
