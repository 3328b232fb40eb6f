"""What the engine says to Redis: one method per verb, each safe to repeat with the same arguments.

A method raises `JournalAway` when it is not clear what has happened; whoever must know calls it again. Nothing is retried in here:
a write that is sent twice by the client would be two writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import redis
from redis.exceptions import NoScriptError, OutOfMemoryError

from orchestrator.core import codec
from orchestrator.core.delivery import Body, Delivery, Envelope, Head
from orchestrator.core.names import DeliveryId, Millis, SessionId, Token
from orchestrator.core.snapshot import EMPTY, READS, Position
from orchestrator.envelope import RESUME, STEP, queue_name
from orchestrator.errors import InboxFull, JournalAway, SessionNotActive
from orchestrator.ids import shards
from orchestrator.journal.answers import (
    Admitted,
    Appended,
    Behind,
    Committed,
    Done,
    Gone,
    Granted,
    News,
    Refused,
    Superseded,
    Writes,
)
from orchestrator.journal.client import spoken
from orchestrator.journal.keys import Keys, keys, shard_key
from orchestrator.journal.lines import Lines
from orchestrator.journal.scripts import VERBS, Script, Value, script
from orchestrator.ports import Wake

GRACE_MS = 2_000
"""How long a wake may stay unheard before the keeper rings again."""
TIDY_MS = 600_000
"""How long the deltas of a closed step are kept in full."""
LIFE_MS = 30 * 24 * 3600 * 1000
MOST_HEADS = 64
SETTLE_MS = 2_000
"""How long a write may take to reach the disk or a replica where a level asks for it."""
OUTCOMES = ("taken", "cancelling", "other_turn", "nothing_runs")


class Journal:
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
        self.durability = durability
        self.waits_for_disk = waits_for_disk
        self._now = now
        self._step_wake = dict(wake.arguments(STEP))
        self._resume_wake = dict(wake.arguments(RESUME))
        self._all_due = [shard_key(prefix, shard, "due") for shard in shards()]

    # How a script is called -------------------------------------------------------------------------------------------

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

    # Admission --------------------------------------------------------------------------------------------------------

    def create(
        self,
        session: SessionId,
        *,
        agent: str,
        deployment: str,
        first: Delivery | None = None,
        parent: str = "",
        root: str = "",
    ) -> Admitted:
        """Bring a session into being. Raises `JournalFull`, `JournalAway`."""
        answer = self._run(
            "create",
            self.keys(session),
            {
                "agent": agent,
                "deployment": deployment,
                "reads": READS,
                "parent": parent,
                "root": root or session,
                "life_ms": LIFE_MS,
                "grace_ms": self.grace_ms,
                "delivery": first.id if first else "",
                "head": codec.pack(first.envelope) if first else b"",
                "body": codec.pack(first.body) if first and first.body else b"",
                **self._resume_wake,
            },
            level=self.durability,
        )
        if answer[2] == 1 and first:
            self.wake.publish(RESUME, deployment, session, first.id)
        return Admitted(session, answer[0] == b"again", Millis(int(answer[1])))

    def deliver(self, session: SessionId, delivery: Delivery) -> Admitted:
        """Admit a delivery. Raises `SessionNotActive`, `InboxFull`, `JournalFull`, `JournalAway`."""
        envelope = delivery.envelope
        answer = self._run(
            "deliver",
            self.keys(session),
            {
                "id": delivery.id,
                "kind": envelope.kind,
                "guard": envelope.guard,
                "head": codec.pack(envelope),
                "body": codec.pack(delivery.body) if delivery.body else b"",
                "reads": READS,
                "limit": self.waiting_limit,
                "grace_ms": self.grace_ms,
                **self._resume_wake,
            },
            level=self.durability,
        )
        match answer[0]:
            case b"gone" | b"ended":
                raise SessionNotActive(session=session)
            case b"full":
                raise InboxFull(session=session, waiting=answer[1], limit=self.waiting_limit)
            case code:
                if answer[2] == 1:
                    self._publish(RESUME, session, delivery.id)
                outcome = cast(Any, OUTCOMES[int(answer[3])])
                return Admitted(session, code == b"again", Millis(int(answer[1])), outcome, int(answer[4]))

    # Ownership --------------------------------------------------------------------------------------------------------

    def own(
        self,
        session: SessionId,
        token: Token,
        made_ms: Millis,
        *,
        deployment: str,
        alone: bool = True,
        instead: str = "",
        lost: bool = False,
    ) -> Granted | Refused:
        """Ask for a session. Raises `JournalAway`, `codec.Unreadable` for a snapshot that cannot be read."""
        answer = self._run(
            "own",
            self.keys(session),
            {
                "token": token,
                "made_ms": made_ms,
                "instead": instead,
                "deployment": deployment,
                "reads": READS,
                "alone": int(alone),
                "lost": int(lost),
                "lease_ms": self.lease_ms,
                "most": MOST_HEADS,
            },
        )
        why = answer[0].decode()
        if why != "granted":
            for_ms = int(answer[1]) if len(answer) > 1 and why in ("leased", "later") else 0
            return Refused(why, for_ms)
        _, epoch, attempt, faults, now, seq, events, gen, rows, judged, last_row, base, agent, parent, text, found = (
            answer
        )
        return Granted(
            epoch=epoch,
            attempt=attempt,
            faults=faults,
            at=Millis(int(now)),
            position=Position(seq, events, gen, rows),
            judged=judged,
            last_row=last_row.decode(),
            fact_base=base,
            agent=agent.decode(),
            parent=parent.decode(),
            snapshot=codec.unpack_snapshot(text) if text else EMPTY,
            heads=read_heads(found),
        )

    def commit(self, session: SessionId, token: Token, writes: Writes) -> Committed:
        """Write what has happened. Raises `JournalAway` when it is not clear whether it did."""
        at, position, snapshot = self.keys(session), writes.position, writes.snapshot
        rest: list[Value] = [*writes.facts, *writes.events, *writes.rows]
        for name, value in writes.records:
            rest += (name, value)
        rest += writes.folded
        rest += writes.consumed
        for name, value in writes.state:
            rest += (name, value)
        answer = self._run(
            "commit",
            at,
            {
                "hist": at.hist(position.gen),
                "token": token,
                "commit": writes.id,
                "seq": position.seq,
                "events": position.events,
                "gen": position.gen,
                "rows": position.rows,
                "fact_base": writes.fact_base,
                "judged": snapshot.judged,
                "floor": snapshot.judged if snapshot.turn else 0,
                "used": writes.used,
                "turn": snapshot.turn.id if snapshot.turn else "",
                "work": "inbox" if snapshot.turn is None else int(writes.work),
                "next_timer": writes.next_timer,
                "reads": writes.reads,
                "attempt_key": writes.attempt_key,
                "progress": int(writes.progress),
                "conditional": int(writes.conditional),
                "mode": writes.mode,
                "lease_ms": self.lease_ms,
                "grace_ms": self.grace_ms,
                "tidy_ms": self.tidy_ms if writes.tidy else 0,
                "most": MOST_HEADS,
                "text": codec.pack_snapshot(snapshot),
                "last_row": writes.last_row,
                "n_facts": len(writes.facts),
                "n_events": len(writes.events),
                "n_rows": len(writes.rows),
                "n_records": 2 * len(writes.records),
                "n_folded": len(writes.folded),
                "n_consumed": len(writes.consumed),
                "n_state": 2 * len(writes.state),
                "what": writes.what,
                **self._step_wake,
            },
            rest,
            level="fsync" if writes.fsync and self.durability == "server" else self.durability,
        )
        match answer[0]:
            case b"done" | b"landed":
                done = Done(
                    at=Millis(int(answer[1])),
                    n=answer[2],
                    kept=answer[4] == 1,
                    heads=read_heads(answer[5]),
                    landed=answer[0] == b"landed",
                )
                if answer[3] == 1:
                    self._publish(STEP, session, writes.what)
                return done
            case b"news":
                return News(read_heads(answer[1]))
            case b"behind":
                return Behind(answer[1], answer[2])
            case b"superseded":
                return Superseded()
            case _:
                return Gone()

    def _publish(self, task: str, session: SessionId, what: str) -> None:
        with spoken():
            label = cast("bytes | None", self.client.hget(self.keys(session).own, "deployment"))
        if label:
            self.wake.publish(task, label.decode(), session, what)

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

    def append_command(
        self, session: SessionId, token: Token, at: int, first_id: str, lines: Sequence[str]
    ) -> tuple[Value, ...]:
        """The command of one append; the pump sends those of many sessions in one pipeline."""
        verb, where = script("append"), self.keys(session)
        values: dict[str, Any] = {
            "own": where.own,
            "evt": where.evt,
            "tail": where.tail,
            "now": self._now(),
            "session": session,
            "token": token,
            "at": at,
            "first_id": first_id,
        }
        return verb.command(values, lines)

    def append_many(self, commands: Sequence[tuple[Value, ...]]) -> list[Appended | Behind | Superseded | Gone | None]:
        """Send appends in one pipeline. None: refused for want of memory; only the stream lacks them."""
        verb = script("append")
        with spoken():
            answers = self._pipeline(commands)
            if any(isinstance(answer, NoScriptError) for answer in answers):
                verb.load(self.client)
                answers = self._pipeline(commands)
        return [_appended(answer) for answer in answers]

    def _pipeline(self, commands: Sequence[tuple[Value, ...]]) -> list[Any]:
        pipe = self.client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return pipe.execute(raise_on_error=False)

    def append(
        self, session: SessionId, token: Token, at: int, first_id: str, lines: Sequence[str]
    ) -> Appended | Behind | Superseded | Gone:
        """Add uncommitted events to the stream. Raises `JournalFull`, `JournalAway`."""
        answer = _appended(self.call(script("append"), self.append_command(session, token, at, first_id, lines)))
        assert answer is not None
        return answer

    def renew(self, owned: Sequence[tuple[SessionId, Token]]) -> dict[SessionId, str]:
        """Keep leases; the answer of each is done, superseded or gone."""
        by_shard: dict[str, list[tuple[SessionId, Token]]] = {}
        for session, token in owned:
            by_shard.setdefault(self.keys(session).due, []).append((session, token))
        answers: dict[SessionId, str] = {}
        for due, group in by_shard.items():
            pairs = [value for pair in group for value in pair]
            own_keys = [self.keys(session).own for session, _ in group]
            answer = self._run("renew", None, {"due": due, "lease_ms": self.lease_ms}, pairs, own_keys)
            answers.update({session: word.decode() for (session, _), word in zip(group, answer[1:], strict=True)})
        return answers

    def release(self, session: SessionId, token: Token, what: str = "") -> None:
        """Give a session back; ring if there is more to do. Safe to repeat."""
        answer = self._run(
            "release",
            self.keys(session),
            {"token": token, "grace_ms": self.grace_ms, "what": what, **self._step_wake},
        )
        if answer[1] == 1:
            self._publish(STEP, session, what)

    def disown(self, session: SessionId, whose: str, *, fault: bool = False, what: str = "") -> bool:
        """End the lease of a dead owner whose token begins with `whose`. True if it did."""
        answer = self._run(
            "disown",
            self.keys(session),
            {"whose": whose, "fault": int(fault), "grace_ms": self.grace_ms, "what": what, **self._step_wake},
        )
        if answer[1] == 1:
            self._publish(STEP, session, what)
        return bool(answer[0] == b"done")

    # The keeper -------------------------------------------------------------------------------------------------------

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
        if not text or b'"at":' not in text:
            return None
        digits = text.split(b'"at":', 1)[1].split(b"}", 1)[0]
        return int(digits) if digits.isdigit() else None

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


def _appended(answer: Any) -> Appended | Behind | Superseded | Gone | None:
    if isinstance(answer, Exception):
        if isinstance(answer, OutOfMemoryError) or "OOM" in str(answer) or "allow-oom" in str(answer):
            return None
        raise JournalAway(reason=str(answer)) from answer
    match answer[0]:
        case b"done" | b"landed":
            return Appended(answer[1], answer[2])
        case b"behind":
            return Behind(answer[1], answer[2])
        case b"superseded":
            return Superseded()
        case _:
            return Gone()


def read_heads(found: Sequence[Any]) -> tuple[Head, ...]:
    """Heads as a script returns them: id, n, at_seq and head."""
    heads = []
    for place in range(0, len(found), 3):
        at_seq, _, packed = found[place + 2].partition(b":")
        if not packed:
            continue
        envelope = codec.unpack(Envelope, packed)
        heads.append(Head(DeliveryId(found[place].decode()), int(found[place + 1]), int(at_seq), envelope))
    return tuple(heads)


def read_body(packed: bytes) -> Body:
    """A stored body."""
    return codec.unpack(Body, packed)
