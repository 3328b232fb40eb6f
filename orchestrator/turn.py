"""The only loop: own, find the next effect, perform it, commit what came of it, release.

A start and a restart are the same call: everything that must happen next is in the snapshot.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from typing import Literal, NoReturn, TypeVar, cast

import orchestrator.ids as ids
from orchestrator.agent import Agent, Instructions
from orchestrator.clock import steady
from orchestrator.core import codec
from orchestrator.core.advance import Scene, next_effect, understands
from orchestrator.core.delivery import Body, Delivery, Envelope, Head
from orchestrator.core.effect import CallModel, RunTools, Wait
from orchestrator.core.event import AskedCall, Bodies, Outcome
from orchestrator.core.fact import CallStarted, ModelAnswered, ModelTryFailed, StepFailed, TailLost, ToolReturned
from orchestrator.core.names import CallId, DeliveryId, Millis, SessionId, Token, call_id, step_key, turn_id
from orchestrator.core.snapshot import MAX_CALLS, READS, Call, Turn
from orchestrator.core.steps import MODEL_TRIES
from orchestrator.draft import Draft, Given, Ground, Loose, draft, started_step
from orchestrator.errors import JournalAway, NotStorable, OrchestratorError, UnreadableHistory
from orchestrator.journal import Behind, Done, Gone, Granted, Mode, News, Refused, Superseded
from orchestrator.perform import Answered, Broke, Returned, Stop, ToolRun, ask_model, failed, plain_json, run_tool
from orchestrator.ports import Answer, ModelCall, ModelFailure, ToolBox, WrongCall
from orchestrator.process.history import History, Messages, row_id
from orchestrator.process.owned import READY_SECONDS, Owned
from orchestrator.process.shared import DRAIN, NEWS, Process
from orchestrator.state import StateView
from orchestrator.tool import SessionView, Tool, ToolContext

log = logging.getLogger(__name__)

SHORT_WAIT_MS = 2_000
"""A wait that is longer becomes a timer and frees the worker."""
LONGEST_MODEL_SILENCE = 660.0
"""Seconds after which a model call without a sign of life loses its lease (the model layer cuts it before)."""
AFTER_TIMEOUT = 30.0
ALONE_FROM = 2
"""Takeovers without progress from which a session is carried on in a process of its own."""
FAULTS = 2
"""Deaths there that fail the turn."""
OWN_PATIENCE = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of a wake: why the session was not ours, or how it was left, and how many steps were closed."""

    how: Literal[
        "gone", "ended", "not_yours", "too_new", "leased", "later", "idle", "stale",
        "away", "draining", "alone", "chained", "parked", "given_back", "superseded", "unreadable",
    ]  # fmt: skip
    steps: int = 0


class LostOwnership(Stop):
    """Another owns the session, or it is gone: drop everything silently."""


class Rewound(Stop):
    """The store has lost its tail."""

    def __init__(self, behind: Behind) -> None:
        super().__init__()
        self.behind = behind


class GiveBack(Stop):
    """This process is leaving."""


def carry_on(process: Process, session: SessionId, *, alone: str = "") -> Carried:
    """Move the session until there is nothing to do, or its task has done its share.

    `alone` is a token that a parent process was granted for this session: it is carried on here because it has brought
    workers down before.
    """
    token = Token(alone) if alone else process.new_token()
    may_be_alone = bool(alone) or process.one_alone.acquire(blocking=False)
    try:
        return _carry_on(process, session, token, may_be_alone, child=bool(alone))
    finally:
        if may_be_alone and not alone:
            process.one_alone.release()


