"""Tool calls that go wrong: the model is told, the turn goes on."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from orchestrator.core.names import SessionId
from orchestrator.models.scripted import Conversation, Reply, answers, asks, calls
from orchestrator.state import state
from orchestrator.tool import Fatal, Retry, Tool, ToolContext, tool
from tests.servers import wait_for
from tests.worlds import Crash, Fault, World, answered, results

notes = state("notes", default=lambda: list[str]())


@tool
def raises(ctx: ToolContext) -> None:
    """Raise."""
    raise ValueError("no such order")


@tool
async def raises_later(ctx: ToolContext) -> None:
    """Raise, async."""
    raise KeyError


@tool
def asks_again(ctx: ToolContext) -> None:
    """Ask the model to correct itself."""
    raise Retry("say it in EUR")


@tool
def exits(ctx: ToolContext) -> None:
    """Leave, or try to."""
    raise SystemExit(3)


@tool
def gives_an_object(ctx: ToolContext) -> object:
    """Give what is no JSON."""
    return object()


@tool
async def gives_too_much(ctx: ToolContext) -> str:
    """Give too much."""
    return "x" * (1024 * 1024 + 1)


@tool(timeout=0.05)
async def sleeps(ctx: ToolContext) -> None:
    """Sleep."""
    await asyncio.sleep(60)


@tool
def state_too_large(ctx: ToolContext) -> str:
    """Remember too much."""
    notes.set(ctx, ["x" * 70_000])
    return "never"


@tool
def gives_half_a_character(ctx: ToolContext) -> str:
    """Give half of a character, which UTF-8 cannot hold."""
    return "\ud83d"


@tool
def gives_half_a_character_inside(ctx: ToolContext) -> list[str]:
    """Give half of a character in a list."""
    return ["\ud83d"]


@tool
def gives_a_huge_number(ctx: ToolContext) -> int:
    """Give a number of more than 64 bits."""
    return 2**70


@tool
def gives_a_huge_number_inside(ctx: ToolContext) -> list[int]:
    """Give such a number in a list."""
    return [2**70]


@tool
def gives_what_is_nested_too_deep(ctx: ToolContext) -> object:
    """Give lists in lists."""
    value: list[object] = []
    for _ in range(100):
        value = [value]
    return value


@tool
def raises_half_a_character(ctx: ToolContext) -> None:
    """Raise what UTF-8 cannot hold."""
    raise ValueError("\ud83d")


@tool
def raises_too_much(ctx: ToolContext) -> None:
    """Raise a very long text."""
    raise ValueError("x" * 20_000_000)


@tool
def shows_half_a_character(ctx: ToolContext) -> str:
    """Show progress that UTF-8 cannot hold."""
    ctx.progress("\ud83d")
    ctx.progress(2**70)
    return "fine"


class Mute(Exception):
    """Breaks again when it is asked what it is."""

    def __str__(self) -> str:
        raise RuntimeError


@tool(timeout=2.0)
def raises_what_has_no_text(ctx: ToolContext) -> None:
    """Raise what cannot be shown."""
    raise Mute


NASTY = [
    raises_what_has_no_text,
    *(gives_half_a_character, gives_half_a_character_inside, gives_a_huge_number, gives_a_huge_number_inside),
    *(gives_what_is_nested_too_deep, raises_half_a_character, raises_too_much, shows_half_a_character),
]


@pytest.mark.parametrize("nasty", NASTY, ids=[one.name for one in NASTY])
def test_nothing_that_a_tool_gives_can_stop_the_session(world: World, nasty: Tool) -> None:
    session = run(world, [nasty], nasty.name)
    world.check(session)
    assert world.history(session)[-1] == answered("done")
    assert len(world.starts(nasty.name)) == 1
    # Another worker can read what was stored.
    world.kill(world.worker)
    world.app([answers("again")], [nasty])
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("again")
    world.check(session)


GONE_WRONG: list[tuple[Tool, str, str, str]] = [
    (raises, "ACTION_RESULT_FAILED", "ValueError: no such order", "ValueError"),
    (raises_later, "ACTION_RESULT_FAILED", "KeyError", "KeyError"),
    (asks_again, "TOOL_RETRY", "say it in EUR", "Retry"),
    (exits, "ACTION_RESULT_FAILED", "SystemExit: 3", "SystemExit"),
    (gives_an_object, "RESULT_NOT_STORABLE", "cannot be stored as JSON", ""),
    (gives_too_much, "RESULT_NOT_STORABLE", "the limit is 1048576", ""),
    (sleeps, "TOOL_TIMEOUT", "It may have partly run.", ""),
    (state_too_large, "ACTION_RESULT_FAILED", "limit 65536", "NotStorable"),
]


def run(world: World, tools: list[Tool], *names: str) -> SessionId:
    """A turn in which the model asks for these tools at once, then answers."""
    asked = asks(names[0])
    for name in names[1:]:
        asked = asked & asks(name)
    world.app([asked, answers("done")], tools)
    session = world.create()
    world.run(session)
    return session


def shown_result(world: World, session: SessionId) -> dict[str, Any]:
    """The one `action.result`."""
    (data,) = [data for kind, data in world.shown(session) if kind == "action.result"]
    return dict(data)


@pytest.mark.parametrize(("broken", "code", "text", "name"), GONE_WRONG, ids=[case[0].name for case in GONE_WRONG])
def test_the_model_is_told_what_went_wrong(world: World, broken: Tool, code: str, text: str, name: str) -> None:
    session = run(world, [broken], broken.name)
    data = shown_result(world, session)
    assert (data["status"], data["error"]["code"]) == ("failed", code)
    assert data["result"]["isError"] is True
    assert data["result"].get("errorName", "") == name
    assert text in data["error"]["message"]
    _, (read,), final = world.history(session)[1][2], world.history(session)[2][1], world.history(session)[3]
    assert read[0] == broken.name
    assert text in read[1]
    assert final == answered("done")
    world.check(session)


def test_a_fatal_tool_fails_the_turn_and_its_neighbours_have_results(world: World) -> None:
    @tool
    def gives_up(ctx: ToolContext) -> None:
        """Give up."""
        raise Fatal("the account is closed")

    @tool
    async def dreams(ctx: ToolContext) -> None:
        """Sleep."""
        await asyncio.sleep(60)

    session = run(world, [gives_up, dreams], "gives_up", "dreams")
    types = world.types(session)
    assert types[-3:] == ["step.failed", "turn.failed", "session.waiting"]
    (failed,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    assert (failed["code"], failed["message"]) == ("TOOL_FATAL", "the account is closed")
    assert [name for name, _ in world.history(session)[2][1]] == ["gives_up", "dreams"]
    world.check(session)
    world.app([answers("fine")], [gives_up, dreams])
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("fine")
    world.check(session)


def test_a_sync_tool_that_hangs_is_left_behind(world: World) -> None:
    late: list[str] = []

    @tool(timeout=0.05)
    def hangs(ctx: ToolContext) -> str:
        """Hang."""
        told = ctx.cancelled.wait(60)
        late.append(f"told: {told}")
        return "too late"

    session = run(world, [hangs], "hangs")
    assert shown_result(world, session)["error"]["code"] == "TOOL_TIMEOUT"
    assert world.history(session)[-1] == answered("done")
    wait_for(lambda: late == ["told: True"])
    assert world.history(session)[-1] == answered("done")
    world.check(session)


def test_a_slow_tool_does_not_hold_up_its_neighbours_result(world: World) -> None:
    @tool
    async def quick(ctx: ToolContext) -> str:
        """Be quick."""
        return "quick"

    @tool
    async def slow(ctx: ToolContext) -> str:
        """Wait until the other's result is committed."""
        while "action.result" not in [event["type"] for event in world.events(ctx.session.id)]:
            await asyncio.sleep(0.005)
        return "slow"

    session = run(world, [slow, quick], "slow", "quick")
    assert world.history(session)[2] == results(("slow", "slow"), ("quick", "quick"))
    shown = [data["result"]["toolName"] for kind, data in world.shown(session) if kind == "action.result"]
    assert shown == ["quick", "slow"]
    world.check(session)


