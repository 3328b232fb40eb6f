"""What a keeper asks: who must be rung for, what is to be put in order, who lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import redis

from orchestrator.core.names import Millis, SessionId
from orchestrator.core.snapshot import READS
from orchestrator.envelope import STEP, pushed_ms, queue_name
from orchestrator.ids import shards
from orchestrator.journal.calling import Calling
from orchestrator.journal.client import spoken
from orchestrator.journal.keys import shard_key
from orchestrator.journal.scripts import Value


class Keeping(Calling):
    """Due, tidy, prune, heartbeat."""

    def due(self, *, pause: bool = False, limit: int = 500) -> tuple[Millis, bool, int]:
        """Ring for what is due: the time of Redis, whether there may be more, how many were rung."""
        answer = self._run(
            "due",
            None,
            {
                "pause": int(pause),
                "lease_ms": self.lease_ms,
                "grace_ms": self.grace_ms,
                "limit": limit,
                "prefix": self.prefix,
                **self._step_wake,
            },
            shards(),
            self._all_due,
        )
        found = [part.decode() for part in answer[3]]
        for place in range(0, len(found), 3):
            self.wake.publish(STEP, found[place], SessionId(found[place + 1]), found[place + 2])
        return Millis(int(answer[0])), answer[1] == 1, answer[2]

    def tidy(self, now_ms: int, most: int = 20) -> list[SessionId]:
        """Sessions that have something to put in order."""
        with spoken():
            pipe = self.client.pipeline(transaction=False)
            for shard in shards():
                pipe.zrangebyscore(shard_key(self.prefix, shard, "tidy"), "-inf", now_ms, start=0, num=most)
            return [SessionId(name.decode()) for found in pipe.execute() for name in found]

    def prune(
        self, session: SessionId, upto: int, again_at: int, stubs: Sequence[tuple[int, str]], *, seen: int = 0
    ) -> int:
        """Put stubs in the place of deltas. Returns how many. `seen`: how many events the caller has looked at."""
        pairs: list[Value] = [value for pair in stubs for value in pair]
        named = {"upto": upto, "again_at": again_at, "seen": seen, "later_ms": self.tidy_ms}
        answer = self._run("prune", self.keys(session), named, pairs)
        return int(answer[1])

    def heartbeat(self, label: str, worker: str, *, digest: str = "", leave: bool = False) -> Millis:
        """Say that a worker lives, or leaves. Returns the time of Redis."""
        answer = self._run(
            "heartbeat",
            None,
            {
                "deployments": f"{self.prefix}:dep",
                "workers": f"{self.prefix}:workers",
                "label": label,
                "worker": worker,
                "reads": READS,
                "digest": digest,
                "leave": int(leave),
            },
        )
        return Millis(int(answer[0]))

    def oldest_wake_ms(self, broker: redis.Redis, label: str, key_prefix: str = "") -> int | None:
        """When the oldest wake still waiting in a deployment's queue was pushed."""
        with spoken():
            text = cast("bytes | None", broker.lindex(key_prefix + queue_name(label), -1))
        return pushed_ms(text)
