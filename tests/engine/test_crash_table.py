"""A turn of three steps, broken at every single script call, in every way a call can break: nobody can tell afterwards."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from orchestrator.agent import App
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import OnInterrupt
from orchestrator.models.scripted import Conversation, Reply, answers, asks, calls
from orchestrator.state import state
from orchestrator.tool import ToolContext, tool
from tests.worlds import Fault, How, World, answered, results, said

basket = state("shop.basket", default=lambda: list[str]())
grams = state("shop.grams", default=int)
cents = state("shop.cents", default=int)


def shop(world: World, *, charge_is: OnInterrupt = "rerun") -> App:
    """Two calls at once (one sync, one async), then a third; all of them change the session's state."""

    @tool
    def reserve(ctx: ToolContext, item: str) -> str:
        """Reserve an item."""
        basket.update(ctx, lambda items: [*items, item])
        cents.update(ctx, lambda sum: sum + 500)
        return f"{item} is yours"

    @tool
    async def weigh(ctx: ToolContext, item: str) -> int:
        """Weigh an item. Its result always comes after the other one's, so that each has a commit of its own."""
        while not (_first_is_settled(world, ctx) or world.rewinds):
            await asyncio.sleep(0.002)
        grams.update(ctx, lambda sum: sum + 300)
        cents.update(ctx, lambda sum: sum + 20)
        return 300

    @tool(on_interrupt=charge_is)
    def charge(ctx: ToolContext, card: str) -> dict[str, object]:
        """Charge a card."""
        cents.update(ctx, lambda sum: sum - 520)
        return {"card": card, "key": ctx.idempotency_key.partition("/")[2]}

    def script(talk: Conversation) -> Reply:
        if talk.turn != "turn_0":
            return answers(f"You said {talk.message}.")
        return [
            calls(asks("reserve", item="a book"), asks("weigh", item="a book"), text="Let me see."),
            asks("charge", card="4242"),
            answers("It is on its way.", reasoning="All is done."),
        ][talk.step]

    return world.app(script, [reserve, weigh, charge])


def _first_is_settled(world: World, ctx: ToolContext) -> bool:
    turn = world.snapshot(ctx.session.id).turn
    return turn is not None and bool(turn.calls) and turn.calls[0].state == "settled"


def buy(world: World) -> SessionId:
    """The whole story: a turn with tools, then one without."""
    session = world.create("A book, please.")
    world.run(session)
    world.say(session, "Thanks")
    world.run(session)
    return session


CHARGED = {"card": "4242", "key": "turn_0/call_0_1_0"}
UNKNOWN = "The call was interrupted. It may have run, wholly or partly."
STATE = {"shop.basket": ["a book"], "shop.grams": 300, "shop.cents": 0}
KEYS = {"turn_0/0", "turn_0/call_0_0_0", "turn_0/call_0_0_1", "turn_0/1", "turn_0/call_0_1_0", "turn_0/2", "turn_1/0"}


def story(charged: object = CHARGED) -> list[tuple[Any, ...]]:
    """The history of it."""
    item = {"item": "a book"}
    return [
        said("A book, please."),
        answered("Let me see.", ("reserve", item), ("weigh", item)),
        results(("reserve", "a book is yours"), ("weigh", 300)),
        answered("", ("charge", {"card": "4242"})),
        results(("charge", charged)),
        answered("It is on its way."),
        said("Thanks"),
        answered("You said Thanks."),
    ]


