"""A commit in the making: what has happened since the last one, what follows from it, and all that has to be written with it.

It is made anew from the snapshot whenever it is needed: a commit that is refused because news came in is made again with the news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import orchestrator.ids as ids
from orchestrator.clock import iso
from orchestrator.core import budget, codec, holds
from orchestrator.core import event as events
from orchestrator.core.advance import (
    Scene,
    advance,
    attempt_key,
    follow,
    has_work,
    judge,
    key_of_next,
    next_effect,
    next_timer,
    understands,
)
from orchestrator.core.budget import UNLIMITED, Budgets
from orchestrator.core.context import counted as counted_context
from orchestrator.core.delivery import NO_ASIDE, Aside, Body, Head, Part
from orchestrator.core.effect import Hold
from orchestrator.core.ending import SESSION_ENDED
from orchestrator.core.event import NO_BODIES, Bodies, Event, Outcome
from orchestrator.core.fact import (
    AnswersTaken,
    CallsSettled,
    CancelAccepted,
    CandidateJudged,
    Compacted,
    CompactionDue,
    ContextCleared,
    ControlKept,
    DeliveryDropped,
    DeliveryWaits,
    Fact,
    InputRequested,
    InputResolved,
    MessagesJoined,
    MessageSteers,
    ModelAnswered,
    RequestsWithdrawn,
    ResultDelivered,
    ResultRefused,
    SessionEnded,
    SessionEnding,
    StepCut,
    StepFailed,
    StepSettled,
    StepStarted,
    TailLost,
    ToolReturned,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import CallId, DeliveryId, RequestId, SessionId, result_key, step_key
from orchestrator.core.snapshot import KEPT_TURNS, READS, Call, Position, Snapshot, Turn
from orchestrator.core.steps import NOT_FULFILLED, RESULT_TRIES
from orchestrator.journal import Mode, Writes
from orchestrator.notes import Note, pack_note
from orchestrator.noting import Noting
from orchestrator.ports import Message, ModelLayer, Result
from orchestrator.process.history import FILE_MARK, message_of, row

MOST_FILLERS = 4096
BYTES_PER_TOKEN = 4
"""By which the tokens of what no provider has counted yet are guessed."""
ONLY_LOOKED_AT = (DeliveryWaits, DeliveryDropped, CancelAccepted, MessageSteers, ControlKept, TailLost)
"""Facts that say what a delivery means; nothing of what an attempt was made for has happened with them."""
UNFIT = f"The model gave {RESULT_TRIES} answers, and none of them fits the output schema."
NOTHING_SAID = (Part("text", ""),)
"""In the place of a message that the store has lost."""
CANCELLED = Outcome("cancelled", "The turn was cancelled before this call had a result. It may have partly run.")

Joins = TypeVar("Joins", bound=TurnStarted | MessagesJoined | AnswersTaken)
"""Facts with which messages become part of a turn."""


@dataclass(frozen=True, slots=True)
class Given:
    """A fact that the world brought, and the bodies it speaks of.

    `answer` is the row of a model's answer. `asked` is what is noted of requests that begin.
    `generation` is a whole history that takes the place of the old one: messages to be
    stored, then rows that stay as they are.
    """

    fact: Fact
    bodies: Bodies = NO_BODIES
    answer: bytes = b""
    generation: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
    asked: Mapping[RequestId, Note] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loose:
    """Appended events that no commit has vouched for and that do not count any more: their first and last index."""

    begin: int
    end: int


@dataclass(slots=True)
class Ground:
    """What a draft stands on."""

    session: SessionId
    snapshot: Snapshot
    position: Position
    fact_base: int
    attempt: int
    token: str
    scene: Scene
    layer: ModelLayer
    pinned: Callable[[], str]
    load: Callable[[Sequence[DeliveryId]], dict[DeliveryId, Body]]
    posts: Callable[[Sequence[str]], tuple[bytes, ...]]
    notes: Callable[[Sequence[RequestId]], dict[RequestId, Note]]
    outcomes: dict[CallId, Outcome]
    budgets: Budgets = UNLIMITED
    aside: Callable[[], Aside] = lambda: NO_ASIDE
    result: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Draft:
    """Everything one commit will write, and whether the session or a turn ends or a step is closed with it.

    `messages` are those that are looked at. With `new_gen` the rows are the first of that generation of the history. `fresh` are the
    bytes of history that no provider has counted yet. `kept` are the records of a turn that are no outcomes of calls: what came beside
    its messages (`aside`) and its result.
    """

    ground: Ground
    snapshot: Snapshot
    messages: frozenset[DeliveryId] = frozenset()
    facts: list[Fact] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    last_row: str = ""
    new_gen: int | None = None
    fresh: int = 0
    records: dict[CallId, Outcome] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)
    aside: Aside | None = None
    folded: list[str] = field(default_factory=list)
    consumed: list[DeliveryId] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    noting: Noting = field(init=False)
    kinds: dict[DeliveryId, str] = field(default_factory=dict)
    used: int = 0
    ended: bool = False
    ended_turn: bool = False
    closed_step: bool = False

    def __post_init__(self) -> None:
        self.fresh = self.ground.position.fresh
        self.noting = Noting(self.ground.notes)

    @property
    def progress(self) -> bool:
        """Whether something happened that an attempt was made for."""
        return not all(isinstance(fact, ONLY_LOOKED_AT) for fact in self.facts)

    def __bool__(self) -> bool:
        return bool(self.facts or self.lines)

    def writes(
        self,
        commit_id: str,
        mode: Mode,
        *,
        state: Sequence[tuple[str, bytes]] = (),
        fsync: bool = False,
        reads: int = READS,
    ) -> Writes:
        """What goes to the journal, on top of where it stands now."""
        ground = self.ground
        position = ground.position
        after = Position(
            position.seq + len(self.facts),
            position.events + len(self.lines),
            position.gen if self.new_gen is None else self.new_gen,
            self.rows_before + len(self.rows),
            self.fresh,
        )
        snapshot = replace(self.snapshot, at=after)
        marks = snapshot.marks
        return Writes(
            id=commit_id,
            position=position,
            snapshot=snapshot,
            facts=tuple(codec.pack_fact(fact) for fact in self.facts),
            events=tuple(self.lines),
            rows=tuple(self.rows),
            last_row=self.last_row,
            new_gen=self.new_gen,
            requests=tuple((name, pack_note(note)) for name, note in self.noting.changed.items()),
            links=tuple(self.noting.links.items()),
            blobs=tuple(self.blobs),
            hold="input" if isinstance(next_effect(snapshot, ground.scene.at), Hold) else "",
            out=ground.posts(self.lines),
            records=(
                *((call, events.pack_outcome(outcome)) for call, outcome in self.records.items()),
                *self.kept.items(),
            ),
            folded=tuple(self.folded),
            consumed=tuple(self.consumed),
            used=self.used,
            state=tuple(state),
            work=has_work(snapshot, ground.scene.at),
            next_timer=next_timer(snapshot),
            attempt_key=attempt_key(snapshot),
            progress=self.progress,
            conditional=(self.ended_turn or bool(self.noting.links)) and not snapshot.ending,
            mode=mode,
            what=key_of_next(snapshot),
            fsync=fsync,
            reads=reads,
            fact_base=max(ground.fact_base, marks[0] if len(marks) == KEPT_TURNS else 0),
            tidy=self.closed_step or self.ended_turn,
        )

    @property
    def rows_before(self) -> int:
        """How many rows the generation has that this commit adds to."""
        return self.ground.position.rows if self.new_gen is None else 0

    # How it is made ---------------------------------------------------------------------------------------------------

    def say(self, event: Event, deliveries: tuple[DeliveryId, ...]) -> None:
        """Add an event."""
        at = self.ground.scene.at
        self.lines.append(events.line(event, f"evt_{ids.ulid(at)}", iso(at), deliveries, self.ground.attempt))

    def add(self, given: Given) -> None:
        """Add a fact and all it brings with it."""
        fact, bodies, before = given.fact, given.bodies, self.snapshot
        if isinstance(fact, InputRequested):
            # Only what comes in behind this commit can answer it.
            behind = self.ground.position.seq + len(self.facts) + 1
            fact = replace(fact, requests=tuple(replace(request, seq=behind) for request in fact.requests))
        if isinstance(fact, TurnStarted | MessagesJoined):
            fact = self._with_asides(fact, before.turn, fact.deliveries)
        elif isinstance(fact, AnswersTaken) and fact.words:
            fact = self._with_asides(fact, before.turn, (fact.delivery,))
        after = advance(before, fact)
        match fact:
            case TurnStarted() | MessagesJoined():
                bodies = self._take_in(fact, before.turn.step if before.turn else 0)
            case InputRequested():
                self.noting.begin(given.asked)
            case AnswersTaken():
                bodies = self._take_answers(fact)
            case CandidateJudged(reason=""):
                self.noting.choose(fact)
            case RequestsWithdrawn():
                self.noting.withdraw(fact)
            case InputResolved():
                assert before.turn is not None
                bodies = Bodies(texts=self.noting.resolve(holds.untold(before.turn), fact))
            case DeliveryDropped():
                self.consumed.append(fact.delivery)
                self.used += fact.reason == SESSION_ENDED
            case CancelAccepted() | ControlKept():
                self.consumed.append(fact.delivery)
            case ContextCleared():
                self._begin_generation(fact.delivery)
            case CompactionDue() | SessionEnding():
                self.consumed += [fact.delivery] if fact.delivery else []
            case Compacted():
                self._begin_generation(None)
                self._fill(*given.generation)
            case TailLost():
                if fact.delivery:
                    self.consumed.append(fact.delivery)
                for _ in range(min(fact.end - self.ground.position.events - len(self.lines), MOST_FILLERS)):
                    self.say(events.lost_place(), ())
            case ModelAnswered():
                # What the provider has counted is known; its answer is part of that.
                counted = counted_context(fact.usage)
                if given.answer:
                    self._row(given.answer, step_key(fact.turn, fact.step))
                self.fresh = 0 if counted else self.fresh
            case ToolReturned():
                if fact.call not in bodies.outcomes:
                    assert before.turn is not None
                    request = next(one for one in reversed(before.turn.requests) if one.call == fact.call)
                    bodies = Bodies(outcomes={fact.call: self.noting.refusal(request)})
                self.records[fact.call] = bodies.outcomes[fact.call]
                self.ground.outcomes[fact.call] = bodies.outcomes[fact.call]
            case StepSettled() if before.turn is not None and after.turn is not None and not after.turn.calls:
                if before.turn.calls:
                    self._results(before.turn.calls, step_key(fact.turn, fact.step))
            case CallsSettled():
                assert before.turn is not None
                self._results(before.turn.calls, step_key(fact.turn, fact.step))
            case ResultDelivered():
                self.kept[result_key(fact.turn)] = events.pack_result(bodies.result)
            case ResultRefused() if given.answer:
                self._row(given.answer, step_key(fact.turn, fact.step))
            case TurnSettled():
                assert before.turn is not None
                if fact.cut:
                    self._results(before.turn.calls, step_key(fact.turn, before.turn.step))
                bodies = self._fold_turn(before.turn, bodies)
            case _:
                pass
        self.facts.append(fact)
        self.snapshot = after
        self.closed_step = self.closed_step or isinstance(fact, StepSettled | StepCut)
        self.ended_turn = self.ended_turn or isinstance(fact, TurnSettled)
        self.ended = self.ended or isinstance(fact, SessionEnded)
        turn = after.turn or before.turn
        # What is said between two turns belongs to no message, and a message that nobody answers is not waited for.
        deliveries = turn.deliveries if turn and not isinstance(fact, DeliveryDropped) else ()
        for event in events.publish(self.ground.session, before, fact, after, bodies):
            self.say(event, deliveries)

    def _row(self, message: bytes, step: str) -> None:
        ground = self.ground
        self.last_row = f"{ground.position.seq + len(self.facts)}.{len(self.rows)}.{ground.token[-6:]}"
        self.rows.append(row(self.last_row, step, message))
        self.fresh += len(message)

    def _take_in(self, fact: TurnStarted | MessagesJoined, step: int) -> Bodies:
        """What people said becomes a row. Returns it, for the stream."""
        loaded = self.ground.load(fact.deliveries)
        said = {name: body.parts for name, body in loaded.items()}
        late = [name for name in fact.deliveries if name in self.noting.late]
        said |= {name: self.noting.late_words(name, said.get(name, ())) for name in late}
        bodies = Bodies(messages={name: said.get(name, NOTHING_SAID) for name in fact.deliveries})
        messages = [_as_message(bodies.messages[name]) for name in fact.deliveries]
        self.blobs += [file.blob for message in messages for file in message.files.values()]
        if not self.rows_before and not self.rows and (pinned := self.ground.pinned()):
            messages.insert(0, Message((pinned,), pinned=True))
        self._row(self.ground.layer.message_row(messages), step_key(fact.turn, step))
        self.consumed.extend(fact.deliveries)
        self.used += sum(self.kinds.get(name) != "answers" for name in fact.deliveries)
        return bodies

    def _take_answers(self, fact: AnswersTaken) -> Bodies:
        """What was answered is noted. Returns the words, for the stream."""
        self.consumed.append(fact.delivery)
        self.used += fact.words
        body = self.ground.load([fact.delivery]).get(fact.delivery)
        self.noting.take(fact, body)
        return Bodies(messages={fact.delivery: body.parts if body else NOTHING_SAID})

    # What belongs to a turn and not to the history ----------------------------------------------------------------------

    def _with_asides(self, fact: Joins, turn: Turn | None, names: Sequence[DeliveryId]) -> Joins:
        """The fact as what came beside the messages makes it; that is kept for the turn."""
        aside = NO_ASIDE
        if turn is not None and turn.aside:
            aside = self.aside or self.ground.aside()
        if turn is not None and turn.delivered:
            self._fold(result_key(turn.id))
        found = self.ground.load(names)
        bodies = [found[name] for name in names if name in found]
        if not any(body.context or body.output for body in bodies):
            return fact
        for body in bodies:
            aside = aside.also(body)
        self.aside, self.kept[fact.turn] = aside, codec.pack(aside)
        return replace(fact, aside=True, output=bool(aside.output))

    def _fold_turn(self, turn: Turn, bodies: Bodies) -> Bodies:
        """The turn is over: what was kept for it goes. Returns its result, for the stream."""
        if turn.aside:
            self._fold(turn.id)
        if not turn.delivered:
            return bodies
        kept = self.kept.get(result_key(turn.id))
        result = events.unpack_result(kept) if kept is not None else self.ground.result()
        self._fold(result_key(turn.id))
        return replace(bodies, result=result)

    def _fold(self, name: str) -> None:
        self.kept.pop(name, None)
        self.folded.append(name)

    def _begin_generation(self, delivery: DeliveryId | None) -> None:
        """What was to be added to the old generation goes with it."""
        self.consumed += [delivery] if delivery else []
        self.new_gen = self.ground.position.gen + 1
        self.rows, self.last_row, self.fresh = [], "", 0

    def _fill(self, messages: Sequence[bytes], kept: Sequence[bytes]) -> None:
        # All of them under new ids, those that stay too: by the id of the last row two timelines are told apart.
        layer = self.ground.layer
        for message in (*messages, *map(message_of, kept)):
            self._row(message, "compaction")
            if FILE_MARK in message:
                self.blobs += [file.blob for file in layer.files([layer.read(message)])]

    def _results(self, calls: Iterable[Call], step: str) -> None:
        results = []
        for call in calls:
            outcome = self.ground.outcomes.get(call.id, CANCELLED)
            results.append(Result(call.provider_id, call.tool, outcome))
            if call.id in self.records:
                del self.records[call.id]
            elif outcome is not CANCELLED:
                self.folded.append(call.id)
        self._row(self.ground.layer.results_row(results), step)


def _as_message(parts: Sequence[Part]) -> Message:
    files = {place: part.file for place, part in enumerate(parts) if part.file is not None}
    return Message(tuple(part.text for part in parts), files=files)


def draft(ground: Ground, given: Sequence[Given], heads: Sequence[Head], loose: Loose | None) -> Draft:
    """What has happened, what the heads mean now, and what follows."""
    made = Draft(ground, ground.snapshot, frozenset(head.id for head in heads if head.envelope.kind == "message"))
    turn = ground.snapshot.turn
    end = next((head for head in heads if head.envelope.kind == "reset"), None)
    # A session that ends begins nothing more, not even what came in before, and takes with it what nobody understands.
    ends = end is not None or bool(ground.snapshot.ending)
    waiting = sorted((head for head in heads if ends or understands(head)), key=lambda head: head.n)
    made.kinds = {head.id: head.envelope.kind for head in waiting}
    made.noting.look_for_late(turn, waiting, ground.load)
    # First of all: nothing else may take the places of events that the store has lost and somebody has seen.
    for one in given:
        if isinstance(one.fact, TailLost):
            made.add(one)
    reports = [head for head in waiting if head.envelope.kind == "tail_seen"]
    furthest = max(reports, key=lambda head: int(head.envelope.guard), default=None)
    if furthest and isinstance(lost := judge(made.snapshot, furthest, _scene(made)), TailLost):
        made.add(Given(lost))
        waiting.remove(furthest)
    if loose is not None and turn is not None:
        made.say(events.superseded(turn, loose.begin, loose.end), turn.deliveries)
    failure = next((one for one in given if isinstance(one.fact, StepFailed)), None)
    for one in given:
        if not isinstance(one.fact, TailLost | StepFailed):
            made.add(one)
    if end is not None and not made.snapshot.ending:
        made.add(Given(judge(made.snapshot, end, _scene(made))))
        waiting.remove(end)
    while waiting:
        if ground.snapshot.busy and not made.snapshot.busy and not made.snapshot.ending:
            # The history has just been made shorter. What waits since before is not among the heads, and comes first.
            break
        head = waiting.pop(0)
        if made.snapshot.busy and not made.snapshot.ending and head.n <= made.snapshot.judged:
            continue
        fact = judge(made.snapshot, head, _scene(made), waiting)
        made.add(Given(fact))
        if isinstance(fact, TurnStarted):
            del waiting[: len(fact.deliveries) - 1]
    # What else has happened comes before the failure; one is enough; and a turn that was told to stop does not fail.
    open_turn = made.snapshot.turn
    if failure is not None and open_turn is not None and not open_turn.cancelling and not made.snapshot.ending:
        made.add(failure)
    told = failure.bodies if failure is not None else NO_BODIES
    while not made.ended and (fact_or_none := follow(made.snapshot, _scene(made))) is not None:
        if isinstance(fact_or_none, StepFailed):
            unfit = fact_or_none.code == NOT_FULFILLED
            told = Bodies(failure=UNFIT if unfit else budget.told(made.snapshot, ground.budgets))
        made.add(Given(fact_or_none, told))
    return made


def _scene(made: Draft) -> Scene:
    ground = made.ground
    return replace(
        ground.scene,
        seq=ground.position.seq + len(made.facts),
        events=ground.position.events + len(made.lines),
        tokens=made.snapshot.context + made.fresh // BYTES_PER_TOKEN,
        over_budget=budget.exceeded(made.snapshot, ground.budgets),
        waits=not made.messages.issubset(made.consumed),
        late=frozenset(made.noting.late),
        # A report of a loss is taken out of turn and never judged; a session that ends has judged all that has come in.
        expired=ground.scene.expired and not any(isinstance(fact, TailLost) for fact in made.facts),
    )


def started_step(made: Draft) -> bool:
    """Whether the draft opens a step after it has closed one: the place where a task hands over to the next."""
    return any(isinstance(fact, StepStarted) for fact in made.facts) and made.closed_step
