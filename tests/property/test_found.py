"""What random stories have found, told without chance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from orchestrator.core.advance import Scene
from orchestrator.core.delivery import Envelope, Head
from orchestrator.core.event import Bodies
from orchestrator.core.fact import (
    CompactionLeft,
    SessionEnded,
    SessionEnding,
    StepFailed,
    StepStarted,
    TailLost,
    ToolReturned,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import CallId, DeliveryId, Millis, SessionId, TurnId
from orchestrator.core.snapshot import Call, Compacting, Position, Snapshot, Turn, Usage
from orchestrator.draft import Draft, Given, Ground, draft
from orchestrator.errors import AddressTaken
from orchestrator.journal import AdmissionKey, Behind, Done
from orchestrator.journal.scripts import Script, Value
from orchestrator.models import Layer
from orchestrator.models.scripted import Conversation, Reply, answers, asks
from orchestrator.perform import failed
from orchestrator.process.owned import DRAIN
from orchestrator.tool import ToolContext, tool
from tests.journal.world import CHANNEL, HERE, Hand, Spoken, photo, rewind
from tests.worlds import Crash, World

SESSION = SessionId("ses_01MCC5RM007D9H4291Q9B3F6E610")
CALL = CallId("call_0_0_0")


@pytest.fixture
def world(url: str) -> Iterator[World]:
    """A store, and workers that may die."""
    world = World(url)
    yield world
    world.close()


def after(given: list[Given], *heads: Head) -> Draft:
    """What comes of it in the middle of a step with one call."""
    call = Call(CALL, "provider", "charge", "digest")
    turn = Turn(
        TurnId("turn_0"),
        0,
        (DeliveryId("dlv_1"),),
        None,
        "helper",
        Millis(1),
        step_open=True,
        phase="tools",
        calls=(call,),
    )
    snapshot = Snapshot(next_turn=1, judged=1, started=True, turn=turn, at=Position(3, 4, 0, 2))
    return draft(ground_of(snapshot), given, heads, None)


def ground_of(snapshot: Snapshot) -> Ground:
    """A commit's ground."""
    return Ground(
        session=SESSION,
        snapshot=snapshot,
        position=snapshot.at,
        fact_base=0,
        attempt=1,
        token="token",
        scene=Scene(Millis(2), "helper", "m", 0, 0),
        layer=Layer(),
        pinned=lambda: "",
        load=lambda _: {},
        posts=lambda _: (),
        notes=lambda _: {},
        outcomes={},
    )


def types(made: Draft) -> list[str]:
    """The events of a commit."""
    return [line.split('"')[3] for line in made.lines]


RETURNED = Given(
    ToolReturned(TurnId("turn_0"), 0, CALL, "failed", Millis(2)), Bodies(outcomes={CALL: failed("TOOL_FATAL", "no")})
)
FAILED = Given(StepFailed(TurnId("turn_0"), 0, "TOOL_FATAL", Millis(2)), Bodies(failure="no"))
CANCEL = Head(DeliveryId("dlv_2"), 2, 3, Envelope("cancel"))


def test_a_failure_comes_last_and_once() -> None:
    made = after([FAILED, RETURNED, FAILED])
    assert types(made) == ["action.result", "step.failed", "turn.failed", "session.waiting"]


def test_a_turn_that_was_told_to_stop_does_not_fail() -> None:
    made = after([RETURNED, FAILED], CANCEL)
    assert types(made) == ["action.result", "turn.cancelled", "session.waiting"]
    assert [fact.outcome for fact in made.facts if isinstance(fact, TurnSettled)] == ["cancelled"]


def test_what_waits_while_the_history_is_made_shorter_is_not_overtaken() -> None:
    """What was judged before is not among the heads: nothing begins in the commit that ends it, the whole inbox is looked at first."""
    snapshot = Snapshot(
        next_turn=1, judged=5, waiting=1, started=True, compacting=Compacting(True), at=Position(9, 8, 0, 4)
    )
    later = Head(DeliveryId("dlv_6"), 6, 9, Envelope("message"))
    cancel = Head(DeliveryId("dlv_7"), 7, 9, Envelope("cancel"))
    left = Given(CompactionLeft("nothing_to_do", Usage(), Millis(2)))
    made = draft(ground_of(snapshot), [left], [later, cancel], None)
    assert made.facts == [left.fact]
    assert made.snapshot.judged == 5


def test_a_session_ends_in_time_though_more_was_counted_than_its_store_holds() -> None:
    """A message was judged and then lost with the store's tail: it is not waited for."""
    snapshot = Snapshot(next_turn=1, judged=5, waiting=1, started=True, at=Position(9, 8, 0, 4))
    ground = ground_of(snapshot)
    ground.scene = replace(ground.scene, all_in=True, expired=True)
    made = draft(ground, [], [], None)
    assert [type(fact) for fact in made.facts] == [SessionEnding, SessionEnded]
    made = draft(ground, [], [Head(DeliveryId("dlv_5"), 5, 9, Envelope("message"))], None)
    assert [type(fact) for fact in made.facts] == [TurnStarted, StepStarted]


def test_a_session_whose_time_is_over_first_says_what_its_store_has_lost() -> None:
    """The report is not judged, so an end beside it would be refused for ever."""
    snapshot = Snapshot(next_turn=1, judged=5, started=True, at=Position(9, 8, 0, 4))
    ground = ground_of(snapshot)
    ground.scene = replace(ground.scene, all_in=True, expired=True)
    report = Head(DeliveryId("dlv_6"), 6, 9, Envelope("tail_seen", guard="10"))
    made = draft(ground, [], [report], None)
    assert [type(fact) for fact in made.facts] == [TailLost]