def _carry_on(process: Process, session: SessionId, token: Token, may_be_alone: bool, *, child: bool) -> Carried:
    lost_events = 0
    instead = ""
    while True:
        asked_at = steady()
        try:
            answer = _ask(process, session, token, may_be_alone=may_be_alone, instead=instead)
        except codec.Unreadable as broken:
            log.error("%s: its snapshot cannot be read: %s", session, broken)
            return Carried("unreadable")
        except JournalAway as away:
            log.warning("%s: left for later, the journal does not answer: %s", session, away)
            return Carried("away")
        if isinstance(answer, Refused):
            if answer.why == "stale":
                # We asked just now, so it is the clock that was set: the next try must not be refused again.
                with suppress(JournalAway):
                    process.clock.look()
            _report_loss(process, session, lost_events)
            return Carried(answer.why)
        process.clock.heard(answer.at, asked_at)
        owned = Owned(session, token, answer, process.settings.lease_seconds, asked_at, process.clock.now)
        if process.draining.is_set():
            _report_loss(process, session, lost_events)
            repeat(process, lambda: process.journal.release(session, token, _what(owned)))  # noqa: B023  # called at once
            return Carried("draining")
        if answer.attempt >= ALONE_FROM and not child:
            command = process.alone_command(session, token)
            if command is not None and answer.faults < FAULTS:
                return _alone(process, owned, command)
        driver = Driver(process, owned, lost_events)
        process.enter(owned)
        try:
            return driver.run()
        except Rewound as rewound:
            lost_events, instead = max(lost_events, owned.position.events), token
            log.warning(
                "%s: the store has lost its tail: %d events are left of %d",
                session, rewound.behind.events, owned.position.events,
            )  # fmt: skip
            process.histories.clear()
            token = process.new_token()
        except LostOwnership:
            _report_loss(process, session, lost_events)
            return Carried("superseded", driver.steps)
        except UnreadableHistory as broken:
            log.error("%s", broken)
            return driver.leave_for_newer()
        except GiveBack:
            repeat(process, lambda: process.journal.release(session, token, _what(owned)), patience=5.0)  # noqa: B023
            _report_loss(process, session, owned.position.events if isinstance(owned.lost, Behind) else lost_events)
            return Carried("given_back", driver.steps)
        finally:
            process.leave(owned)


def _report_loss(process: Process, session: SessionId, events: int) -> None:
    """Another goes on with a session whose stream we have seen `events` long: let it name what was lost."""
    if not events:
        return
    at = process.clock.now()
    seen = Delivery(ids.new_delivery(at), Envelope("tail_seen", guard=str(events), at=at))
    try:
        repeat(process, lambda: process.journal.deliver(session, seen), patience=OWN_PATIENCE)
    except OrchestratorError as refused:
        log.warning("%s: nobody could be told that it was %d events long: %s", session, events, refused)


def _ask(process: Process, session: SessionId, token: Token, *, may_be_alone: bool, instead: str) -> Granted | Refused:
    """`own`, until there is an answer: a repeat with the same token is the same question."""
    made = process.clock.now()

    def own() -> Granted | Refused:
        return process.journal.own(
            session,
            token,
            made,
            deployment=process.settings.deployment,
            alone=may_be_alone,
            instead=instead,
            lost=bool(instead),
        )

    return repeat(process, own, patience=OWN_PATIENCE)


def repeat(process: Process, call: Callable[[], T], *, patience: float = float("inf")) -> T:
    """Say the same thing again until it is clear what has happened. Raises `JournalAway` after `patience` seconds, or when the
    grace of a leaving process is over."""
    pause, until = 0.02, steady() + patience
    while True:
        try:
            return call()
        except JournalAway:
            if steady() > until or process.grace_over.is_set():
                raise
            time.sleep(pause * (1 + process.dice()))
            pause = min(pause * 2, 0.5)


def _what(owned: Owned) -> str:
    turn = owned.snapshot.turn
    return step_key(turn.id, turn.step) if turn else f"turn_{owned.snapshot.next_turn}/0"


def _alone(process: Process, owned: Owned, command: list[str]) -> Carried:
    """Let a child process carry the session on. Only its death there is the session's own fault."""
    process.enter(owned)
    log.warning("%s: try %d, in a process of its own", owned.session, owned.attempt)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            owned.busy_until = steady() + owned.lease_seconds
            try:
                item = owned.mailbox.get(timeout=0.1)
            except Empty:
                continue
            if item is DRAIN or owned.lost:
                break
        stopped = child.poll() is None
        if stopped:
            child.kill()
        code = child.wait()
        fault = not stopped and code not in (0, 75)
        if stopped and not owned.lost:
            repeat(process, lambda: process.journal.release(owned.session, owned.token, _what(owned)), patience=5.0)
        elif code != 0 and not owned.lost:
            log.error("%s: its own process ended with %d", owned.session, code)
            repeat(
                process,
                lambda: process.journal.disown(owned.session, owned.token, fault=fault, what=_what(owned)),
                patience=5.0,
            )
        return Carried("alone")
    finally:
        process.leave(owned)


