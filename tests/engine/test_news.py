"""Cancels and messages that come in at every moment of a turn."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from orchestrator.core.names import SessionId
from orchestrator.models.scripted import answers, asks
from orchestrator.ports import ModelCall, ModelOutput, TextDelta
from orchestrator.tool import ToolContext, tool
from tests.engine.test_crash_table import ROAD, shop, story
from tests.servers import wait_for
from tests.worlds import Fault, How, World, answered, results, said

TURN = ROAD[:13]
"""The calls of the first turn, a step for each task."""
MOMENTS = range(1, len(TURN))


class Hanging:
    """A model that says a word and then nothing more."""

    name = "hanging"

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        yield TextDelta("Well")
        await asyncio.sleep(60)


def name(at: int) -> str:
    return f"{at} {TURN[at]}"


def at_moment(world: World, at: int, do: Callable[[SessionId], object]) -> None:
    """Do something to the session right before the `at`-th script call."""

    def before(place: int, verb: str) -> None:
        if place == at:
            do(world.sessions[0])

    world.traffic.before = before


def beside(world: World, session: SessionId) -> threading.Thread:
    """A worker carries the session on in a thread."""
    thread = threading.Thread(target=world.run, args=(session,))
    thread.start()
    return thread


@pytest.mark.parametrize("how", [None, "crash before", "crash after", "executed late"])
@pytest.mark.parametrize("at", MOMENTS, ids=name)
def test_a_cancel_at_any_moment_ends_the_turn_once(world: World, at: int, how: How | None) -> None:
    shop(world)
    outcomes: list[str] = []
    at_moment(world, at, lambda session: outcomes.append(world.cancel(session)))
    world.traffic.fault = Fault(at, how) if how else None
    session = world.create("A book, please.")
    world.run(session)
    assert outcomes == ["cancelling"]
    types = world.types(session)
    assert types[-2:] == ["turn.cancelled", "session.waiting"]
    assert "turn.completed" not in types
    world.check(session)
    world.say(session, "Thanks")
    world.run(session)
    assert world.history(session)[-2:] == story()[-2:]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


@pytest.mark.parametrize("at", [at for at in MOMENTS if at not in (5, 6, 9)], ids=name)
def test_nothing_is_started_once_a_cancel_was_heard(world: World, at: int) -> None:
    """At the moments when no tool runs already: the answer of the next write brings the cancel."""
    shop(world)
    begun: list[int] = []

    def cancel(session: SessionId) -> None:
        begun.append(len(world.effects))
        world.cancel(session)

    at_moment(world, at, cancel)
    session = world.create("A book, please.")
    world.run(session)
    assert [len(world.effects)] == begun
    world.check(session)


@pytest.mark.parametrize("at", MOMENTS, ids=name)
def test_two_cancels_at_any_moment_are_one(world: World, at: int) -> None:
    shop(world)
    outcomes: list[str] = []
    at_moment(world, at, lambda session: outcomes.extend([world.cancel(session), world.cancel(session)]))
    session = world.create("A book, please.")
    world.run(session)
    world.say(session, "Thanks")
    world.run(session)
    assert outcomes == ["cancelling", "cancelling"]
    assert world.types(session).count("turn.cancelled") == 1
    assert world.types(session).count("turn.completed") == 1
    world.check(session)


@pytest.mark.parametrize("at", MOMENTS, ids=name)
def test_a_cancel_of_another_turn_does_nothing(world: World, at: int) -> None:
    shop(world)
    outcomes: list[str] = []
    at_moment(world, at, lambda session: outcomes.append(world.cancel(session, turn="turn_7")))
    session = world.create("A book, please.")
    world.run(session)
    assert outcomes == ["other_turn"]
    assert world.history(session) == story()[:6]
    world.check(session)


def test_a_cancel_after_the_end_does_nothing(world: World) -> None:
    shop(world)
    session = world.create("A book, please.")
    world.run(session)
    before = world.events(session)
    assert world.cancel(session) == "nothing_runs"
    assert world.cancel(session, turn="turn_0") == "other_turn"
    world.say(session, "Thanks")
    world.run(session)
    assert world.events(session)[: len(before)] == before
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_a_cancel_of_what_only_waits_cancels_its_turn(world: World) -> None:
    shop(world)
    session = world.create("A book, please.")
    assert world.cancel(session) == "cancelling"
    world.run(session)
    assert world.types(session) == [
        *("session.started", "turn.started", "message.received", "turn.cancelled", "session.waiting")
    ]
    assert world.effects == []
    world.check(session)


def test_a_cancel_leaves_the_messages_behind_it_alone(world: World) -> None:
    shop(world)
    at_moment(
        world, 5, lambda session: (world.say(session, "Thanks"), world.cancel(session), world.say(session, "Bye"))
    )
    session = world.create("A book, please.")
    world.run(session)
    types = world.types(session)
    assert [kind for kind in types if kind in ("turn.cancelled", "turn.completed")] == [
        *("turn.cancelled", "turn.completed", "turn.completed")
    ]
    assert world.history(session)[-4:] == [
        *(said("Thanks"), answered("You said Thanks."), said("Bye"), answered("You said Bye."))
    ]
    world.check(session)


@pytest.mark.parametrize("how", [None, "crash before", "crash after", "executed late"])
@pytest.mark.parametrize("at", MOMENTS, ids=name)
def test_a_queued_message_at_any_moment_has_a_turn_of_its_own(world: World, at: int, how: How | None) -> None:
    shop(world)
    at_moment(world, at, lambda session: world.say(session, "Thanks", policy="queue"))
    world.traffic.fault = Fault(at, how) if how else None
    session = world.create("A book, please.")
    world.run(session)
    assert world.history(session) == story()
    world.check(session)


@pytest.mark.parametrize("steps_per_task", [1, 50])
def test_queued_messages_at_all_moments_have_their_turns_in_order(world: World, steps_per_task: int) -> None:
    world.change(steps_per_task=steps_per_task)
    shop(world)

    def before(place: int, verb: str) -> None:
        if 0 < place < 20:
            world.say(world.sessions[0], str(place), policy="queue")

    world.traffic.before = before
    session = world.create("A book, please.")
    world.run(session)
    texts = [str(place) for place in range(1, 20)]
    rest = world.history(session)[6:]
    assert rest == [row for text in texts for row in (said(text), answered(f"You said {text}."))]
    world.check(session)


def test_a_cancel_cuts_a_model_that_says_nothing(world: World) -> None:
    world.app(Hanging())
    session = world.create()
    thread = beside(world, session)
    wait_for(lambda: len(world.events(session)) == 4)
    assert world.cancel(session) == "cancelling"
    thread.join(2.0)
    assert not thread.is_alive()
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    assert world.history(session) == [said("hello")]
    world.check(session)


def test_a_cancel_stops_an_async_tool_and_tells_a_sync_one(world: World) -> None:
    ended: list[str] = []

    @tool
    async def dream(ctx: ToolContext) -> None:
        """Sleep."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("dream")

    @tool
    def count(ctx: ToolContext) -> None:
        """Count."""
        if ctx.cancelled.wait(60):
            ended.append("count")

    world.app([asks("dream") & asks("count"), answers("done")], [dream, count])
    session = world.create()
    thread = beside(world, session)
    wait_for(lambda: len(world.effects) == 3)
    world.cancel(session)
    thread.join(2.0)
    assert not thread.is_alive()
    wait_for(lambda: sorted(ended) == ["count", "dream"])
    told = "The turn was cancelled before this call had a result. It may have partly run."
    assert world.history(session)[-1] == results(("dream", told), ("count", told))
    assert "action.result" not in world.types(session)
    world.check(session)