def _counting() -> Callable[[ToolContext], object]:
    def counts(ctx: ToolContext) -> Iterator[object]:
        """Count."""
        yield {"done": 1}
        yield {"done": 2}
        yield "all"

    return counts


def _counting_async() -> Callable[[ToolContext], object]:
    async def counts(ctx: ToolContext) -> AsyncIterator[object]:
        """Count."""
        yield {"done": 1}
        yield {"done": 2}
        yield "all"

    return counts


@pytest.mark.parametrize("make", [_counting, _counting_async], ids=["sync", "async"])
def test_a_tool_that_yields_shows_its_progress(
    world: World, make: Callable[[], Callable[[ToolContext], object]]
) -> None:
    session = run(world, [tool(make())], "counts")
    shown = [event["data"]["result"]["output"] for event in world.events(session) if event["type"] == "action.partial"]
    assert shown == [{"done": 1}, {"done": 2}]
    assert shown_result(world, session)["result"]["output"] == "all"
    world.check(session)


@pytest.mark.parametrize(
    ("asked", "text"),
    [(asks("nobody"), "There is no tool 'nobody'"), (asks("add", a="many"), "The arguments of add do not fit")],
    ids=["unknown tool", "wrong arguments"],
)
def test_what_the_model_got_wrong_only_the_model_hears_of(world: World, asked: Any, text: str) -> None:
    @tool
    def add(ctx: ToolContext, a: int) -> int:
        """Add."""
        return a + 1

    world.app([asked, answers("done")], [add])
    session = world.create()
    world.run(session)
    assert "actions.requested" not in world.types(session)
    assert "action.result" not in world.types(session)
    assert world.starts("add") == []
    (read,) = world.history(session)[2][1]
    assert text in read[1]
    assert world.history(session)[-1] == answered("done")
    world.check(session)


