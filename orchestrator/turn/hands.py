"""What a driver has in its hands: the session it owns, what has happened since the last commit, and what came in.

The signals that end a drive are here as well; no tool can eat them, and they are caught in `carry.py` only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty
from typing import NoReturn, cast

from orchestrator.agent import Agent, Instructions
from orchestrator.clock import steady
from orchestrator.core import codec
from orchestrator.core.advance import InFlight, interrupts, understands
from orchestrator.core.budget import told
from orchestrator.core.delivery import NO_ASIDE, Aside, Body, File, Head
from orchestrator.core.event import NO_BODIES, Bodies, unpack_result
from orchestrator.core.fact import Fact, StepFailed
from orchestrator.core.names import CallId, DeliveryId, RequestId, SessionId, TurnId, result_key, turn_id
from orchestrator.core.snapshot import Turn
from orchestrator.core.steps import MODEL_TRIES
from orchestrator.draft import Given, Loose
from orchestrator.errors import JournalAway, UnreadableHistory
from orchestrator.journal import Address, Behind, Gone, Superseded
from orchestrator.journal.calling import MOST_HEADS
from orchestrator.notes import Note, unpack_note
from orchestrator.perform import ERROR_LIMIT, Returned, Stop, plain_json
from orchestrator.ports import Model
from orchestrator.process.history import History, Messages, row_id
from orchestrator.process.owned import DRAIN, NEWS, Owned
from orchestrator.process.shared import Process
from orchestrator.tool import SessionView
from orchestrator.watching import UNWATCHED, Drive

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 1.0
"""News that could not be looked up because the journal was away are looked up so often."""


class LostOwnership(Stop):
    """Another owns the session, or it is gone: drop everything silently."""


class Rewound(Stop):
    """The store has lost its tail."""

    def __init__(self, behind: Behind) -> None:
        super().__init__()
        self.behind = behind


class GiveBack(Stop):
    """This process is leaving."""


class Hands:
    """One owned session, and what its driver and its effects share."""

    def __init__(self, process: Process, owned: Owned, watch: Drive = UNWATCHED) -> None:
        self.process = process
        self.owned = owned
        self.watch = watch
        self.given: list[Given] = []
        self.heads: tuple[Head, ...] = owned.heads
        self.all_in = not owned.snapshot.busy and len(owned.heads) < MOST_HEADS
        self.call: InFlight = ""
        self.asked: dict[CallId, object] = {}
        self.loose = self.left_behind()
        self._headless = ""
        self._look_again = False
        self._agent: Agent | None = None
        self._window: int | None = None
        self._addresses: Sequence[Address] | None = None
        self.has_posts = owned.granted.out > 0
        self._bodies: dict[DeliveryId, Body] = {}
        self._aside: tuple[TurnId, Aside] | None = None
        self._kept = process.histories.take(owned.session)
        self._history = self._remembered()

    # What has happened ------------------------------------------------------------------------------------------------

    @property
    def turn(self) -> Turn:
        """The open turn."""
        assert self.owned.snapshot.turn is not None
        return self.owned.snapshot.turn

    def give(self, fact: Fact, bodies: Bodies = NO_BODIES, answer: bytes = b"") -> None:
        """Something has happened; the next commit writes it."""
        self.given.append(Given(fact, bodies, answer))

    def give_generation(self, fact: Fact, messages: Sequence[bytes], kept: Sequence[bytes]) -> None:
        """The history was made anew: messages to be stored, then rows that stay as they are."""
        self.given.append(Given(fact, generation=(messages, kept)))

    def fail_step(self, code: str, text: str, details: Mapping[str, object] | None = None) -> None:
        """The step cannot go on, and its turn with it."""
        turn = self.turn
        try:
            told = cast("Mapping[str, object]", plain_json(dict(details))) if details else None
        except ValueError:
            told = None
        fact = StepFailed(turn.id, turn.step, code, self.process.clock.now())
        self.give(fact, Bodies(failure=text[:ERROR_LIMIT], details=told))

    def left_behind(self) -> Loose | None:
        """Events of the open turn that were appended and that no commit has vouched for."""
        there, vouched = self.owned.position.events, self.owned.snapshot.at.events
        return Loose(vouched, there - 1) if there > vouched and self.owned.snapshot.turn else None

    # What comes in ----------------------------------------------------------------------------------------------------

    def hear(self, seconds: float | None) -> object:
        """The next thing in the mailbox that is not about the session itself, or None after so many seconds. News are looked up."""
        if self._look_again:
            seconds = min(seconds or LOOK_AGAIN_SECONDS, LOOK_AGAIN_SECONDS)
        try:
            item = self.owned.mailbox.get(timeout=seconds) if seconds is not None else self.owned.mailbox.get()
        except Empty:
            if self._look_again:
                self.look_for_news()
            return None
        match item:
            case Behind() | Superseded() | Gone():
                self.lose(item)
            case UnreadableHistory():
                raise item
            case _ if item is DRAIN:
                raise GiveBack()
            case _ if item is NEWS:
                self.look_for_news()
                return NEWS
        return item

    def ready(self) -> Iterator[Returned]:
        """The results that are in the mailbox already. What else is there stays for the next time, behind the commit of these."""
        others = []
        with suppress(Empty):
            while True:
                item = self.owned.mailbox.get_nowait()
                if isinstance(item, Returned):
                    yield item
                else:
                    others.append(item)
        for item in others:
            self.owned.mailbox.put(item)

    def look_for_news(self) -> None:
        """Take in all that has come in and is not known yet."""
        above = max([self.owned.snapshot.judged, *(head.n for head in self.heads)])
        try:
            self.take_in(self.process.reads.heads(self.owned.session, above))
            self._look_again = False
        except JournalAway:
            self._look_again = True

    def look_at_the_inbox(self) -> None:
        """What waits, from the first on; between two turns everything may be used."""
        self.heads = self.process.repeat(lambda: self.process.reads.heads(self.owned.session, 0, MOST_HEADS))
        self.all_in = len(self.heads) < MOST_HEADS

    def take_in(self, heads: Sequence[Head]) -> None:
        """These came in; the next draft says what they mean."""
        known = {head.id: head for head in (*self.heads, *heads)}
        self.heads = tuple(sorted(known.values(), key=lambda head: head.n))

    def interrupted(self) -> bool:
        """Whether what has come in means that what is being done has to stop: the draft says why."""
        return interrupts(self.owned.snapshot, self.heads, self.call)

    def unjudged(self) -> bool:
        """Whether something has come in that the next draft can say something about."""
        return any(head.n > self.owned.snapshot.judged for head in self.heads if understands(head))

    # Whether it is still ours -----------------------------------------------------------------------------------------

    def lose(self, how: Behind | Superseded | Gone) -> NoReturn:
        """Our writes are refused."""
        self.owned.lost = how
        if isinstance(how, Behind):
            raise Rewound(how)
        raise LostOwnership()

    def look_at_the_lease(self) -> None:
        """Nothing is started on a lease that may be over; past half of it, it is renewed first."""
        owned = self.owned
        if owned.lost:
            self.lose(owned.lost)
        if owned.lease_until - steady() < owned.lease_seconds / 2 and not self.process.pulse.renew(owned):
            if owned.lost:
                self.lose(owned.lost)
            if owned.lease_until <= steady():
                # The journal does not answer and the lease may be over: ask until it is clear.
                asked_at = steady()
                answer = self.process.repeat(lambda: self.process.journal.renew([(owned.session, owned.token)]))
                if answer[owned.session] != "done":
                    self.lose(Gone() if answer[owned.session] == "gone" else Superseded())
                owned.renewed(asked_at)

    def flush(self) -> None:
        """Send what is left to stream. Hold `owned.sending`."""
        owned, process = self.owned, self.process
        while not owned.lost and (append := owned.next_append()) is not None:
            command = process.journal.append_command(owned.session, owned.token, *append)
            owned.append_heard(process.repeat(lambda: process.journal.append_many([command])[0]))  # noqa: B023
        if owned.lost:
            self.lose(owned.lost)

    # Whose it is, and what was said -----------------------------------------------------------------------------------

    @property
    def agent(self) -> Agent:
        """The agent as this deployment has it."""
        if self._agent is None:
            app = self.process.app
            self._agent = app.by_name.get(self.owned.granted.agent) or app.agents[0]
        return self._agent

    @property
    def model_name(self) -> str:
        """Its model, as the stream shows it."""
        named = self.process.settings.model or self.agent.model or ""
        return named if isinstance(named, str) else named.name

    @property
    def on_fallback(self) -> bool:
        """Whether the step's model call is made to the other model, because the agent's own has failed too often."""
        return self.agent.fallback_model is not None and self.turn.tries >= MODEL_TRIES

    @property
    def most_tries(self) -> int:
        """How often a step's model call is tried in all."""
        return MODEL_TRIES if self.agent.fallback_model is None else 2 * MODEL_TRIES

    @property
    def fallback_name(self) -> str:
        """The other model's name; nothing where there is none."""
        other = self.agent.fallback_model or ""
        return other if isinstance(other, str) else other.name

    def model(self) -> Model:
        """The model that the open step's call is made to now. Raises `ConfigError`."""
        other = self.agent.fallback_model
        return self.process.layer.model(other) if other and self.on_fallback else self.process.model(self.agent)

    @property
    def window(self) -> int:
        """How many tokens its model takes in at once; 0 where nobody knows."""
        if self._window is None:
            told = self.agent.context_window or self.process.layer.context_tokens(self.model_name)
            self._window = told or 0
        return self._window

    def budget_text(self) -> str:
        """What people are asked when the session's budget is used up."""
        return f"{told(self.owned.snapshot, self.agent.limits.budgets)} Let it go on, up to as much again?"

    def session_view(self) -> SessionView:
        """The session as tools and instructions see it."""
        turn = self.owned.snapshot.turn
        parent = self.owned.granted.parent
        return SessionView(
            id=self.owned.session,
            turn=turn.id if turn else turn_id(self.owned.snapshot.next_turn),
            auth=turn.principal if turn else None,
            parent=SessionId(parent) if parent else None,
        )

    def text(self, instructions: Instructions) -> str:
        """Instructions as text. Raises what their function raises."""
        return instructions if isinstance(instructions, str) else instructions(self.session_view())

    def pinned(self) -> str:
        """The instructions at the head of a history. Where they cannot be made, the turn that begins with them fails at its model call."""
        try:
            return self.text(self.agent.user_instructions)
        except Exception as broken:
            log.exception("%s: the user instructions could not be made", self.owned.session)
            self._headless = f"user_instructions: {type(broken).__name__}: {broken}"
            return ""

    def take_headless(self) -> str:
        """Why the history has no head, once."""
        why, self._headless = self._headless, ""
        return why

    def bodies(self, deliveries: Sequence[DeliveryId]) -> dict[DeliveryId, Body]:
        """What was sent."""
        missing = [name for name in deliveries if name not in self._bodies]
        if missing:
            self._bodies |= self.process.repeat(lambda: self.process.reads.bodies(self.owned.session, missing))
        return {name: self._bodies[name] for name in deliveries if name in self._bodies}

    def aside(self) -> Aside:
        """What came beside the messages of the open turn."""
        turn = self.owned.snapshot.turn
        if turn is None or not turn.aside:
            return NO_ASIDE
        if self._aside is None or self._aside[0] != turn.id:
            packed = self.process.repeat(lambda: self.process.reads.record(self.owned.session, turn.id))
            self._aside = turn.id, codec.unpack(Aside, packed) if packed else NO_ASIDE
        return self._aside[1]

    def result(self) -> object:
        """The result of the open turn, as it is recorded."""
        name = result_key(self.turn.id)
        packed = self.process.repeat(lambda: self.process.reads.record(self.owned.session, name))
        return unpack_result(packed) if packed else None

    def notes(self, names: Sequence[RequestId]) -> dict[RequestId, Note]:
        """What is noted of requests."""
        found = self.process.repeat(lambda: self.process.journal.notes(self.owned.session, names))
        return {name: unpack_note(packed) for name, packed in found.items()}

    def inputs(self) -> Mapping[CallId, object]:
        """What the model asked of its open calls: from the answer itself, or after a takeover from the history's last row."""
        if not self.asked and self.turn.calls:
            asked = self.process.layer.calls(self.messages()[-1])
            self.asked = {call.id: one.input for call, one in zip(self.turn.calls, asked, strict=True)}
        return self.asked

    @property
    def may_ask(self) -> bool:
        """Whether this session can ask people."""
        return self.owned.granted.may_ask

    def posts(self, lines: Sequence[str]) -> tuple[bytes, ...]:
        """What the channels of the App are to be told of events, as entries of the outbox."""
        entries = self.process.entries
        if entries is None or not lines:
            return ()
        if self._addresses is None:
            self._addresses = self.process.repeat(lambda: self.process.journal.addresses(self.owned.session))
        return entries(self.process.app, self._addresses, lines)

    def messages(self) -> Messages:
        """The whole history as messages, read when they are first looked at."""
        if self._history is None:
            self._history = self._loaded(self._kept, self.owned.position.gen, self.owned.position.rows)
        return Messages(self._history, self.process.layer.read)

    def files(self) -> list[File]:
        """The files that the history speaks of, oldest first."""
        messages = self.messages()
        return self.process.layer.files(messages) if messages.has_files else []

    def wrote(self, rows: Sequence[bytes], new_gen: int | None, aside: Aside | None) -> None:
        """Rows that a commit has added, or that begin a new generation, and what came beside messages that it took in."""
        turn = self.owned.snapshot.turn
        if aside is not None:
            self._aside = (turn.id, aside) if turn is not None else None
        if new_gen is not None:
            self._history = History(self.owned.session, new_gen)
        if self._history is not None:
            self._history.add(rows)

    def let_go(self) -> None:
        """Remember the history for the next time."""
        history = self._history if self._history is not None else self._kept
        if history is not None and not self.owned.lost:
            self.process.histories.put(history)

    def _remembered(self) -> History | None:
        """What this process remembers of the history, if it is exactly what is stored."""
        granted, kept = self.owned.granted, self._kept
        if not granted.position.rows:
            return History(self.owned.session, granted.position.gen)
        if kept is None or kept.gen != granted.position.gen or len(kept) != granted.position.rows:
            return None
        return kept if kept.last_row == granted.last_row else None

    def _loaded(self, kept: History | None, gen: int, rows: int) -> History:
        """What was remembered with the tail it lacks, if both are of one timeline; else all of it."""
        session, process = self.owned.session, self.process
        if kept is not None and kept.gen == gen and 0 < len(kept) <= rows:
            tail = process.repeat(lambda: process.reads.rows(session, gen, len(kept) - 1))
            if tail and row_id(tail[0]) == kept.last_row:
                kept.add(tail[1:])
                return kept
        history = History(session, gen)
        history.add(process.repeat(lambda: process.reads.rows(session, gen, 0)))
        return history
