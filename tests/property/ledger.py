"""What must always be true of a session, told from what is stored, what was answered and what was begun out there.

It is looked at after every single call that reached the server. Only what is new is read; at the end everything is read again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

from orchestrator.core import codec
from orchestrator.core.advance import advance
from orchestrator.core.fact import (
    CallStarted,
    CancelAccepted,
    DeliveryDropped,
    Fact,
    StepFailed,
    TailLost,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import EMPTY, Call, Snapshot
from orchestrator.journal import Journal
from orchestrator.journal.scripts import Script, Value
from orchestrator.ports import ModelCall
from orchestrator.tool import ToolContext
from orchestrator.turn import Carried
from tests.worlds import grammar

Fields = dict[str, str]
SOON_MS = 2_000
OWN_CODES = {b"gone", b"ended", b"not_yours", b"too_new", b"leased", b"later", b"idle", b"stale"}
FAILURES = {"MODEL_CALL_FAILED", "TOOL_FATAL", "STEP_CRASHED"}
TOOL_STEP = "tool-calls"


@dataclass(frozen=True, slots=True)
class Said:
    """A call that reached the server, and its answer."""

    verb: Script
    command: tuple[Value, ...]
    answer: Any
    at: int


@dataclass(slots=True)
class Book:
    """What was promised and what has happened so far. A store that loses its tail takes this back with it."""

    facts: list[bytes] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    snapshot: Snapshot = EMPTY
    accepted: list[str] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    must_cancel: set[str] = field(default_factory=set)
    outcomes: dict[str, str] = field(default_factory=dict)
    careful_starts: dict[str, int] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    reports: dict[str, int] = field(default_factory=dict)
    heard: int = 0
    """How far the stream was said to have reached, by reports that found it as long again."""


class Ledger:
    """What is known of one session."""

    def __init__(self, journal: Journal, session: SessionId, rewinds: bool) -> None:
        self.journal, self.client, self.session, self.rewinds = journal, journal.client, session, rewinds
        self.keys = journal.keys(session)
        self.fields: Fields = {}
        self.due: int | None = None
        self.book = Book()
        self.robbed: set[str] = set()
        self.problems: list[str] = []
        self.steps = 0
        self.most_events = 0
        self._tokens: set[str] = set()
        self._past: deque[tuple[dict[str, bytes | None], Book]] = deque(maxlen=6)
        self._demands: dict[str, int] = {}
        self._ghosts: set[str] = set()
        self._blind: set[str] = set()
        """Tokens whose owner does not know yet that the store has lost its tail."""
        self._ahead: dict[str, int] = {}

    # Words ------------------------------------------------------------------------------------------------------------

    def argument(self, verb: Script, command: Sequence[Value], name: str) -> str:
        """An argument of a call."""
        value = command[3 + int(command[2]) + verb.args.index(name)]
        return value.decode() if isinstance(value, bytes) else str(value)

    def must(self, holds: object, what: str) -> None:
        """Something that must be true; found out in the middle of anything, told when it is over."""
        if not holds:
            self.problems.append(what)

    def complain(self) -> None:
        """Fails if something was not true."""
        assert not self.problems, "\n".join(self.problems)

    @property
    def open_turn(self) -> str:
        """The open turn, or ''."""
        return self.fields.get("turn", "")

    @property
    def at_rest(self) -> bool:
        """Nobody has anything to do."""
        return not self.fields.get("token") and self.due is None

    # Looking ----------------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Read the store. Returns what is new: facts, events, rows."""
        keys, book = self.keys, self.book
        base = int(self.fields.get("fact_base", 0))
        pipe = self.client.pipeline(transaction=False)
        pipe.hgetall(keys.own)
        pipe.get(keys.snapshot)
        pipe.zrange(keys.inbox, 0, -1, withscores=True)
        pipe.hkeys(keys.box)
        pipe.lrange(keys.fact, len(book.facts) - base, -1)
        pipe.lrange(keys.evt, len(book.events), -1)
        pipe.lrange(keys.hist(0), len(book.rows), -1)
        pipe.hkeys(keys.rec)
        pipe.zscore(keys.due, self.session)
        own, self._text, inbox, box, facts, events, rows, records, due = pipe.execute()
        self.fields = {name.decode(): value.decode() for name, value in own.items()}
        self._inbox = {name.decode(): int(n) for name, n in inbox}
        self._box = {name.decode().removeprefix("b:") for name in box}
        self._records = {name.decode() for name in records}
        self.due = None if due is None else int(due)
        return facts, events, rows

    def observe(self, said: Said) -> None:
        """A call has reached the server: what may it have changed, and is all as it must be?"""
        self.steps += 1
        before = self.fields
        text = getattr(self, "_text", None)
        inbox = getattr(self, "_inbox", {})
        facts, events, rows = self._look()
        changed = {name for name, value in before.items() if self.fields.get(name) != value}
        name = said.verb.name
        if facts or rows or {"seq", "rows", "gen"} & changed:
            self.must(name == "commit", f"{name} wrote facts or rows")
        if events or "events" in changed:
            self.must(name in ("commit", "append"), f"{name} wrote events")
        if facts or rows or events:
            token = self.argument(said.verb, said.command, "token")
            self.must(token and token == before["token"], f"{name} of {token} wrote; the owner was {before['token']!r}")
        match name:
            case "create" | "deliver":
                self._admitted(said, before)
            case "own":
                same = text == self._text and inbox == self._inbox and not (facts or events or rows)
                self._owned(said, before, changed, same)
            case "commit":
                self._committed(said, before, facts, len(self.book.events) + len(events))
            case "append":
                for line in events:
                    kind = json.loads(line)["type"]
                    self.must(kind in ("message.appended", "reasoning.appended", "action.partial"), f"appended {kind}")
                self._heard_behind(said)
            case "release" | "renew" | "disown" | "due":
                free = {"token", "lease", "left", "rung", "rings", "faults"}
                self.must(changed <= free, f"{name} changed {changed - free}")
        if "attempt" in changed and name != "commit":
            instead = name == "own" and before["token"] == self.argument(said.verb, said.command, "instead")
            good = name == "own" and before["token"] and not instead
            self.must(good, f"{name} counted an attempt: {before} -> {self.fields}")
        self.book.events += events
        self.book.rows += rows
        self.most_events = max(self.most_events, len(self.book.events))
        if self.fields:
            self._always()

    def _admitted(self, said: Said, before: Fields) -> None:
        code = said.answer[0]
        book = self.book
        if said.verb.name == "create":
            first = self.argument(said.verb, said.command, "delivery")
            if code == b"created" and first:
                book.accepted.append(first)
            return
        name = self.argument(said.verb, said.command, "id")
        if self.argument(said.verb, said.command, "kind") == "message" and code == b"full":
            self.must(int(before["waiting"]) >= self.journal.waiting_limit, "refused, and there was room")
        if code != b"accepted":
            return
        if int(said.answer[4]):
            book.accepted.append(name)
        if self.argument(said.verb, said.command, "kind") == "tail_seen":
            book.reports[name] = int(self.argument(said.verb, said.command, "guard"))
        if int(said.answer[3]) == 1:
            book.must_cancel.add(before["turn"] or f"turn_{book.snapshot.next_turn}")

    def _owned(self, said: Said, before: Fields, changed: set[str], same: bool) -> None:
        token = self.argument(said.verb, said.command, "token")
        self.must(same, "own changed more than who owns")
        code = said.answer[0]
        if code != b"granted":
            self.must(code in OWN_CODES, str(code))
            self.must(changed <= {"rung", "rings"}, f"a refused own changed {changed}")
            return
        if before["token"] == token:
            self.must(not changed, f"a repeated own changed {changed}")
            return
        self.must(
            not before["token"] or int(before["lease"]) <= said.at or self._gave_up(said, before), "a lease was broken"
        )
        # A question that was overtaken by its own repeat may be granted again, while its caller might still wait for it.
        made = int(self.argument(said.verb, said.command, "made_ms"))
        young = said.at - made <= self.journal.lease_ms
        self.must(token not in self._tokens or self.rewinds or young, f"{token} owns a second time")
        self.must(int(self.fields["epoch"]) == int(before["epoch"]) + 1, "an epoch was left out")
        self._tokens.add(token)

    def _gave_up(self, said: Said, before: Fields) -> bool:
        return self.argument(said.verb, said.command, "instead") == before["token"]

    def _committed(self, said: Said, before: Fields, facts: list[bytes], events: int) -> None:
        code = said.answer[0]
        if code == b"landed":
            self.must(not facts, "what had landed was written again")
        if code == b"done":
            progress = self.argument(said.verb, said.command, "progress") == "1"
            self.must(
                self.fields["attempt"] == ("0" if progress else before["attempt"]), "attempts are counted otherwise"
            )
        self._heard_behind(said)
        book = self.book
        for packed in facts:
            fact = codec.unpack_fact(packed)
            self._fact(fact, events)
            book.snapshot = advance(book.snapshot, fact)
        book.facts += facts

    def _fact(self, fact: Fact, events: int) -> None:
        book = self.book
        used: tuple[str, ...] = ()
        match fact:
            case TurnStarted():
                self.must(book.snapshot.turn is None, "two turns at once")
                self.must(fact.number == book.snapshot.next_turn, "turns are not consecutive")
                used = fact.deliveries
            case DeliveryDropped() if fact.delivery in book.reports:
                used, seen = (fact.delivery,), book.reports[fact.delivery]
                self.must(seen <= events, f"{seen} events were seen, {events} are left, and nobody says so")
                book.heard = max(book.heard, seen)
            case DeliveryDropped() | CancelAccepted():
                used = (fact.delivery,)
                if fact.delivery in self._ghosts and isinstance(fact, CancelAccepted):
                    book.must_cancel.add(fact.turn)
            case TailLost():
                used = (fact.delivery,) if fact.delivery else ()
            case StepFailed():
                self.must(fact.code in FAILURES, f"an innocent step failed: {fact}")
            case TurnSettled():
                self.must(fact.turn not in book.outcomes, "a turn ended twice")
                book.outcomes[fact.turn] = fact.outcome
                must = fact.turn in book.must_cancel
                self.must(
                    must == (fact.outcome == "cancelled"), f"{fact.turn} ended {fact.outcome}; told to stop: {must}"
                )
            case CallStarted():
                key = f"{fact.turn}/{fact.call}"
                self.must(book.careful_starts.get(key, 0) == 0, f"{key} was started before that was written")
        for name in used:
            self.must(name in book.accepted or name in self._ghosts, f"{name} was never accepted")
            self.must(name not in book.used, f"{name} was used twice")
            book.used[name] = type(fact).__name__

    def _always(self) -> None:
        fields, book = self.fields, self.book
        base = int(fields["fact_base"])
        snapshot = codec.unpack_snapshot(self._text) if self._text else EMPTY
        self.must(int(fields["seq"]) == len(book.facts), f"seq {fields['seq']}, facts {len(book.facts)}")
        self.must(int(fields["events"]) == len(book.events), f"events {fields['events']}, stream {len(book.events)}")
        self.must(int(fields["rows"]) == len(book.rows), f"rows {fields['rows']}, history {len(book.rows)}")
        at = snapshot.at
        self.must((at.seq, at.rows) == (len(book.facts), len(book.rows)), f"the snapshot stands at {at}")
        self.must(at.events <= len(book.events) and base <= at.seq, "the snapshot is ahead of the stream")
        self.must(replace(book.snapshot, at=at) == snapshot, f"the facts make {book.snapshot}, stored is {snapshot}")
        self.must(int(fields["judged"]) == snapshot.judged, "judged differs")
        self.must(fields["turn"] == (snapshot.turn.id if snapshot.turn else ""), "turn differs")
        waiting = set(self._inbox)
        self.must(self._box == waiting, "the box holds what waits and nothing else")
        self.must(not waiting & set(book.used), "used and still waiting")
        lost = set(book.accepted) - waiting - set(book.used)
        self.must(not lost, f"accepted and lost: {lost}")
        self.must(waiting <= set(book.accepted), "nobody sent this")
        self.must(0 <= int(fields["waiting"]) <= self.journal.waiting_limit, f"{fields['waiting']} wait")
        settled = {call.id for call in snapshot.turn.calls if call.state == "settled"} if snapshot.turn else set()
        self.must(self._records == settled, f"records {self._records}, settled {settled}")
        if not fields["token"]:
            self.must(fields["lease"] == "0", "nobody's lease")
        above = snapshot.judged if snapshot.turn else 0
        head = any(n > above for n in self._inbox.values())
        timer = int(fields["next_timer"])
        now = int(self.journal._now())
        if fields["token"] or fields["work"] == "1" or head or timer:
            self.must(self.due is not None, f"nobody will look: {fields}")
        if self.due is not None and (fields["work"] == "1" or head) and not fields["token"]:
            self.must(self.due <= now + self.journal.lease_ms, f"somebody looks too late: {self.due - now}")
        elif self.due is not None and timer and not fields["token"]:
            self.must(self.due <= max(timer, now + SOON_MS), "the timer comes too late")

    # What is begun out there ------------------------------------------------------------------------------------------

    def model_begins(self, token: str, call: ModelCall) -> None:
        """A worker calls a model."""
        if not self._may_begin(token):
            return
        turn = self.book.snapshot.turn
        due = (
            turn is not None and turn.step_open and (turn.id, turn.step, turn.phase) == (call.turn, call.step, "model")
        )
        self.must(due and turn and not turn.cancelling, f"the model is called for {call.turn}/{call.step} in {turn}")
        self.must(len(call.history) == len(self.book.rows), "the model does not see the whole history")

    def tool_begins(self, token: str, call: Call, arguments: Mapping[str, object], context: ToolContext) -> None:
        """A worker starts a tool call."""
        key = f"{context.session.turn}/{call.id}"
        book = self.book
        if call.on_interrupt == "report":
            book.careful_starts[key] = book.careful_starts.get(key, 0) + 1
            self.must(book.careful_starts[key] == 1, f"{key} started twice")
        what = f"{call.tool} {arguments} {call.digest}"
        self.must(book.calls.setdefault(key, what) == what, f"{key}: {what} and {book.calls[key]}")
        self.must(context.idempotency_key == f"{self.session}/{key}", context.idempotency_key)
        if not self._may_begin(token):
            return
        turn = book.snapshot.turn
        due = turn is not None and turn.id == context.session.turn and turn.phase == "tools"
        state = next((one.state for one in turn.calls if one.id == call.id), "") if turn else ""
        wanted = "started" if call.on_interrupt == "report" else "asked"
        self.must(due and state == wanted, f"{call} begins in {turn}")

    def _may_begin(self, token: str) -> bool:
        owner = self.fields.get("token", "")
        if token in self._blind:
            return False
        if token in self.robbed:
            return owner == token
        self.must(token and owner == token, f"{token} begins something; {owner!r} owns the session")
        return owner == token

    # Saying it again --------------------------------------------------------------------------------------------------

    def repeat(self, said: Said, run: Callable[[], Any]) -> None:
        """A call is made again with the same ids: nothing changes, and the answer is the first, or that it is too late."""
        verb = said.verb.name
        if verb == "deliver" and said.answer[0] not in (b"accepted", b"again"):
            return
        before = self._everything()
        answer = run()
        after = self._everything()
        changed = {key for key in before if before[key] != after[key]}
        first, now = said.answer[0], answer[0]
        match verb:
            case "create":
                good = now == b"again"
            case "deliver":
                good = now == b"again" and int(answer[3]) == int(said.answer[3])
            case "own" if first == b"granted":
                good = now in (b"granted", b"stale", b"leased", b"later", b"idle")
            case "commit":
                good = now == (b"landed" if first in (b"done", b"landed") else first) or now in (
                    b"superseded",
                    b"landed",
                )
            case "append":
                good = now == (b"landed" if first in (b"done", b"landed") else first) or now == b"superseded"
            case _:
                self._look_again()
                return
        self.must(good, f"{verb} answered {said.answer}, and when repeated {answer}")
        may = {"own": {"due", "token", "fields"}, "commit": set(), "append": set()}.get(verb, set())
        if verb == "own" and now == b"granted" and before["token"] != self.argument(said.verb, said.command, "token"):
            # Only while its caller might still wait for it.
            made = int(self.argument(said.verb, said.command, "made_ms"))
            self.must(
                int(self.journal._now()) - made <= self.journal.lease_ms, "a question that nobody waits for was granted"
            )
        self.must(changed <= may, f"{verb}, repeated, changed {changed}: {said.answer} {answer}")
        self._look_again()

    def _look_again(self) -> None:
        facts, events, rows = self._look()
        self.must(not (facts or events or rows), "a repeat wrote something")
        self.book.facts += facts
        self.book.events += events
        self.book.rows += rows

    def _everything(self) -> dict[str, Any]:
        keys = self.keys
        pipe = self.client.pipeline(transaction=False)
        pipe.hgetall(keys.own)
        pipe.get(keys.snapshot)
        pipe.zrange(keys.inbox, 0, -1, withscores=True)
        pipe.hgetall(keys.box)
        pipe.zrange(keys.seen, 0, -1, withscores=True)
        pipe.llen(keys.fact)
        pipe.llen(keys.evt)
        pipe.llen(keys.hist(0))
        pipe.hgetall(keys.rec)
        pipe.hgetall(keys.state)
        pipe.zscore(keys.due, self.session)
        names = ("fields", "now", "inbox", "box", "seen", "facts", "events", "rows", "records", "state", "due")
        found = dict(zip(names, pipe.execute(), strict=True))
        found["token"] = found["fields"].get(b"token", b"").decode()
        return found

    # Another past -----------------------------------------------------------------------------------------------------

    def _stored(self) -> list[str]:
        keys = self.keys
        return [getattr(keys, name) for name in ("own", "snapshot", "inbox", "box", "seen", "fact", "evt", "rec", "state")] + [
            keys.hist(0), keys.due, keys.tidy, keys.index,
        ]  # fmt: skip

    def photograph(self) -> None:
        """Remember the store as it is."""
        if not self.fields:
            return
        pipe = self.client.pipeline(transaction=False)
        for key in self._stored():
            pipe.dump(key)
        dumps = cast("list[bytes | None]", pipe.execute())
        self._past.append((dict(zip(self._stored(), dumps, strict=True)), deepcopy(self.book)))

    def rewind(self, writes: int, owners: Mapping[str, int]) -> None:
        """The store is again as it was so many calls ago."""
        if len(self._past) < writes:
            return
        dumps, book = self._past[-writes]
        for _ in range(writes):
            self._past.pop()
        pipe = self.client.pipeline(transaction=True)
        for key, dump in dumps.items():
            pipe.delete(key)
            if dump is not None:
                pipe.restore(key, 0, dump)
        pipe.execute()
        # An owner may have heard of what is lost, and go on with it; a report of a loss is lost like everything else.
        self._ghosts |= set(self.book.accepted) - set(book.accepted)
        self._demands.clear()
        self.book = book
        self.fields = {}
        self._look_fresh()
        for token, events in owners.items():
            self._blind.add(token)
            if events > len(self.book.events):
                self._ahead[token] = events

    def _look_fresh(self) -> None:
        own = cast("dict[bytes, bytes]", self.client.hgetall(self.keys.own))
        self.fields = {name.decode(): value.decode() for name, value in own.items()}
        self._look_again()

    def _heard_behind(self, said: Said) -> None:
        token = self.argument(said.verb, said.command, "token")
        if said.answer[0] == b"behind" and token in self._ahead:
            self._demands[token] = self._ahead[token]

    def died(self, prefix: str) -> None:
        """A process is dead: what it knew is forgotten with it."""
        self._demands = {token: seen for token, seen in self._demands.items() if not token.startswith(prefix)}

    def ended(self, token: str, carried: Carried) -> None:
        """A task is over."""
        del token
        self.must(carried.how not in ("unreadable", "too_new", "not_yours"), f"carried: {carried}")

    # The end ----------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything has come to rest: the whole of it is read again."""
        keys, book = self.keys, self.book
        if not self.fields:
            return  # the store has lost the session as a whole
        base = int(self.fields["fact_base"])
        assert self.client.lrange(keys.fact, 0, -1) == book.facts[base:], "a fact has changed"
        assert self.client.lrange(keys.evt, 0, -1) == book.events, "an event has changed"
        assert self.client.lrange(keys.hist(0), 0, -1) == book.rows, "a row has changed"
        assert not self._inbox, f"still waiting: {self._inbox}"
        assert book.snapshot.turn is None
        assert book.snapshot.waiting == 0 or self._ghosts
        assert set(book.used) - self._ghosts == set(book.accepted) - self._ghosts
        assert set(book.outcomes) == {f"turn_{number}" for number in range(book.snapshot.next_turn)}
        self._stream([json.loads(line) for line in book.events])
        self._history([json.loads(row) for row in book.rows])

    def _stream(self, events: list[Any]) -> None:
        names = [event["meta"]["id"] for event in events]
        assert len(set(names)) == len(names), "two events have one id"
        grammar(events)
        lost = [event["data"]["from"] for event in events if event["type"] == "session.rewound"]
        for token, seen in self._demands.items():
            assert any(end >= seen for end in [*lost, self.book.heard]), (
                f"{token} had seen {seen} events, and nobody says what was lost"
            )
        joined = {
            fact.turn: list(fact.deliveries)
            for fact in map(codec.unpack_fact, self.book.facts)
            if isinstance(fact, TurnStarted)
        }
        turn, ended = "", []
        for event in events:
            if event["type"] in ("stream.lost", "session.rewound", "session.started"):
                continue
            turn = event["data"].get("turnId", turn)
            assert event["meta"]["deliveryIds"] == joined[turn], f"{event['type']} of {turn}: {event['meta']}"
            if event["type"] in ("turn.completed", "turn.failed", "turn.cancelled"):
                ended.append((turn, event["type"].removeprefix("turn.")))
        assert ended == list(self.book.outcomes.items())

    def _history(self, rows: list[Any]) -> None:
        assert len({row["id"] for row in rows}) == len(rows), "two rows have one id"
        before: list[str] = []
        for row in rows:
            parts = row["m"]["parts"]
            results = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-return"]
            assert results == before, f"results {results} for calls {before}"
            before = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-call"]
        assert not before, "calls without results"