def test_a_wrong_call_beside_a_right_one_does_not_stop_it(world: World) -> None:
    @tool
    def add(ctx: ToolContext, a: int) -> int:
        """Add."""
        return a + 1

    world.app([asks("nobody") & asks("add", a=1), answers("done")], [add])
    world.traffic.fault = Fault(4, "crash before")
    session = world.create()
    world.run(session)
    assert [name for name, _ in world.history(session)[2][1]] == ["nobody", "add"]
    assert world.history(session)[2][1][1] == ("add", 2)
    assert len(world.starts("add")) == 2
    world.check(session)


def test_a_tool_that_a_deploy_removed_under_a_dead_worker_is_told(world: World) -> None:
    @tool
    def old(ctx: ToolContext) -> str:
        """Die."""
        world.kill(world.worker)
        return "never heard"

    world.app([asks("old"), answers("done")], [old])
    session = world.create()
    with pytest.raises(Crash):
        world.worker.carry_on(session)
    world.bury(session)
    world.app([asks("old"), answers("done")], [])
    world.run(session)
    assert shown_result(world, session)["error"]["code"] == "TOOL_REMOVED"
    assert world.history(session)[-1] == answered("done")
    world.check(session)


def test_a_careful_tool_that_was_interrupted_is_not_started_again(world: World) -> None:
    @tool(on_interrupt="report")
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        world.kill(world.worker)
        return "paid"

    session = run(world, [pay], "pay")
    assert len(world.starts("pay")) == 1
    assert shown_result(world, session)["error"]["code"] == "OUTCOME_UNKNOWN"
    assert "may have run" in world.history(session)[2][1][0][1]
    world.check(session)


def test_a_failed_call_changes_no_state(world: World) -> None:
    @tool
    def writes_and_raises(ctx: ToolContext) -> None:
        """Write, then raise."""
        notes.update(ctx, lambda before: [*before, "never"])
        raise ValueError

    session = run(world, [writes_and_raises], "writes_and_raises")
    assert world.state(session) == {}
    world.check(session)


def test_a_key_is_one_for_all_attempts_and_no_other_call_has_it(world: World) -> None:
    @tool
    def mark(ctx: ToolContext) -> int:
        """Mark."""
        if len(world.starts("mark")) == 1:
            world.kill(world.worker)
        return ctx.attempt

    session = run(world, [mark], "mark", "mark")
    keys = [effect.key for effect in world.starts("mark")]
    assert set(keys) == {f"{session}/turn_0/call_0_0_0", f"{session}/turn_0/call_0_0_1"}
    assert keys.count(f"{session}/turn_0/call_0_0_0") == 2
    assert {effect.attempt for effect in world.starts("mark")} == {1, 2}
    world.check(session)


def test_a_model_may_ask_for_128_calls_at_once_and_no_more(world: World) -> None:
    @tool
    def add(ctx: ToolContext, a: int) -> int:
        """Add."""
        return a + 1

    def script(talk: Conversation) -> Reply:
        many = 128 if talk.turn == "turn_0" else 129
        return calls(*[asks("add", a=a) for a in range(many)]) if talk.step == 0 else answers("done")

    world.app(script, [add])
    session = world.create()
    world.run(session)
    wrong = [(a, found) for a, found in enumerate(world.history(session)[2][1]) if found != ("add", a + 1)]
    assert not wrong
    assert world.history(session)[3] == answered("done")
    world.check(session)
    world.say(session, "more")
    world.run(session)
    (failed,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    assert "129 tool calls at once" in failed["message"]
    assert len(world.starts("add")) == 128
    world.check(session)


def test_a_timeout_is_kept_to(world: World) -> None:
    began = time.monotonic()
    run(world, [sleeps], "sleeps")
    assert time.monotonic() - began < 5


def test_a_result_that_looks_like_an_error_is_a_result(world: World) -> None:
    @tool
    def diagnose(ctx: ToolContext) -> dict[str, str]:
        """Say what is wrong with the engine."""
        return {"code": "P0420", "message": "The catalyst is worn."}

    world.app([asks("diagnose"), answers("done")], [diagnose])
    session = world.create()
    world.run(session)
    [shown] = [data for kind, data in world.shown(session) if kind == "action.result"]
    assert shown["status"] == "completed"
    assert "error" not in shown
    assert "isError" not in shown["result"]
    world.check(session)
