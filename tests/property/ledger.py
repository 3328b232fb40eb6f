"""What must always be true of a session, told from what is stored, what was answered and what was begun out there.

It is looked at after every single call that reached the server. Only what is new is read; at the end everything is read again.
`book.py` is what it writes down; `order.py` knows in which order messages are taken in, `asked.py` what people are asked, `posts.py`
what is posted, `told.py` what a whole stream and history look like, `doors.py` what is true of addresses and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from orchestrator.core import codec
from orchestrator.core.advance import advance
from orchestrator.core.budget import UNLIMITED, Budgets, exceeded
from orchestrator.core.delivery import Envelope
from orchestrator.core.ending import SESSION_ENDED
from orchestrator.core.fact import (
    AnswersTaken,
    CallStarted,
    CancelAccepted,
    Compacted,
    CompactionDue,
    ContextCleared,
    ControlKept,
    DeliveryDropped,
    Fact,
    MessagesJoined,
    SessionEnding,
    StepFailed,
    TailLost,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import EMPTY, Call, Snapshot
from orchestrator.journal import Journal
from orchestrator.models import Layer
from orchestrator.ports import ModelCall
from orchestrator.process.history import row_id
from orchestrator.tool import ToolContext
from orchestrator.turn import Carried
from tests.property.asked import Asked
from tests.property.book import Book, Said
from tests.property.line import line_of, pairs
from tests.property.order import Order
from tests.property.posts import Posts
from tests.property.told import check_stream, is_same_event, unpaired

Fields = dict[str, str]
SOON_MS = 2_000
FAR_MS = 3_600_000
OWN_CODES = {b"gone", b"ended", b"not_yours", b"too_new", b"leased", b"later", b"idle", b"stale"}
FAILURES = {"MODEL_CALL_FAILED", "TOOL_FATAL", "STEP_CRASHED"}
LIVES = ("live", "ending", "ended")
REPEATABLE = ("clear", "compact")
LEASES = {"token", "lease", "left", "rung", "rings", "faults"}
OUTBOX = {"out_at", "out_by", "out_until", "out_base", "out_tries", "out_turn"}
MAY_CHANGE = {
    **dict.fromkeys(("release", "renew", "disown", "due"), LEASES),
    **dict.fromkeys(("take_out", "settle_out"), OUTBOX),
    "prune": {"pruned"},
    "list_address": {"adr_n"},
}
"""What else is in the hash is none of their business."""
LAYER = Layer()


class Ledger:
    """What is known of one session."""

    def __init__(
        self,
        journal: Journal,
        session: SessionId,
        rewinds: bool,
        *,
        let_in: Callable[[str], None] = lambda _: None,
        tries: int = 1,
        budgets: Budgets = UNLIMITED,
    ) -> None:
        self.journal, self.client, self.session, self.rewinds = journal, journal.client, session, rewinds
        self.keys = journal.keys(session)
        self.fields: Fields = {}
        self.due: int | None = None
        self.adrs: dict[str, str] = {}
        """What its list says of each address."""
        self.book = Book()
        self.robbed: set[str] = set()
        self.problems: list[str] = []
        self.most_events = 0
        self.rewound = False
        self.posts = Posts(self.client, journal.prefix, session, self.must, tries)
        self._let_in = let_in
        self._order = Order(self.must)
        self.asked = Asked(self.must)
        self.budgets = budgets
        self._line = line_of(self.client)
        self._text: bytes | None = None
        self._read: tuple[bytes | None, Snapshot] = (None, EMPTY)
        self._inbox: dict[str, int] = {}
        self._box: set[str] = set()
        self._records: set[str] = set()
        self._out: list[bytes] = []
        self._tokens: set[str] = set()
        self._demands: dict[str, int] = {}
        self._ghosts: set[str] = set()
        self._blind: set[str] = set()
        """Tokens whose owner does not know yet that the store has lost its tail."""
        self._ahead: dict[str, int] = {}

    # Words ------------------------------------------------------------------------------------------------------------

    def must(self, holds: object, what: str) -> None:
        """Something that must be true; found out in the middle of anything, told when it is over."""
        if not holds:
            self.problems.append(f"{self.session}: {what}")

    def complain(self) -> None:
        """Fails if something was not true."""
        assert not self.problems, "\n".join(self.problems)

    @property
    def open_turn(self) -> str:
        """The open turn, or ''."""
        return self.fields.get("turn", "")

    @property
    def life(self) -> str:
        """live, ending, ended, or gone."""
        return "gone" if "erasing" in self.fields else self.fields.get("status", "gone")

    @property
    def at_rest(self) -> bool:
        """Nobody has anything to do, for a long time."""
        if self.book.erased and self.fields:
            return False
        return not self.fields.get("token") and (self.due is None or self.due > int(self.journal._now()) + FAR_MS)

    # Looking ----------------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Read the store. Returns what is new: facts, events, rows (all of a new generation)."""
        keys, book = self.keys, self.book
        base = int(self.fields.get("fact_base", 0))
        own, self._text, inbox, box, facts, events, rows, records, due, self._out, adrs = self._line.ask(
            ("HGETALL", keys.own),
            ("GET", keys.snapshot),
            ("ZRANGE", keys.inbox, 0, -1, "WITHSCORES"),
            ("HKEYS", keys.box),
            ("LRANGE", keys.fact, len(book.facts) - base, -1),
            ("LRANGE", keys.evt, len(book.events), -1),
            ("LRANGE", keys.hist(book.gen), len(book.rows), -1),
            ("HKEYS", keys.rec),
            ("ZSCORE", keys.due, self.session),
            ("LRANGE", keys.out, 0, -1),
            ("HGETALL", keys.adrs),
        )
        self.fields = {name.decode(): value.decode() for name, value in pairs(own)}
        self._inbox = {name.decode(): int(n) for name, n in pairs(inbox)}
        self._box = {name.decode().removeprefix("b:") for name in box}
        self._records = {name.decode() for name in records}
        self.due = None if due is None else int(due)
        self.adrs = {key.decode(): said.decode() for key, said in pairs(adrs)}
        if (now := int(self.fields.get("fact_base", base))) != base:
            facts = cast("list[bytes]", self.client.lrange(keys.fact, len(book.facts) - now, -1))
        if (gen := int(self.fields.get("gen", book.gen))) != book.gen:
            rows = cast("list[bytes]", self.client.lrange(keys.hist(gen), 0, -1))
        return facts, events, rows

    def observe(self, said: Said) -> None:
        """A call has reached the server: what may it have changed, and is all as it must be?"""
        before, text, inbox, left = self.fields, self._text, self._inbox, self._out
        facts, events, rows = self._look()
        changed = {name for name, value in before.items() if self.fields.get(name) != value}
        name = said.verb.name
        if self._went(said, before):
            return
        if facts or rows or {"seq", "rows", "gen"} & changed:
            self.must(name == "commit", f"{name} wrote facts or rows")
        if events or "events" in changed:
            self.must(name in ("commit", "append"), f"{name} wrote events")
        if facts or rows or events:
            token = said.argument("token")
            self.must(token and token == before["token"], f"{name} of {token} wrote; the owner was {before['token']!r}")
            self.must(before["status"] != "ended", f"{name} wrote after the end")
        match name:
            case "create" | "deliver" | "arrive":
                self._admitted(said, before, inbox)
            case "own":
                same = text == self._text and inbox == self._inbox and not (facts or events or rows)
                self._owned(said, before, changed, same)
            case "commit":
                self._committed(said, before, facts, rows, len(self.book.events) + len(events))
            case "append":
                for line in events:
                    kind = line.split(b'"', 4)[3].decode()
                    self.must(kind in ("message.appended", "reasoning.appended", "action.partial"), f"appended {kind}")
            case _ if name in MAY_CHANGE:
                self.must(changed <= MAY_CHANGE[name], f"{name} changed {changed - MAY_CHANGE[name]}")
        if "attempt" in changed and name != "commit":
            instead = name == "own" and before["token"] == said.argument("instead")
            good = name == "own" and before["token"] and not instead
            self.must(good, f"{name} counted an attempt: {before} -> {self.fields}")
        self.book.events += events
        if "gen" not in changed:
            self.book.rows += rows
        self.most_events = max(self.most_events, len(self.book.events))
        self._posted(said, left)
        if self.fields and not self.book.erased:
            self._lives(name, before)
            self._always()

    def _went(self, said: Said, before: Fields) -> bool:
        """Whether the session is being erased, or is gone; nothing of it comes back then."""
        book, name = self.book, said.verb.name
        if "erasing" in self.fields and not book.erased:
            self.must(name == "erase", f"{name} began to erase")
            book.erased = True
            self.robbed.add(before.get("token", ""))
        if not book.erased:
            self.must(self.fields or not before, f"{name} made it vanish")
            return not self.fields
        if before and not self.fields:
            self.must(name == "erase", f"{name} made it vanish")
        self.must(before or not self.fields, f"{name} brought it back: {self.fields}")
        if self.fields:
            self.must("erasing" in self.fields, f"{name} forgot that it is being erased: {self.fields}")
            self.must(not self.fields.get("token"), f"{name}: it has an owner, and is being erased")
        return True

    def _lives(self, name: str, before: Fields) -> None:
        """A life goes one way."""
        was, now = before.get("status", "live"), self.fields["status"]
        self.must(LIVES.index(was) <= LIVES.index(now), f"{name}: {was} became {now}")
        if was != now:
            good = ("commit",) if now == "ended" else ("deliver", "arrive")
            self.must(name in good, f"{name}: {was} became {now}")
        self.must(was != "ended" or before["events"] == self.fields["events"], f"{name}: it grew after its end")

    # What comes in ----------------------------------------------------------------------------------------------------

    def _admitted(self, said: Said, before: Fields, inbox: Mapping[str, int]) -> None:
        code, verb, book = said.answer[0], said.verb.name, self.book
        if code == b"full":
            limit, answers = self.journal.waiting_limit, said.argument("kind") == "answers"
            full = len(inbox) >= 2 * limit if answers else int(before["waiting"]) >= limit
            self.must(full, "refused, and there was room")
        if code not in (b"accepted", b"created", b"started"):
            self.must(inbox == self._inbox, f"{verb} answered {code}, and something came in")
            return
        self.must(before.get("status", "live") == "live", f"{verb} was accepted, and it is {before.get('status')}")
        self.must((code == b"accepted") == bool(before), f"{verb} of {before}: {code}")
        if who := said.argument("who_is"):
            book.who.add(who)
        name, kind, outcome = self._what_came(said)
        if kind == "reset":
            self.must(self.fields["status"] == "ending", "a reset was accepted, and it goes on")
            if before["turn"]:
                book.must_cancel[name] = before["turn"]
        if outcome == 1 and name in self._inbox:
            book.must_cancel[name] = before["turn"] or f"turn_{book.snapshot.next_turn}"
        if name in self._inbox and name not in inbox:
            self.must(name not in book.accepted, f"{name} was let in twice")
            book.accepted[name] = kind
            self._let_in(name)
            head = said.raw("head")
            assert isinstance(head, bytes)
            envelope = codec.unpack(Envelope, head)
            self._order.accepted(name, self._inbox[name], envelope)
            self.asked.accepted(name, envelope)
            if kind == "tail_seen":
                book.reports[name] = int(said.argument("guard"))
        else:
            # What says again what nobody has looked at yet leaves nothing behind.
            again = kind in (book.accepted.get(waiting) for waiting in self._inbox)
            self.must(kind in ("", "cancel") or (kind in REPEATABLE and again), f"{kind} {name} is not there")

    def _what_came(self, said: Said) -> tuple[str, str, int]:
        """Its id, its kind, and what was said of it."""
        match said.verb.name:
            case "create":
                name = said.argument("delivery")
                return name, "message" if name else "", 0
            case "deliver":
                return said.argument("id"), said.argument("kind"), int(said.answer[3])
            case _:
                return said.answer[4].decode(), said.argument("kind"), int(said.answer[5])

    # Who writes, and what ---------------------------------------------------------------------------------------------

    def _owned(self, said: Said, before: Fields, changed: set[str], same: bool) -> None:
        token = said.argument("token")
        self.must(same, "own changed more than who owns")
        code = said.answer[0]
        if code != b"granted":
            self.must(code in OWN_CODES, str(code))
            self.must(changed <= {"rung", "rings"}, f"a refused own changed {changed}")
            return
        if before["token"] == token:
            self.must(not changed, f"a repeated own changed {changed}")
            return
        self.must(before["status"] != "ended", "an ended session was granted")
        self.must(
            not before["token"] or int(before["lease"]) <= said.at or said.argument("instead") == before["token"],
            "a lease was broken",
        )
        # A question that was overtaken by its own repeat may be granted again, while its caller might still wait for it.
        made = int(said.argument("made_ms"))
        young = said.at - made <= self.journal.lease_ms
        self.must(token not in self._tokens or self.rewinds or young, f"{token} owns a second time")
        self.must(int(self.fields["epoch"]) == int(before["epoch"]) + 1, "an epoch was left out")
        self._tokens.add(token)

    def _committed(
        self, said: Said, before: Fields, facts: Sequence[bytes], rows: Sequence[bytes], events: int
    ) -> None:
        code = said.answer[0]
        if code == b"landed":
            self.must(not facts, "what had landed was written again")
        if code == b"done":
            progress = said.argument("progress") == "1"
            self.must(
                self.fields["attempt"] == ("0" if progress else before["attempt"]), "attempts are counted otherwise"
            )
        book, read = self.book, [codec.unpack_fact(packed) for packed in facts]
        for fact in read:
            self._fact(fact, events, before)
            if not self.rewound:
                self._order.happened(fact, book.snapshot)
                self.asked.happened(fact, book.snapshot)
            book.snapshot = advance(book.snapshot, fact)
        book.facts += facts
        anew = any(isinstance(fact, ContextCleared | Compacted) for fact in read)
        self.must(anew == (book.gen != (gen := int(self.fields["gen"]))), f"generation {book.gen} became {gen}")
        if anew:
            self._generation(gen, rows, read)

    def _fact(self, fact: Fact, events: int, before: Fields) -> None:
        book = self.book
        used: tuple[str, ...] = ()
        match fact:
            case TurnStarted():
                self.must(book.snapshot.turn is None, "two turns at once")
                self.must(fact.number == book.snapshot.next_turn, "turns are not consecutive")
                used = fact.deliveries
                if before["status"] == "ending":
                    book.must_cancel[before["end"]] = fact.turn
            case MessagesJoined():
                used = fact.deliveries
            case DeliveryDropped() if fact.delivery in book.reports:
                used, seen = (fact.delivery,), book.reports[fact.delivery]
                over = book.snapshot.ending  # nobody names a loss any more
                self.must(over or seen <= events, f"{seen} events were seen, {events} are left, and nobody says so")
                book.heard = max(book.heard, seen)
            case DeliveryDropped():
                used = (fact.delivery,)
                served = fact.reason != SESSION_ENDED or book.snapshot.ending != "expired"
                self.must(served, f"its time is over, and {fact.delivery} was not served")
            case CancelAccepted():
                used = (fact.delivery,)
                if fact.delivery in self._ghosts:
                    book.must_cancel[fact.delivery] = fact.turn
            case TailLost() | ContextCleared() | CompactionDue():
                used = (fact.delivery,) if fact.delivery else ()
            case ControlKept():
                used = (fact.delivery,)
            case AnswersTaken():
                used = (fact.delivery,)
                if any(one.option == "stop" and one.state != "invalid" for one in fact.decisions):
                    book.stopped.add(fact.turn)
            case SessionEnding():
                used = (fact.delivery,) if fact.delivery else ()
                self._ends(fact, before)
            case StepFailed():
                self.must(fact.code in FAILURES, f"an innocent step failed: {fact}")
            case TurnSettled():
                self.must(fact.turn not in book.outcomes, "a turn ended twice")
                book.outcomes[fact.turn] = fact.outcome
                told = fact.turn in book.must_cancel.values() or fact.turn in book.stopped
                must = told or (self.rewound and bool(book.snapshot.ending))
                self.must(
                    must == (fact.outcome == "cancelled"), f"{fact.turn} ended {fact.outcome}; told to stop: {must}"
                )
            case CallStarted():
                key = f"{fact.turn}/{fact.call}"
                self.must(book.careful_starts.get(key, 0) == 0, f"{key} was started before that was written")
        for name in used:
            self.must(name in book.accepted or name in self._ghosts, f"{name} was never accepted")
            self.must(name not in book.used or name in self._ghosts, f"{name} was used twice")
            book.used[name] = type(fact).__name__

    def _ends(self, fact: SessionEnding, before: Fields) -> None:
        if fact.delivery is None:
            late = 0 < int(before["deadline"]) <= int(self.journal._now())
            self.must(late, f"it ended by itself: {fact}, {before}")
            self.must(self.book.snapshot.turn is None, "its time was over, and a turn was cut")
        else:
            self.must(self.rewound or before["status"] == "ending", "nobody ended it")

    def _generation(self, gen: int, rows: Sequence[bytes], facts: Sequence[Fact]) -> None:
        """The history was made anew: what was kept of it is its end, as it was."""
        book, old = self.book, self.book.rows
        self.must(gen == book.gen + 1, f"generation {gen} after {book.gen}")
        cleared = any(isinstance(fact, ContextCleared) for fact in facts)
        self.must(not self.client.exists(self.keys.hist(book.gen)), "the old generation is there")
        before = {row_id(row): row for row in old}
        kept = [row for row in rows if row_id(row) in before]
        self.must(kept == old[len(old) - len(kept) :], "not the end of the history was kept")
        self.must(not kept or not cleared, "the history was cleared, and it is there")
        self.must(cleared or len(rows) <= len(old) + 1, "it was made longer")
        self.must(not (wrong := unpaired(rows)), f"generation {gen}: {wrong}")
        book.gen, book.rows = gen, list(rows)

    def _posted(self, said: Said, left: Sequence[bytes]) -> None:
        """The outbox grows with commits, and shrinks when its first entries were settled."""
        book, now = self.book, self._out
        if book.erased:
            return
        match said.verb.name:
            case "commit":
                self.must(now[: len(left)] == left, "a commit changed the outbox")
                book.out += now[len(left) :]
                if said.answer[0] == b"done":
                    self.must(len(now) - len(left) >= int(said.argument("n_out")), "a commit lost what it was to leave")
            case "take_out" if said.answer[0] == b"done":
                self.posts.taken(said.answer[3], said.answer[2])
            case "settle_out":
                gone = len(left) - len(now)
                self.must(now == left[gone:], "the outbox was not settled in order")
                self.posts.settled(left[:gone])
                book.settled += gone
        self.must(now == book.out[book.settled :], f"{said.verb.name} changed the outbox")

    def _always(self) -> None:
        fields, book = self.fields, self.book
        base = int(fields["fact_base"])
        snapshot = self._snapshot()
        self.must(int(fields["seq"]) == len(book.facts), f"seq {fields['seq']}, facts {len(book.facts)}")
        self.must(int(fields["events"]) == len(book.events), f"events {fields['events']}, stream {len(book.events)}")
        self.must(int(fields["rows"]) == len(book.rows), f"rows {fields['rows']}, history {len(book.rows)}")
        at = snapshot.at
        self.must((at.seq, at.gen, at.rows) == (len(book.facts), book.gen, len(book.rows)), f"the snapshot is at {at}")
        self.must(at.events <= len(book.events) and base <= at.seq, "the snapshot is ahead of the stream")
        self.must(replace(book.snapshot, at=at) == snapshot, f"the facts make {book.snapshot}, stored is {snapshot}")
        self.must(int(fields["judged"]) == snapshot.judged, "judged differs")
        self.must(fields["turn"] == (snapshot.turn.id if snapshot.turn else ""), "turn differs")
        waiting = set(self._inbox)
        self.must(self._box == waiting, "the box holds what waits and nothing else")
        self.must(not waiting & set(book.used) - self._ghosts, "used and still waiting")
        lost = set(book.accepted) - waiting - set(book.used)
        self.must(not lost, f"accepted and lost: {lost}")
        self.must(waiting <= set(book.accepted), "nobody sent this")
        messages = sum(book.accepted.get(name) == "message" for name in waiting)
        self.must(self.rewound or int(fields["waiting"]) == messages, f"{fields['waiting']} of {messages} wait")
        self.must(0 <= int(fields["waiting"]) <= self.journal.waiting_limit, f"{fields['waiting']} wait")
        settled = {call.id for call in snapshot.turn.calls if call.state == "settled"} if snapshot.turn else set()
        self.must(self._records == settled, f"records {self._records}, settled {settled}")
        if not fields["token"]:
            self.must(fields["lease"] == "0", "nobody's lease")
        if fields["status"] == "ended":
            self.must(not fields["token"] and not waiting, "it is over, and not")
        self._due(snapshot)

    def _snapshot(self) -> Snapshot:
        """What is stored; read again only where it has changed."""
        if self._text != self._read[0]:
            self._read = self._text, codec.unpack_snapshot(self._text) if self._text else EMPTY
        return self._read[1]

    def _due(self, snapshot: Snapshot) -> None:
        """Whoever has something to do, now or later, is looked at in time."""
        fields, now = self.fields, int(self.journal._now())
        over = fields["status"] == "ended"
        head = any(n > (snapshot.judged if snapshot.busy else 0) for n in self._inbox.values())
        work = fields["work"] == "1" or head or fields["status"] == "ending"
        timer = int(fields["next_timer"])
        deadline = 0 if fields["turn"] else int(fields["deadline"])  # an open turn is not cut
        self.must(not over or not (work or timer or deadline), f"it is over, and has something to do: {fields}")
        if fields["token"] or work or timer or deadline or self._out:
            self.must(self.due is not None, f"nobody will look: {fields}")
        if self.due is None or fields["token"]:
            return
        if work:
            self.must(self.due <= now + self.journal.lease_ms, f"somebody looks too late: {self.due - now}")
        # A timer is of something that has begun and settles first.
        for moment in (timer or deadline, int(fields.get("out_at", 0)) if self._out else 0):
            self.must(not moment or self.due <= max(moment, now + SOON_MS), f"{moment} comes too late: {self.due}")

    # What is begun out there ------------------------------------------------------------------------------------------

    def model_begins(self, token: str, call: ModelCall) -> None:
        """A worker calls a model."""
        if not self._may_begin(token):
            return
        if call.purpose == "summary":
            doing = self.book.snapshot.compacting
            self.must(doing is not None and doing.begun, "a summary that nobody has asked for")
            return
        turn = self.book.snapshot.turn
        due = (
            turn is not None and turn.step_open and (turn.id, turn.step, turn.phase) == (call.turn, call.step, "model")
        )
        self.must(due and turn and not turn.cancelling, f"the model is called for {call.turn}/{call.step} in {turn}")
        self.must(due and turn and not turn.joining, "the model is called without the messages that joined")
        self.must(len(call.history) == len(self.book.rows), "the model does not see the whole history")
        if not self.rewound:
            self._files_are_there(call)
            self.asked.model_begins()
            self.must(not exceeded(self.book.snapshot, self.budgets), "the model is called beyond a budget")

    def _files_are_there(self, call: ModelCall) -> None:
        for file in LAYER.files(call.history):
            self.must(call.files.get(file.blob) == file.name.encode(), f"{file.name} is {call.files.get(file.blob)!r}")
            stays = self.journal.client.ttl(self.journal.keys(self.session).blob(file.blob)) == -1
            self.must(stays, f"{file.name} goes by itself")

    def tool_begins(self, token: str, call: Call, arguments: Mapping[str, object], context: ToolContext) -> None:
        """A worker starts a tool call."""
        key = f"{context.session.turn}/{call.id}"
        book = self.book
        # Whoever does not know yet that the store has lost its tail has written down a start that is lost as well.
        if call.on_interrupt == "report" and token not in self._blind:
            book.careful_starts[key] = book.careful_starts.get(key, 0) + 1
            self.must(book.careful_starts[key] == 1, f"{key} started twice")
        what = f"{call.tool} {arguments} {call.digest}"
        self.must(book.calls.setdefault(key, what) == what, f"{key}: {what} and {book.calls[key]}")
        self.must(context.idempotency_key == f"{self.session}/{key}", context.idempotency_key)
        if not self._may_begin(token):
            return
        if not self.rewound:
            self.asked.begins(key, call.tool)
        turn = book.snapshot.turn
        due = turn is not None and turn.id == context.session.turn and turn.phase == "tools"
        state = next((one.state for one in turn.calls if one.id == call.id), "") if turn else ""
        wanted = "asked" if call.on_interrupt == "rerun" else "started"
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
        gone = self.book.erased
        match verb:
            case "create":
                good = now == b"again" or gone
            case "deliver":
                good = (now == b"again" and int(answer[3]) == int(said.answer[3])) or gone
            case "own" if first == b"granted":
                good = now in (b"granted", b"stale", b"leased", b"later", b"idle", b"ended") or gone
            case "commit":
                good = now == (b"landed" if first in (b"done", b"landed") else first)
                good = good or now in (b"superseded", b"landed") or (first == b"behind" and now == b"news")
            case "append":
                good = now == (b"landed" if first in (b"done", b"landed") else first) or now == b"superseded"
            case "settle_out":
                good = now == b"superseded"
            case _:
                self._look_again()
                return
        good = good or (gone and now in (b"gone", b"behind"))
        self.must(good, f"{verb} answered {said.answer}, and when repeated {answer}")
        may = {"own": {"due", "token", "fields"}}.get(verb, set())
        if verb == "own" and now == b"granted" and before["token"] != said.argument("token"):
            # Only while its caller might still wait for it.
            made = int(said.argument("made_ms"))
            self.must(
                int(self.journal._now()) - made <= self.journal.lease_ms, "a question that nobody waits for was granted"
            )
        self.must(changed <= may, f"{verb}, repeated, changed {changed}: {said.answer} {answer}")
        self._look_again()

    def _look_again(self) -> None:
        facts, events, rows = self._look()
        self.must(not (facts or events or rows), "a repeat wrote something")

    def _everything(self) -> dict[str, Any]:
        keys = self.keys
        answers = self._line.ask(
            ("HGETALL", keys.own),
            ("GET", keys.snapshot),
            ("ZRANGE", keys.inbox, 0, -1, "WITHSCORES"),
            ("HGETALL", keys.box),
            ("ZRANGE", keys.seen, 0, -1, "WITHSCORES"),
            ("LLEN", keys.fact),
            ("LLEN", keys.evt),
            ("LLEN", keys.hist(self.book.gen)),
            ("HGETALL", keys.rec),
            ("HGETALL", keys.state),
            ("ZSCORE", keys.due, self.session),
            ("LRANGE", keys.out, 0, -1),
            ("HGETALL", keys.adrs),
        )
        names = ("fields", "now", "inbox", "box", "seen", "facts", "events", "rows", "records", "state", "due", "out", "adrs")  # fmt: skip
        found = dict(zip(names, answers, strict=True))
        found["token"] = dict(pairs(found["fields"])).get(b"token", b"").decode()
        return found

    # Another past -----------------------------------------------------------------------------------------------------

    def rewind(self, book: Book, owners: Mapping[str, int]) -> None:
        """The store is again as it was when this was true."""
        # An owner may have heard of what is lost, and go on with it; a report of a loss is lost like everything else.
        self._ghosts |= set(self.book.accepted) - set(book.accepted)
        self._demands.clear()
        self.book, self.rewound = book, True
        own = cast("dict[bytes, bytes]", self.client.hgetall(self.keys.own))
        self.fields = {name.decode(): value.decode() for name, value in own.items()}
        self._look_again()
        for token, events in owners.items():
            self._blind.add(token)
            if events > len(self.book.events):
                self._ahead[token] = events

    def heard(self, said: Said) -> None:
        """Whoever asked has the answer: who knows now that the store has lost something must see that it is named."""
        if said.answer[0] == b"behind" and (token := said.argument("token")) in self._ahead:
            self._demands[token] = self._ahead[token]

    def died(self, prefix: str) -> None:
        """A process is dead: what it knew is forgotten with it."""
        self._demands = {token: seen for token, seen in self._demands.items() if not token.startswith(prefix)}

    def ended(self, carried: Carried) -> None:
        """A task is over."""
        self.must(carried.how not in ("unreadable", "too_new", "not_yours"), f"carried: {carried}")

    # The end ----------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything has come to rest: the whole of it is read again."""
        keys, book = self.keys, self.book
        if not self.fields:
            assert book.erased or self.rewound or not book.accepted, "it has vanished"
            return  # the store has lost the session as a whole, or it was erased
        base = int(self.fields["fact_base"])
        assert self.client.lrange(keys.fact, 0, -1) == book.facts[base:], "a fact has changed"
        lines = cast("list[bytes]", self.client.lrange(keys.evt, 0, -1))
        assert len(lines) == len(book.events), "the stream has another length"
        assert all(map(is_same_event, lines, book.events)), "an event has changed"
        assert self.client.lrange(keys.hist(book.gen), 0, -1) == book.rows, "a row has changed"
        others = [gen for gen in range(book.gen + 2) if gen != book.gen and self.client.exists(keys.hist(gen))]
        assert not others, f"generations that nobody uses: {others}"
        assert not self._inbox, f"still waiting: {self._inbox}"
        assert not self._out, f"still to be posted: {self._out}"
        assert self.fields["status"] in ("live", "ended"), self.fields
        assert book.snapshot.turn is None
        if not self.rewound:
            self.asked.finish()
        assert book.snapshot.compacting is None
        assert not book.snapshot.pending
        assert book.snapshot.waiting == 0 or self._ghosts
        assert set(book.used) - self._ghosts == set(book.accepted) - self._ghosts
        assert set(book.outcomes) == {f"turn_{number}" for number in range(book.snapshot.next_turn)}
        known = {name.decode() for name in cast("set[bytes]", self.client.smembers(keys.who))}
        assert known == book.who or self.rewound, f"{known} take part, {book.who} did"
        facts = [codec.unpack_fact(packed) for packed in book.facts]
        check_stream(book.events, facts, book.outcomes)
        lost = [fact.end for fact in facts if isinstance(fact, TailLost)]
        for token, seen in self._demands.items():
            assert self.fields["status"] == "ended" or any(end >= seen for end in [*lost, book.heard]), (
                f"{token} had seen {seen} events, and nobody says what was lost"
            )
        assert not (wrong := unpaired(book.rows)), wrong
