"""How a script is called: the connection, the names it needs, and how safe its writes must be before it is answered.

A method raises `JournalAway` when it is not clear what has happened; whoever must know calls it again. Nothing is retried in here:
a write that is sent twice by the client would be two writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import redis
from redis.exceptions import NoScriptError

from orchestrator.core.names import Millis, SessionId
from orchestrator.envelope import RESUME, STEP
from orchestrator.errors import JournalAway
from orchestrator.ids import shards
from orchestrator.journal.client import spoken
from orchestrator.journal.keys import Keys, keys, shard_key
from orchestrator.journal.lines import Lines
from orchestrator.journal.scripts import VERBS, Script, Value, script
from orchestrator.ports import Wake

GRACE_MS = 2_000
"""How long a wake may stay unheard before the keeper rings again."""
TIDY_MS = 600_000
"""How long the deltas of a closed step are kept in full."""
RETENTION_MS = 30 * 24 * 3600 * 1000
"""How long a session is kept after its end."""
MOST_HEADS = 64
SETTLE_MS = 2_000
"""How long a write may take to reach the disk or a replica where a level asks for it."""


class Calling:
    """The journal of one world. Thread-safe; a forked child opens connections of its own."""

    def __init__(
        self,
        client: redis.Redis,
        wake: Wake,
        *,
        prefix: str = "orc",
        lease_ms: int = 10_000,
        waiting_limit: int = 1000,
        grace_ms: int = GRACE_MS,
        tidy_ms: int = TIDY_MS,
        retention_ms: int = RETENTION_MS,
        durability: str = "server",
        waits_for_disk: bool = False,
        now: Callable[[], int | str] = lambda: "",
    ) -> None:
        self.client = client
        self._lines = Lines(client)
        self.wake = wake
        self.prefix = prefix
        self.lease_ms = lease_ms
        self.waiting_limit = waiting_limit
        self.grace_ms = grace_ms
        self.tidy_ms = tidy_ms
        self.retention_ms = retention_ms
        self.durability = durability
        self.waits_for_disk = waits_for_disk
        self._now = now
        self._step_wake = dict(wake.arguments(STEP))
        self._resume_wake = dict(wake.arguments(RESUME))
        self._all_due = [shard_key(prefix, shard, "due") for shard in shards()]

    def call(self, verb: Script, command: tuple[Value, ...]) -> Any:
        """Run a script. A test may stand here: every write of the engine passes through."""
        with spoken():
            try:
                return self._lines.say(command)
            except NoScriptError:
                verb.load(self.client)
                return self._lines.say(command)

    def _run(
        self,
        name: str,
        at: Keys | None,
        named: Mapping[str, object],
        rest: Iterable[Value] = (),
        more_keys: Iterable[str] = (),
        level: str = "server",
    ) -> list[Any]:
        verb = script(name)
        values: dict[str, Any] = {"now": self._now(), **named}
        if at is not None:
            values["session"] = at.session
            for key in verb.keys:
                if key not in values:
                    values[key] = getattr(at, key)
        command = verb.command(values, rest, more_keys)
        if level == "server" or (level == "fsync" and not self.waits_for_disk):
            return cast("list[Any]", self.call(verb, command))
        with self._lines.held():
            answer = self.call(verb, command)
            if answer[0] in (b"again", b"landed"):
                # WAIT asks for the writes of its own connection: make one behind those of the first try.
                with spoken():
                    self._lines.say(("HINCRBY", f"{self.prefix}:world", "settled", 1))
            self._settle(level)
        return cast("list[Any]", answer)

    def close(self) -> None:
        """Close the connections. The next call opens one."""
        self._lines.close()
        self.client.close()

    def keys(self, session: SessionId) -> Keys:
        """The keys of a session."""
        return keys(self.prefix, session)

    def _publish(self, task: str, session: SessionId, what: str) -> None:
        with spoken():
            label = cast("bytes | None", self.client.hget(self.keys(session).own, "deployment"))
        if label:
            self.wake.publish(task, label.decode(), session, what)

    def _settle_all(self) -> None:
        """Wait until all that was written so far is as safe as this journal's level says. Raises `JournalAway`."""
        if self.durability == "server" or (self.durability == "fsync" and not self.waits_for_disk):
            return
        with self._lines.held():
            with spoken():
                self._lines.say(("HINCRBY", f"{self.prefix}:world", "settled", 1))
            self._settle(self.durability)

    def _settle(self, level: str) -> None:
        """Wait until what this connection has written is as safe as `level` says. Raises `JournalAway` when it is not in time: whoever
        repeats the call gets the first answer and waits again.

        Where the server does not know WAITAOF (Redis 7.0) `fsync` was accepted at the start for its `appendfsync always`.
        """
        command = ("WAITAOF", 1, 0, SETTLE_MS) if level == "fsync" else ("WAIT", 1, SETTLE_MS)
        with spoken():
            answer = self._lines.say(command)
        if (answer[0] if level == "fsync" else answer) < 1:
            raise JournalAway(reason=f"what was written is not at level {level} after {SETTLE_MS} ms")

    def load_scripts(self) -> None:
        """Give the server all scripts."""
        with spoken():
            for name in VERBS:
                script(name).load(self.client)

    def time(self) -> Millis:
        """The time of Redis."""
        with spoken():
            seconds, micros = self.client.time()
        return Millis(seconds * 1000 + micros // 1000)
