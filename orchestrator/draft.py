"""A commit in the making: what has happened since the last one, what follows from it, and all that has to be written with it.

It is made anew from the snapshot whenever it is needed: a commit that is refused because news came in is made again with the news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import orchestrator.ids as ids
from orchestrator.clock import iso
from orchestrator.core import codec
from orchestrator.core import event as events
from orchestrator.core.advance import Scene, advance, attempt_key, follow, has_work, judge, next_timer, understands
from orchestrator.core.delivery import Body, Head
from orchestrator.core.event import NO_BODIES, Bodies, Event, Outcome
from orchestrator.core.fact import (
    CancelAccepted,
    DeliveryDropped,
    DeliveryWaits,
    Fact,
    ModelAnswered,
    StepFailed,
    StepSettled,
    StepStarted,
    TailLost,
    ToolReturned,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import CallId, DeliveryId, SessionId, step_key, turn_id
from orchestrator.core.snapshot import KEPT_TURNS, READS, Call, Position, Snapshot
from orchestrator.journal import Mode, Writes
from orchestrator.ports import Message, ModelLayer, Result
from orchestrator.process.history import row

MOST_FILLERS = 4096
CANCELLED = Outcome("cancelled", "The turn was cancelled before this call had a result. It may have partly run.")


@dataclass(frozen=True, slots=True)
class Given:
    """A fact that the world brought, and the bodies it speaks of."""

    fact: Fact
    bodies: Bodies = NO_BODIES
    answer: bytes = b""


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
    outcomes: dict[CallId, Outcome]


@dataclass(slots=True)
class Draft:
    """Everything one commit will write, and whether a turn ends or a step is closed with it."""

    ground: Ground
    snapshot: Snapshot
    facts: list[Fact] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    last_row: str = ""
    records: dict[CallId, Outcome] = field(default_factory=dict)
    folded: list[CallId] = field(default_factory=list)
    consumed: list[DeliveryId] = field(default_factory=list)
    used: int = 0
    ended_turn: bool = False
    closed_step: bool = False

    @property
    def progress(self) -> bool:
        """Whether something happened that an attempt was made for."""
        return any(
            not isinstance(fact, DeliveryWaits | DeliveryDropped | CancelAccepted | TailLost) for fact in self.facts
        )

    @property
    def key_of_next(self) -> str:
        """The key of the step that comes after this commit: what its wake is for."""
        turn = self.snapshot.turn
        return step_key(turn.id, turn.step) if turn else step_key(turn_id(self.snapshot.next_turn), 0)

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
            position.gen,
            position.rows + len(self.rows),
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
            records=tuple((call, events.pack_outcome(outcome)) for call, outcome in self.records.items()),
            folded=tuple(self.folded),
            consumed=tuple(self.consumed),
            used=self.used,
            state=tuple(state),
            work=has_work(snapshot, ground.scene.at),
            next_timer=next_timer(snapshot),
            attempt_key=attempt_key(snapshot),
            progress=self.progress,
            conditional=self.ended_turn,
            mode=mode,
            what=self.key_of_next,
            fsync=fsync,
            reads=reads,
            fact_base=max(ground.fact_base, marks[0] if len(marks) == KEPT_TURNS else 0),
            tidy=self.closed_step or self.ended_turn,
        )

    # How it is made ---------------------------------------------------------------------------------------------------

    def say(self, event: Event, deliveries: tuple[DeliveryId, ...]) -> None:
        """Add an event."""
        at = self.ground.scene.at
        self.lines.append(events.line(event, f"evt_{ids.ulid(at)}", iso(at), deliveries, self.ground.attempt))

    def add(self, fact: Fact, bodies: Bodies = NO_BODIES, answer: bytes = b"") -> None:
        """Add a fact and all it brings with it."""
        before = self.snapshot
        after = advance(before, fact)
        match fact:
            case TurnStarted():
                loaded = self.ground.load(fact.deliveries)
                texts = {name: tuple(part.text for part in body.parts) for name, body in loaded.items()}
                bodies = replace(bodies, messages={name: texts.get(name, ("",)) for name in fact.deliveries})
                self._say_what_people_said(fact, bodies)
                self.consumed.extend(fact.deliveries)
                self.used += len(fact.deliveries)
            case DeliveryDropped() | CancelAccepted():
                self.consumed.append(fact.delivery)
            case TailLost():
                if fact.delivery:
                    self.consumed.append(fact.delivery)
                for _ in range(min(fact.end - self.ground.position.events - len(self.lines), MOST_FILLERS)):
                    self.say(events.lost_place(), ())
            case ModelAnswered():
                self._row(answer, step_key(fact.turn, fact.step))
            case ToolReturned():
                self.records[fact.call] = bodies.outcomes[fact.call]
                self.ground.outcomes[fact.call] = bodies.outcomes[fact.call]
            case StepSettled() if before.turn is not None and before.turn.calls:
                self._results(before.turn.calls, step_key(fact.turn, fact.step))
            case TurnSettled(cut=True):
                assert before.turn is not None
                self._results(before.turn.calls, step_key(fact.turn, before.turn.step))
            case _:
                pass
        self.facts.append(fact)
        self.snapshot = after
        self.closed_step = self.closed_step or isinstance(fact, StepSettled)
        self.ended_turn = self.ended_turn or isinstance(fact, TurnSettled)
        turn = before.turn or after.turn
        deliveries = (after.turn or turn).deliveries if turn else self.snapshot.last_turn
        for event in events.publish(self.ground.session, before, fact, after, bodies):
            self.say(event, deliveries)

    def _row(self, message: bytes, step: str) -> None:
        ground = self.ground
        self.last_row = f"{ground.position.seq + len(self.facts)}.{len(self.rows)}.{ground.token[-6:]}"
        self.rows.append(row(self.last_row, step, message))

    def _say_what_people_said(self, fact: TurnStarted, bodies: Bodies) -> None:
        messages = [Message(bodies.messages[name]) for name in fact.deliveries]
        if not self.ground.position.rows and not self.rows and (pinned := self.ground.pinned()):
            messages.insert(0, Message((pinned,), pinned=True))
        self._row(self.ground.layer.message_row(messages), step_key(fact.turn, 0))

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


def draft(ground: Ground, given: Sequence[Given], heads: Sequence[Head], loose: Loose | None) -> Draft:
    """What has happened, what the heads mean now, and what follows, up to the end of a turn."""
    made = Draft(ground, ground.snapshot)
    turn = ground.snapshot.turn
    waiting = sorted((head for head in heads if understands(head)), key=lambda head: head.n)
    # First of all: nothing else may take the places of events that the store has lost and somebody has seen.
    for one in given:
        if isinstance(one.fact, TailLost):
            made.add(one.fact)
    reports = [head for head in waiting if head.envelope.kind == "tail_seen"]
    furthest = max(reports, key=lambda head: int(head.envelope.guard), default=None)
    if furthest and isinstance(lost := judge(made.snapshot, furthest, _scene(made)), TailLost):
        made.add(lost)
        waiting.remove(furthest)
    if loose is not None and turn is not None:
        made.say(events.superseded(turn, loose.begin, loose.end), turn.deliveries)
    failure = next((one for one in given if isinstance(one.fact, StepFailed)), None)
    for one in given:
        if not isinstance(one.fact, TailLost | StepFailed):
            made.add(one.fact, one.bodies, one.answer)
    while waiting:
        head = waiting.pop(0)
        if made.snapshot.turn is not None and head.n <= made.snapshot.judged:
            continue
        made.add(judge(made.snapshot, head, _scene(made)))
    # What else has happened comes before the failure; one is enough; and a turn that was told to stop does not fail.
    if failure is not None and made.snapshot.turn is not None and not made.snapshot.turn.cancelling:
        made.add(failure.fact, failure.bodies)
    told = failure.bodies if failure is not None else NO_BODIES
    while not made.ended_turn and (fact := follow(made.snapshot, ground.scene)) is not None:
        made.add(fact, told)
    return made


def _scene(made: Draft) -> Scene:
    ground = made.ground
    return replace(
        ground.scene, seq=ground.position.seq + len(made.facts), events=ground.position.events + len(made.lines)
    )


def started_step(made: Draft) -> bool:
    """Whether the draft opens a step after it has closed one: the place where a task hands over to the next."""
    return any(isinstance(fact, StepStarted) for fact in made.facts) and made.closed_step
