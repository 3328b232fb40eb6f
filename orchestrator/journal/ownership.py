"""Who may write a session, and what they write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError

from orchestrator.core import codec
from orchestrator.core.delivery import Body, Envelope, Head
from orchestrator.core.names import DeliveryId, Millis, SessionId, Token
from orchestrator.core.snapshot import EMPTY, READS, Position
from orchestrator.envelope import STEP
from orchestrator.errors import JournalAway
from orchestrator.ids import link_key
from orchestrator.journal.answers import (
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
from orchestrator.journal.calling import MOST_HEADS, Calling
from orchestrator.journal.client import spoken
from orchestrator.journal.scripts import Value, script


class Ownership(Calling):
    """Own, commit, append, renew, release, disown."""

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
                "grace_ms": self.grace_ms,
                "most": MOST_HEADS,
            },
        )
        why = answer[0].decode()
        if why != "granted":
            for_ms = int(answer[1]) if len(answer) > 1 and why in ("leased", "later") else 0
            return Refused(why, for_ms, answer[-1] if why in ("ended", "idle", "leased") else 0)
        _, epoch, attempt, faults, now, seq, events, gen, rows, judged, last_row, base, agent, parent, text, found = (
            answer[:16]
        )
        life, deadline, out, may_ask = answer[16:]
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
            life=life.decode(),
            deadline=Millis(deadline),
            out=out,
            may_ask=may_ask == 1,
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
        rest += writes.out
        for name, value in writes.requests:
            rest += (name, value)
        for token_of_link, name in writes.links:
            rest += (link_key(token_of_link), name)
        rest += writes.blobs
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
                "floor": snapshot.judged if snapshot.busy else 0,
                "used": writes.used,
                "turn": snapshot.turn.id if snapshot.turn else "",
                "work": int(writes.work) if snapshot.busy else "inbox",
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
                "n_out": len(writes.out),
                "n_requests": 2 * len(writes.requests),
                "n_links": 2 * len(writes.links),
                "n_blobs": len(writes.blobs),
                "hold": writes.hold,
                "new_gen": "" if writes.new_gen is None else writes.new_gen,
                "retention_ms": self.retention_ms,
                "base": at.base,
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
                    out=answer[6],
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
            answer = self._run(
                "renew", None, {"due": due, "lease_ms": self.lease_ms, "grace_ms": self.grace_ms}, pairs, own_keys
            )
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