class Committed(Mapping[str, bytes]):
    """The committed state of a session, read when it is first looked at."""

    def __init__(self, read: Callable[[], Mapping[str, bytes]]) -> None:
        self._read = read
        self._values: dict[str, bytes] | None = None

    def _loaded(self) -> dict[str, bytes]:
        if self._values is None:
            self._values = dict(self._read())
        return self._values

    def __getitem__(self, name: str) -> bytes:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())

    def learn(self, values: Sequence[tuple[str, bytes]]) -> None:
        """These were committed."""
        if self._values is not None:
            self._values.update(values)


class Driver:
    """Drives one owned session."""

    def __init__(self, process: Process, owned: Owned, lost_events: int = 0) -> None:
        self.process = process
        self.owned = owned
        self.steps = 0
        self._agent: Agent | None = None
        self._given: list[Given] = []
        self._heads: tuple[Head, ...] = owned.heads
        self._bodies: dict[DeliveryId, Body] = {}
        self._outcomes: dict[CallId, Outcome] = {}
        self._state = Committed(lambda: process.reads.state(owned.session))
        self._new_state: dict[str, bytes] = {}
        self._started: set[CallId] = set()
        self._running: list[ToolRun] = []
        self._commits = itertools.count()
        self._loose = self._left_behind()
        self._asked: dict[CallId, object] = {}
        self._headless = ""
        self._kept = process.histories.take(owned.session)
        self._history = self._remembered()
        if owned.position.events < lost_events:
            fact = TailLost(owned.position.events, lost_events, None, 0, process.clock.now())
            self._given.append(Given(fact))

    def _left_behind(self) -> Loose | None:
        there, vouched = self.owned.position.events, self.owned.snapshot.at.events
        return Loose(vouched, there - 1) if there > vouched and self.owned.snapshot.turn else None

    # The loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> Carried:
        """Until there is nothing to do."""
        try:
            self._load_outcomes()
            self._look_for_poison()
            while True:
                if self.owned.lost:
                    self._lose(self.owned.lost)
                carried = self._step()
                if carried is not None:
                    return carried
        finally:
            self._stop_everything()
            history = self._history or self._kept
            if history is not None and not self.owned.lost:
                self.process.histories.put(history)

    def _step(self) -> Carried | None:
        # What comes before an effect may take its time: a provider's library is loaded, a long history is read.
        self.owned.busy_until = steady() + READY_SECONDS
        made = self._draft()
        more = bool(made.left) or made.snapshot.waiting > 0
        if made.ended_turn or made.snapshot.turn is None:
            done = self._commit(
                made, "chain" if more and self._has_done_its_share(made) else "keep" if more else "park"
            )
            if done is None:
                return None
            if not done.kept:
                return Carried("chained" if more else "parked", self.steps)
            if self._has_done_its_share(made) or self.process.draining.is_set():
                return self._release()
            self._heads = repeat(self.process, lambda: self.process.reads.heads(self.owned.session, 0))
            if not self._heads:
                return self._release()
            return None
        effect = next_effect(made.snapshot, self.process.clock.now())
        match effect:
            case Wait() if effect.until - self.process.clock.now() > SHORT_WAIT_MS:
                done = self._commit(made, "park")
                return Carried("parked", self.steps) if done is not None and not done.kept else None
            case Wait():
                if self._commit(made, "keep") is not None:
                    self._wait(effect)
            case CallModel() | RunTools():
                if started_step(made) and self._has_done_its_share(made):
                    done = self._commit(made, "chain")
                    return Carried("chained", self.steps) if done is not None else None
                if made and self._commit(made, "keep") is None:
                    return None
                if self._told_to_stop():
                    return None
                self._look_at_the_lease()
                if isinstance(effect, CallModel):
                    self._call_model()
                else:
                    self._run_tools()
            case None:
                raise AssertionError(f"{self.owned.session}: an open turn without an effect")
        return None

    def leave_for_newer(self) -> Carried:
        """The history has a row this version cannot read: the session waits for a worker that can. Its turn stays open."""
        owned = self.owned
        writes = Draft(self._draft().ground, owned.snapshot).writes(self._commit_id(), "park", reads=READS + 1)
        answer = repeat(self.process, lambda: self.process.journal.commit(owned.session, owned.token, writes))
        if isinstance(answer, Done) and answer.kept:
            return self._release()
        return Carried("too_new", self.steps)

    def _has_done_its_share(self, made: Draft) -> bool:
        closed = self.steps + (1 if made.closed_step and made.facts else 0)
        return closed >= self.process.settings.steps_per_task or self.process.draining.is_set()

    def _release(self) -> Carried:
        repeat(
            self.process, lambda: self.process.journal.release(self.owned.session, self.owned.token, _what(self.owned))
        )
        return Carried("chained", self.steps)

    # Committing -------------------------------------------------------------------------------------------------------

    def _draft(self) -> Draft:
        owned = self.owned
        agent = self._the_agent()
        ground = Ground(
            session=owned.session,
            snapshot=owned.snapshot,
            position=owned.position,
            fact_base=owned.granted.fact_base,
            attempt=owned.attempt,
            token=owned.token,
            scene=Scene(self.process.clock.now(), agent.name, self._model_name(agent), 0, 0),
            layer=self.process.layer,
            pinned=self._pinned,
            load=self._load_bodies,
            outcomes=dict(self._outcomes),
        )
        return draft(ground, self._given, self._heads, self._loose)

    def _commit(self, made: Draft, mode: Mode, *, fsync: bool = False) -> Done | None:
        """Write it. None: refused because of news, which is taken in; make the draft again."""
        owned = self.owned
        if not made and mode == "keep":
            return Done(self.process.clock.now(), owned.last_n, True, self._heads)
        if made.ended_turn:
            self._stop_everything()
        asked = steady()
        with owned.sending:
            # Between the flush and the commit nothing may be appended: the commit names the place it builds on.
            self._flush()
            made.ground.position = owned.position
            writes = made.writes(self._commit_id(), mode, state=tuple(self._new_state.items()), fsync=fsync)
            answer = repeat(self.process, lambda: self.process.journal.commit(owned.session, owned.token, writes))
            if isinstance(answer, Done):
                owned.position = writes.snapshot.at
        if isinstance(answer, News):
            self._take_in(answer.heads)
            return None
        if not isinstance(answer, Done):
            self._lose(answer)
        owned.snapshot = writes.snapshot
        owned.renewed(asked)
        owned.last_n = max(owned.last_n, answer.n)
        self._wrote(made, writes.state, answer)
        return answer

    def _wrote(self, made: Draft, state: Sequence[tuple[str, bytes]], done: Done) -> None:
        self._given, self._loose = [], None
        self._state.learn(state)
        self._new_state = {}
        self._heads = done.heads
        if self._history is not None:
            self._history.add(made.rows)
        if made.closed_step:
            self.steps += 1
        if made.progress:
            self.owned.attempt = 1
        if made.closed_step or made.ended_turn:
            self._outcomes, self._started, self._asked = {}, set(), {}
        else:
            self._outcomes = made.ground.outcomes

    def _commit_id(self) -> str:
        return f"{self.owned.token[-26:]}.{next(self._commits)}"

    def _flush(self) -> None:
        """Send what is left to stream. Hold `sending`."""
        owned = self.owned
        while not owned.lost and (append := owned.next_append()) is not None:
            command = self.process.journal.append_command(owned.session, owned.token, *append)
            owned.append_heard(repeat(self.process, lambda: self.process.journal.append_many([command])[0]))  # noqa: B023
        if owned.lost:
            self._lose(owned.lost)

    def _lose(self, how: Behind | Superseded | Gone) -> NoReturn:
        self.owned.lost = how
        if isinstance(how, Behind):
            raise Rewound(how)
        raise LostOwnership()

    def _take_in(self, heads: Sequence[Head]) -> None:
        known = {head.id: head for head in (*self._heads, *heads)}
        self._heads = tuple(sorted(known.values(), key=lambda head: head.n))

    # What is needed for it --------------------------------------------------------------------------------------------

    def _the_agent(self) -> Agent:
        if self._agent is None:
            app = self.process.app
            self._agent = app.by_name.get(self.owned.granted.agent) or app.agents[0]
        return self._agent

    def _model_name(self, agent: Agent) -> str:
        named = self.process.settings.model or agent.model or ""
        return named if isinstance(named, str) else named.name

    def _session_view(self) -> SessionView:
        turn = self.owned.snapshot.turn
        parent = self.owned.granted.parent
        return SessionView(
            id=self.owned.session,
            turn=turn.id if turn else turn_id(self.owned.snapshot.next_turn),
            auth=turn.principal if turn else None,
            parent=SessionId(parent) if parent else None,
        )

    def _text(self, instructions: Instructions) -> str:
        return instructions if isinstance(instructions, str) else instructions(self._session_view())

    def _pinned(self) -> str:
        """The instructions at the head of a history. Where they cannot be made, the turn that begins with them fails at its model call."""
        try:
            return self._text(self._the_agent().user_instructions)
        except Exception as broken:
            log.exception("%s: the user instructions could not be made", self.owned.session)
            self._headless = f"user_instructions: {type(broken).__name__}: {broken}"
            return ""

    def _load_bodies(self, deliveries: Sequence[DeliveryId]) -> dict[DeliveryId, Body]:
        missing = [name for name in deliveries if name not in self._bodies]
        if missing:
            self._bodies = repeat(self.process, lambda: self.process.reads.bodies(self.owned.session, missing))
        return {name: self._bodies[name] for name in deliveries if name in self._bodies}

    def _load_outcomes(self) -> None:
        turn = self.owned.snapshot.turn
        settled = [call.id for call in turn.calls if call.state == "settled"] if turn else []
        if settled:
            self._outcomes = repeat(self.process, lambda: self.process.reads.records(self.owned.session, settled))

    def _look_for_poison(self) -> None:
        turn = self.owned.snapshot.turn
        if turn is not None and turn.step_open and self.owned.granted.faults >= FAULTS:
            text = (
                f"Step {turn.step} brought its process down {self.owned.granted.faults} times and was given up. "
                "Look at the tools it ran; the session can be used again."
            )
            self._fail_step(turn, "STEP_CRASHED", text)

    def _fail_step(self, turn: Turn, code: str, text: str, details: Mapping[str, object] | None = None) -> None:
        fact = StepFailed(turn.id, turn.step, code, self.process.clock.now())
        self._given.append(Given(fact, Bodies(failure=text, details=details or None)))

    def _remembered(self) -> History | None:
        """What this process remembers of the history, if it is exactly what is stored."""
        granted, kept = self.owned.granted, self._kept
        if not granted.position.rows:
            return History(self.owned.session, granted.position.gen)
        if kept is None or kept.gen != granted.position.gen or len(kept) != granted.position.rows:
            return None
        return kept if kept.last_row == granted.last_row else None

    def _messages(self) -> Messages:
        """The whole history as messages, read when they are first looked at."""
        if self._history is None:
            self._history = self._loaded(self._kept, self.owned.position.gen, self.owned.position.rows)
        return Messages(self._history, self.process.layer.read)

    def _loaded(self, kept: History | None, gen: int, rows: int) -> History:
        """What was remembered with the tail it lacks, if both are of one timeline; else all of it."""
        session = self.owned.session
        if kept is not None and kept.gen == gen and 0 < len(kept) <= rows:
            tail = repeat(self.process, lambda: self.process.reads.rows(session, gen, len(kept) - 1))
            if tail and row_id(tail[0]) == kept.last_row:
                kept.add(tail[1:])
                return kept
        history = History(session, gen)
        history.add(repeat(self.process, lambda: self.process.reads.rows(session, gen, 0)))
        return history

    # Effects ----------------------------------------------------------------------------------------------------------

    def _look_at_the_lease(self) -> None:
        """Nothing is started on a lease that may be over; past half of it, it is renewed first."""
        owned = self.owned
        if owned.lost:
            self._lose(owned.lost)
        if owned.lease_until - steady() < owned.lease_seconds / 2 and not self.process.pulse.renew(owned):
            if owned.lost:
                self._lose(owned.lost)
            if owned.lease_until <= steady():
                # The journal does not answer and the lease may be over: ask until it is clear.
                answer = repeat(self.process, lambda: self.process.journal.renew([(owned.session, owned.token)]))
                if answer[owned.session] != "done":
                    self._lose(Gone() if answer[owned.session] == "gone" else Superseded())
                owned.renewed(steady())

    def _wait(self, effect: Wait) -> None:
        """A short wait in place; news and leaving end it."""
        seconds = (effect.until - self.process.clock.now()) / 1000
        self.owned.busy_until = steady() + max(seconds, 0) + self.owned.lease_seconds
        self._hear(max(seconds, 0.001))

    def _hear(self, seconds: float | None) -> object:
        """The next thing in the mailbox that is not about the session itself, or None after so many seconds. News are looked up."""
        try:
            item = self.owned.mailbox.get(timeout=seconds) if seconds is not None else self.owned.mailbox.get()
        except Empty:
            return None
        match item:
            case Behind() | Superseded() | Gone():
                self._lose(item)
            case UnreadableHistory():
                raise item
            case _ if item is DRAIN:
                raise GiveBack()
            case _ if item is NEWS:
                self._look_for_news()
                return NEWS
        return item

    def _look_for_news(self) -> None:
        above = max([self.owned.snapshot.judged, *(head.n for head in self._heads)])
        try:
            self._take_in(self.process.reads.heads(self.owned.session, above))
        except JournalAway:
            return

    def _told_to_stop(self) -> bool:
        """Whether what has come in means that the turn must stop: the draft says so."""
        judged, turn = self.owned.snapshot.judged, self.owned.snapshot.turn
        return any(
            head.envelope.kind == "cancel" and head.n > judged and turn and head.envelope.guard in ("", turn.id)
            for head in self._heads
            if understands(head)
        )

    def _call_model(self) -> None:
        owned, process = self.owned, self.process
        turn = owned.snapshot.turn
        assert turn is not None
        agent = self._the_agent()
        run = object()
        if self._headless:
            self._fail_step(turn, "MODEL_CONFIG", self._headless)
            self._headless = ""
            return
        try:
            model = process.model(agent)
            call = ModelCall(
                session=owned.session,
                turn=turn.id,
                step=turn.step,
                tries=turn.tries,
                instructions=self._text(agent.instructions),
                history=self._messages(),
                tools=process.layer.toolbox(agent.tools),
            )
        except UnreadableHistory:
            raise
        except OrchestratorError as broken:
            self._fail_step(turn, "MODEL_CONFIG", str(broken))
            return
        except Exception as broken:
            log.exception("%s: the request could not be made", owned.session)
            self._fail_step(turn, "MODEL_CONFIG", f"{type(broken).__name__}: {broken}")
            return
        owned.open_stream(turn)

        def say(kind: str, text: str) -> None:
            owned.busy_until = steady() + LONGEST_MODEL_SILENCE
            if owned.say(kind, text):
                process.pump.hint(owned)

        owned.busy_until = steady() + LONGEST_MODEL_SILENCE
        running = ask_model(model, call, say, owned.mailbox, process.loops, run)
        try:
            while True:
                match self._hear(None):
                    case Answered(run=ran, answer=answer) if ran is run:
                        self._answered(turn, answer, call.tools)
                        return
                    case Broke(run=ran, failure=failure) if ran is run:
                        self._broke(turn, failure)
                        return
                    case _ if self._told_to_stop():
                        return
        finally:
            if not running.ended.is_set():
                running.cancel()
                running.ended.wait(2.0)

    def _answered(self, turn: Turn, answer: Answer, toolbox: ToolBox) -> None:
        if len(answer.calls) > MAX_CALLS:
            self._broke(
                turn,
                ModelFailure(
                    f"The model asked for {len(answer.calls)} calls at once; the limit is {MAX_CALLS}.", retryable=False
                ),
            )
            return
        tools = {tool.name: tool for tool in self._the_agent().tools}
        calls, asked, wrong = [], [], {}
        for place, one in enumerate(answer.calls):
            name = call_id(turn.number, turn.step, place)
            tool = tools.get(one.tool)
            try:
                toolbox.check(one.tool, one.input)
                refused = False
            except WrongCall as problem:
                refused = True
                wrong[name] = failed("INVALID_CALL", str(problem))
            calls.append(
                Call(
                    id=name,
                    provider_id=one.provider_id,
                    tool=one.tool[:64],
                    digest=ids.digest(repr(one.input).encode()),
                    on_interrupt=tool.on_interrupt if tool else "rerun",
                    refused=refused,
                )
            )
            asked.append(AskedCall(name, one.tool, one.input))
            self._asked[name] = one.input
        at = self.process.clock.now()
        fact = ModelAnswered(turn.id, turn.step, answer.finish, answer.usage, tuple(calls), at)
        bodies = Bodies(text=answer.text, reasoning=answer.reasoning, asked=tuple(asked))
        self._given.append(Given(fact, bodies, answer.row))
        for name, outcome in wrong.items():
            self._given.append(
                Given(ToolReturned(turn.id, turn.step, name, "failed", at), Bodies(outcomes={name: outcome}))
            )

    def _broke(self, turn: Turn, failure: ModelFailure) -> None:
        self.owned.drop_stream()
        with self.owned.sending:
            self._flush()
        self._loose = self._left_behind()
        tries = turn.tries + 1
        if not failure.retryable or tries >= MODEL_TRIES:
            details = {**failure.details, "tries": tries}
            self._fail_step(turn, failure.code, failure.message, details)
            self._loose = None
            return
        seconds = 2.0 ** (tries - 1) + 0.25 * self.process.dice()
        if failure.retry_after is not None:
            seconds = max(failure.retry_after, 0.0)
        at = self.process.clock.now()
        retry_at = Millis(at + int(seconds * 1000))
        self._given.append(Given(ModelTryFailed(turn.id, turn.step, failure.code, retry_at, at)))
        log.info(
            "%s %s: try %d of the model call broke: %s",
            self.owned.session,
            step_key(turn.id, turn.step),
            tries,
            failure,
        )

    # Tools ------------------------------------------------------------------------------------------------------------

    def _run_tools(self) -> None:
        """Start the calls that have no result and do not run here yet; take in at least one result."""
        owned, turn = self.owned, self.owned.snapshot.turn
        assert turn is not None
        going = {run.call.id for run in self._running}
        fresh = [call for call in turn.calls if call.state != "settled" and call.id not in going]
        if fresh and not self._start_calls(turn, fresh):
            return
        if self._given:
            return
        owned.busy_until = max((run.until for run in self._running), default=steady()) + AFTER_TIMEOUT
        while True:
            soonest = min((run.until for run in self._running), default=None)
            seconds = None if soonest is None or soonest == float("inf") else max(soonest - steady(), 0.001)
            item = self._hear(seconds)
            if isinstance(item, Returned) and item.run is self:
                self._returned(turn, item)
                while isinstance(item := self._ready(), Returned):
                    self._returned(turn, item)
                return
            if self._told_to_stop():
                self._stop_everything()
                return
            if self._time_out(turn):
                return

    def _ready(self) -> object:
        """The next result if it is there already: what is ready together is committed together."""
        if self.owned.mailbox.empty():
            return None
        return self._hear(0.001)

    def _start_calls(self, turn: Turn, fresh: list[Call]) -> bool:
        """Start calls. False when a start had to be committed and news came with it: a refusal, or that the turn must stop."""
        process, owned = self.process, self.owned
        tools = {tool.name: tool for tool in self._the_agent().tools}
        toolbox = process.layer.toolbox(self._the_agent().tools)
        at = process.clock.now()
        inputs = self._inputs(turn)
        ready: list[tuple[Call, Tool, dict[str, object]]] = []
        starts: list[Given] = []
        for call in fresh:
            tool = tools.get(call.tool)
            if call.state == "started" and call.id not in self._started:
                self._settle(
                    turn,
                    call,
                    failed("OUTCOME_UNKNOWN", "The call was interrupted. It may have run, wholly or partly."),
                )
                continue
            if tool is None:
                text = f"There is no tool {call.tool!r} any more: the agent was changed while this call was waiting."
                self._settle(turn, call, failed("TOOL_REMOVED", text))
                continue
            try:
                ready.append((call, tool, toolbox.check(call.tool, inputs[call.id])))
            except WrongCall as problem:
                self._settle(turn, call, failed("INVALID_CALL", str(problem)))
                continue
            if tool.on_interrupt == "report" or call.on_interrupt == "report":
                starts.append(Given(CallStarted(turn.id, call.id, at)))
        if self._given:
            return True
        if starts:
            # From here on these calls may have happened: it must be on record before they begin.
            self._given = starts
            if self._commit(self._draft(), "keep", fsync=True) is None:
                self._given = []
                return False
            self._started.update(cast(CallStarted, given.fact).call for given in starts)
            if self._told_to_stop():
                return False
            self._look_at_the_lease()
        owned.open_stream(turn)
        for call, tool, arguments in ready:
            self._running.append(self._start(turn, call, tool, arguments))
        return True

    def _inputs(self, turn: Turn) -> Mapping[CallId, object]:
        """What the model asked for: from the answer itself, or after a takeover from the history's last row."""
        if not self._asked:
            asked = self.process.layer.calls(self._messages()[-1])
            self._asked = {call.id: one.input for call, one in zip(turn.calls, asked, strict=True)}
        return self._asked

    def _start(self, turn: Turn, call: Call, tool: Tool, arguments: dict[str, object]) -> ToolRun:
        process, owned = self.process, self.owned

        def progress(value: object) -> None:
            # One that was left behind talks to nobody.
            if not context.cancelled.is_set() and owned.show(call.id, call.tool, _shown(value)):
                process.pump.hint(owned)

        context = ToolContext(
            session=self._session_view(),
            call_id=call.id,
            idempotency_key=f"{owned.session}/{turn.id}/{call.id}",
            attempt=owned.attempt,
            state=StateView(self._state),
            _progress=progress,
        )
        return run_tool(call, tool, arguments, context, owned.mailbox, process.loops, process.threads, self, steady())

    def _returned(self, turn: Turn, item: Returned) -> None:
        run = next((run for run in self._running if run.call.id == item.call), None)
        if run is None:
            return
        self._running.remove(run)
        outcome = item.outcome
        if item.changes:
            seen = {**self._state, **self._new_state}
            try:
                for change in item.changes:
                    slot = change.slot
                    seen[slot.name] = slot.write(change.make(slot.read(seen)))
                    self._new_state[slot.name] = seen[slot.name]
            except Exception as broken:
                name = "NotStorable" if isinstance(broken, NotStorable) else type(broken).__name__
                outcome = failed("STATE_NOT_CHANGED", f"{name}: {broken}", name)
        self._settle(turn, run.call, outcome)
        if item.fatal:
            self._fail_step(turn, "TOOL_FATAL", item.fatal)

    def _settle(self, turn: Turn, call: Call, outcome: Outcome) -> None:
        status = "completed" if outcome.status == "completed" else "failed"
        fact = ToolReturned(
            turn.id, turn.step, call.id, cast("Literal['completed', 'failed']", status), self.process.clock.now()
        )
        self._given.append(Given(fact, Bodies(outcomes={call.id: outcome})))

    def _time_out(self, turn: Turn) -> bool:
        now = steady()
        late = [run for run in self._running if run.until <= now]
        for run in late:
            run.cancel()
            self._running.remove(run)
            if run.unstoppable:
                log.warning("%s: %s hangs and is left behind", self.owned.session, run.call.tool)
            text = f"{run.call.tool} took longer than its timeout and was stopped. It may have partly run."
            self._settle(turn, run.call, failed("TOOL_TIMEOUT", text))
        return bool(late)

    def _stop_everything(self) -> None:
        for run in self._running:
            run.cancel()
        until = steady() + 1.0
        for run in self._running:
            if run.running is not None:
                run.running.ended.wait(max(until - steady(), 0))
        if self.process.grace_over.is_set() and any(run.unstoppable for run in self._running):
            self.process.hard_exit_needed = True
        self._running = []


def _shown(value: object) -> object:
    try:
        return plain_json(value)
    except ValueError as broken:
        return str(broken)