STREAM = [
    *("session.started", "turn.started", "message.received"),
    *("step.started", "message.completed", "actions.requested", "action.result", "action.result", "step.completed"),
    *("step.started", "actions.requested", "action.result", "step.completed"),
    *(
        "step.started",
        "reasoning.completed",
        "message.completed",
        "step.completed",
        "turn.completed",
        "session.waiting",
    ),
    *("turn.started", "message.received", "step.started", "message.completed", "step.completed"),
    *("turn.completed", "session.waiting"),
]
ROAD = (
    *("create", "own", "commit: turn", "append", "commit: answer", "commit: reserve", "commit: weigh"),
    *("own", "commit: answer", "commit: charge", "own", "append", "commit: answer"),
    *("deliver", "own", "commit: turn", "append", "commit: answer"),
)
"""Every script call of the story when nothing breaks, with a step for each task."""
CAREFUL_ROAD = (*ROAD[:9], "commit: start", *ROAD[9:])
HASTY_ROAD = tuple(verb for place, verb in enumerate(ROAD) if place not in (7, 10))
"""Where one task does all the steps."""
WAYS: tuple[tuple[How, int | None], ...] = (
    ("crash before", None),
    ("crash after", None),
    ("reply lost", None),
    ("executed late", 1),
    ("executed late", 3),
    ("executed late", None),
    ("crash, executed late", 1),
    ("crash, executed late", 3),
)


def breaks(road: tuple[str, ...], places: range | None = None) -> list[Any]:
    """Every call of a road (or of a part of it), broken in every way."""
    found = []
    for at, verb in enumerate(road):
        if places is not None and at not in places:
            continue
        for how, late_by in WAYS:
            late = f" by {late_by}" if late_by else " at the end" if how == "executed late" else ""
            found.append(pytest.param(Fault(at, how, late_by), id=f"{at} {verb}, {how}{late}"))
    return found


def assert_nobody_can_tell(world: World, session: SessionId) -> None:
    """All that is left of a story that was broken is what it would be had nothing broken."""
    assert world.history(session) == story()
    assert world.state(session) == STATE
    assert world.types(session) == STREAM
    assert {effect.key.partition("/")[2] for effect in world.effects} == KEYS
    world.check(session)


def assert_it_broke(world: World, fault: Fault) -> None:
    """Something died, or was said twice; a lost reply or call makes nothing happen twice."""
    assert len(world.traffic.verbs) > fault.at
    assert world.traffic.broken == 1
    if "crash" not in fault.how:
        starts = Counter(effect.key for effect in world.effects)
        assert set(starts.values()) == {1}, starts


@pytest.mark.parametrize(
    ("road", "steps_per_task", "charge_is"),
    [(ROAD, 1, "rerun"), (HASTY_ROAD, 50, "rerun"), (CAREFUL_ROAD, 1, "report")],
    ids=["a step a task", "all in one task", "with a careful tool"],
)
def test_the_table_knows_every_call(
    world: World, road: tuple[str, ...], steps_per_task: int, charge_is: OnInterrupt
) -> None:
    world.change(steps_per_task=steps_per_task)
    shop(world, charge_is=charge_is)
    session = buy(world)
    assert world.traffic.verbs == [verb.partition(":")[0] for verb in road]
    assert_nobody_can_tell(world, session)


@pytest.mark.parametrize("fault", breaks(ROAD))
def test_a_broken_call_changes_nothing(world: World, fault: Fault) -> None:
    shop(world)
    world.traffic.fault = fault
    session = buy(world)
    assert_it_broke(world, fault)
    assert_nobody_can_tell(world, session)


@pytest.mark.parametrize("fault", breaks(HASTY_ROAD))
def test_a_broken_call_changes_nothing_where_one_task_does_all(world: World, fault: Fault) -> None:
    world.change(steps_per_task=50)
    shop(world)
    world.traffic.fault = fault
    session = buy(world)
    assert_it_broke(world, fault)
    assert_nobody_can_tell(world, session)


@pytest.mark.parametrize("fault", breaks(CAREFUL_ROAD, range(7, 13)))
def test_a_careful_tool_starts_once_whatever_breaks(world: World, fault: Fault) -> None:
    """`on_interrupt="report"`: what died after the start was committed is told to the model, and never started again."""
    shop(world, charge_is="report")
    world.traffic.fault = fault
    session = buy(world)
    assert_it_broke(world, fault)
    assert len(world.starts("charge")) <= 1
    happened = world.history(session) == story()
    if not happened:
        assert "crash" in fault.how
        assert world.history(session) == story(UNKNOWN)
        assert world.state(session) == {**STATE, "shop.cents": 520}
    else:
        assert world.state(session) == STATE
    assert world.types(session) == STREAM
    world.check(session)