def test_a_careful_tool_does_not_start_when_the_commit_of_its_start_brought_a_cancel(world: World) -> None:
    started: list[str] = []

    @tool(on_interrupt="report")
    def charge(ctx: ToolContext) -> str:
        """Charge."""
        started.append(ctx.call_id)
        return "charged"

    world.app([asks("charge"), answers("done")], [charge])
    session = world.create()
    commits = []

    def cancel(_place: int, verb: str) -> None:
        if verb == "commit":
            commits.append(verb)
            if len(commits) == 3:  # the turn, the answer, the start
                world.cancel(session)

    world.traffic.before = cancel
    world.run(session)
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    assert not started
    world.check(session)


def test_a_tool_that_was_left_behind_talks_to_nobody(world: World) -> None:
    hangs, said = threading.Event(), threading.Event()

    @tool(timeout=0.1)
    def slow(ctx: ToolContext) -> str:
        """Hang."""
        hangs.wait(10)
        ctx.progress("late")
        said.set()
        return "late"

    def script(talk: Conversation) -> Reply:
        if talk.step == 0:
            return asks("slow")
        hangs.set()
        assert said.wait(10)
        return answers("done")

    world.change(steps_per_task=50)
    world.app(script, [slow])
    session = world.create()
    world.run(session)
    assert "action.partial" not in [event["type"] for event in world.events(session)]
    world.check(session)


def test_a_commit_that_judges_what_the_store_has_lost_is_ahead_of_it(client: redis.Redis) -> None:
    """The store never gave the number: what the owner has judged is gone, and the number will be another's."""
    hand = Hand(client)
    owner = hand.owner(hand.asked())
    assert owner.commit(judged=2) == Behind(0, 0)
    assert isinstance(owner.commit(judged=1), Done)


def test_what_waits_is_never_less_than_nothing(client: redis.Redis) -> None:
    """The store has lost a message before it was counted, and its owner uses it all the same."""
    hand = Hand(client)
    owner = hand.owner(hand.create(), lost=True)
    assert isinstance(owner.commit(used=1), Done)
    assert hand.fields(owner.session)["waiting"] == "0"


def test_an_erasure_that_the_store_has_lost_is_begun_anew(client: redis.Redis) -> None:
    """What the session holds must not go while the session itself is as alive as it was."""
    hand = Hand(client)
    session = hand.asked()
    before = photo(client)
    hand.said.clear()
    assert hand.journal.erase(session)
    for command in [command for command in hand.said if "begin" not in command]:
        rewind(client, before)
        assert hand.again(command) == [b"again"]
        assert photo(client) == before
    assert hand.journal.erase(session)
    assert not hand.traces(session)


def test_a_door_that_a_session_had_and_could_not_take_again_is_emptied_with_it(client: redis.Redis) -> None:
    hand = Hand(client)
    session = hand.arrive().session
    hand.journal.drop_address(session, CHANNEL, HERE)
    hand.arrive()
    with pytest.raises(AddressTaken):
        hand.journal.take_address(session, CHANNEL, HERE)
    assert hand.journal.erase(session)
    assert not hand.traces(session)


def test_what_came_into_a_session_by_its_address_is_not_done_again_by_the_next_one(client: redis.Redis) -> None:
    hand, key = Hand(client), AdmissionKey("message-1")
    hand.arrive()
    first = hand.arrive(None, key)
    hand.reset(first.session)
    again = hand.arrive(None, key)
    assert (again.session, again.delivery, again.again) == (first.session, first.delivery, True)


class Dying(Spoken):
    """A caller that dies as soon as the server has what it said."""

    def call(self, verb: Script, command: tuple[Value, ...]) -> Any:
        super().call(verb, command)
        raise Crash


def test_what_is_stored_is_announced_though_its_caller_dies_at_once(client: redis.Redis) -> None:
    with pytest.raises(Crash):
        Hand(client, kind=Dying).asked()
    assert len(Hand(client).wakes()) == 1


def test_a_loss_is_reported_when_another_goes_on(world: World) -> None:
    """Its owner saw more than there is, but somebody else owns the session by the time it asks: that one says so."""
    world.app([answers("done")])
    session = world.create()
    first = world.engine()
    empty = world.freeze(session)
    commits: list[str] = []

    def lose(_place: int, verb: str) -> None:
        if verb == "commit":
            commits.append(verb)
            if len(commits) == 2:
                world.rewind(empty)
                token = world.worker.process.new_token()
                world.journal.own(session, token, world.journal.time(), deployment="default")

    world.traffic.before = lose
    assert first.carry_on(session).how == "leased"
    world.traffic.before = lambda _place, _verb: None
    assert [head.envelope.kind for head in world.reads.heads(session, 0)] == ["message", "tail_seen"]
    world.bury(session)
    world.run(session)
    assert "session.rewound" in [event["type"] for event in world.events(session)]
    world.check(session)


def test_a_loss_is_reported_by_a_worker_that_leaves(world: World) -> None:
    """It has not tried to write since, so nobody has told it."""

    @tool
    def dig() -> str:
        """Dig, while the store loses its tail and the worker is told to leave."""
        world.rewind(empty)
        first.process.owned()[0].mailbox.put(DRAIN)
        world.the_end.wait(10)
        return "late"

    world.app([asks("dig"), answers("done")], [dig])
    session = world.create()
    empty = world.freeze(session)
    first = world.engine()
    assert first.carry_on(session).how == "given_back"
    assert [head.envelope.kind for head in world.reads.heads(session, 0)] == ["message", "tail_seen"]
