"""Faults that would come back for ever have an end, and what is slow or away for a while loses nothing."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import Any

import pytest

from orchestrator.core.names import SessionId
from orchestrator.errors import ConfigError, JournalAway
from orchestrator.models import Layer
from orchestrator.models.scripted import answers, asks
from orchestrator.ports import ModelCall, ModelOutput, TextDelta
from orchestrator.process.loops import Threads
from orchestrator.process.owned import Owned
from orchestrator.state import state
from orchestrator.tool import ToolContext, tool
from orchestrator.turn import asking
from tests.servers import wait_for
from tests.worlds import Crash, Event, LoggedModel, World, answered, results, said

count = state("count", default=lambda: 0)


def tries_until_failed(world: World, session: SessionId, kind: type[Exception], most: int = 12) -> int:
    """Carry the session on, let leases run out, and count how often it raised until its turn has failed."""
    raised = 0
    for _ in range(most):
        try:
            if world.worker.carry_on(session).how == "later":
                world.skip(30_000)
        except kind:
            raised += 1
            world.bury(session)
            world._worker = None
        if "turn.failed" in world.types(session):
            return raised
    raise AssertionError(f"after {raised} errors the turn has not failed")


def code(world: World, session: SessionId) -> str:
    """Why the turn failed."""
    (data,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    return str(data["code"])


def codes(world: World, session: SessionId) -> list[str]:
    """How the calls went wrong, in the order of their results."""
    return [data["error"]["code"] for kind, data in world.shown(session) if kind == "action.result"]


# What comes back at each try --------------------------------------------------------------------------------------------


class Pause:
    """Something to wait for, with or without an event loop."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class NotInstant:
    """A model that says it never waits, and waits."""

    name = "not-instant"

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        await Pause()
        yield TextDelta("nobody waits for it")


def test_a_model_that_breaks_its_driver_at_each_try_fails_its_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.app(NotInstant())
    monkeypatch.setattr(LoggedModel, "instant", True, raising=False)
    session = world.create()
    assert tries_until_failed(world, session, RuntimeError) == 4
    assert code(world, session) == "STEP_CRASHED"
    assert len(world.requests) == 4, "two tries, and two that counted"
    world.check(session)
    monkeypatch.undo()
    world.app([answers("next")])
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("next")
    world.check(session)


def test_tools_that_cannot_be_read_after_a_takeover_fail_their_turn(world: World) -> None:
    class Breaks(Layer):
        broken = False

        def toolbox(self, tools: Sequence[Any]) -> Any:
            if self.broken:
                raise ConfigError(problem="no such tool", remedy="none")
            return super().toolbox(tools)

    @tool
    def look(ctx: ToolContext) -> str:
        """Look; the worker dies meanwhile."""
        world.kill(world.worker)
        layer.broken = True
        return "seen"

    world.layer = layer = Breaks()
    world.app([asks("look"), answers("done")], [look])
    session = world.create()
    with pytest.raises(Crash):
        world.worker.carry_on(session)
    world.bury(session)
    assert tries_until_failed(world, session, ConfigError) <= 4
    assert code(world, session) == "STEP_CRASHED"
    assert len(world.starts("look")) == 1
    world.check(session)


def test_a_model_that_says_nothing_is_cut_and_tried_again_three_times(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[int] = []

    class Silent:
        name = "silent"

        async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
            try:
                await asyncio.sleep(60)
            finally:
                cut.append(call.tries)
            yield TextDelta("never")

    monkeypatch.setattr(asking, "LONGEST_SILENCE", 0.2)
    world.app(Silent())
    session = world.create()
    began = time.monotonic()
    assert world.run(session)[-1] == "parked"
    assert time.monotonic() - began < 15
    assert [call.tries for call in world.requests] == [0, 1, 2]
    assert cut == [0, 1, 2], "the calls were closed"
    (told,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    assert (told["code"], told["details"]["tries"]) == ("MODEL_CALL_FAILED", 3)
    assert "silent" in told["message"]
    world.check(session)


def test_a_tool_that_is_cancelled_from_within_has_a_failed_result(world: World) -> None:
    @tool
    async def cancelled(ctx: ToolContext) -> str:
        """Wait for something that is cancelled."""
        raise asyncio.CancelledError

    world.app([asks("cancelled"), answers("done")], [cancelled])
    session = world.create()
    thread = threading.Thread(target=world.run, args=(session,))
    thread.start()
    thread.join(5)
    alive = thread.is_alive()
    if alive:
        world.cancel(session)
        thread.join(5)
    assert not alive, "nobody was told that the tool has ended"
    assert codes(world, session) == ["ACTION_RESULT_FAILED"]
    assert world.history(session)[-1] == answered("done")
    world.check(session)


# What runs beside -------------------------------------------------------------------------------------------------------


def test_progress_during_a_commit_reaches_the_stream_without_another(world: World) -> None:
    speak, seen = threading.Event(), list[Event]()

    @tool
    def quick(ctx: ToolContext) -> str:
        """Be done at once."""
        return "quick"

    @tool
    def talks(ctx: ToolContext) -> str:
        """Say something while the other's result is written, and wait until it is heard."""
        speak.wait(5)
        ctx.progress("halfway")
        until = time.monotonic() + 3
        while time.monotonic() < until and not seen:
            seen.extend(e for e in world.events(ctx.session.id) if e["type"] == "action.partial")
            time.sleep(0.02)
        return "heard" if seen else "not heard"

    def before(place: int, verb: str) -> None:
        if verb == "commit" and len(world.effects) == 3 and not speak.is_set():
            speak.set()
            time.sleep(0.4)  # the pump comes by and finds the driver writing

    world.app([asks("quick") & asks("talks"), answers("done")], [quick, talks])
    world.traffic.before = before
    session = world.create()
    world.run(session)
    assert speak.is_set()
    assert world.history(session)[2] == results(("quick", "quick"), ("talks", "heard"))
    world.check(session)


@tool
def adds(ctx: ToolContext) -> str:
    """Count one up."""
    count.update(ctx, lambda number: number + 1)
    return "added"


def test_two_tools_that_change_one_value_while_it_is_read_slowly_both_count(world: World) -> None:
    world.app([asks("adds") & asks("adds"), answers("done")], [adds])
    talk = world.create()
    reads, times = world.worker.process.reads, [0.3, 1.5]
    read = reads.state

    def slowly(session: SessionId) -> Mapping[str, bytes]:
        found = read(session)
        time.sleep(times.pop(0) if times else 0)
        return found

    reads.state = slowly  # type: ignore[method-assign]
    world.run(talk)
    assert times == [1.5], "it is read once"
    assert world.state(talk) == {"count": 2}
    world.check(talk)


def test_a_value_that_is_read_while_the_journal_is_away_is_waited_for(world: World) -> None:
    world.app([asks("adds"), answers("done")], [adds])
    session = world.create()
    reads, away = world.worker.process.reads, [1, 2, 3]
    read = reads.state

    def sometimes(session: SessionId) -> Mapping[str, bytes]:
        if away:
            away.pop()
            raise JournalAway(reason="the test has cut it off")
        return read(session)

    reads.state = sometimes  # type: ignore[method-assign]
    world.run(session)
    assert away == []
    assert world.history(session)[2] == results(("adds", "added"))
    assert world.state(session) == {"count": 1}
    world.check(session)


def test_a_tool_that_was_given_up_while_it_waited_for_a_thread_never_starts(world: World) -> None:
    go = threading.Event()

    @tool(timeout=0.2)
    def first(ctx: ToolContext) -> None:
        """Take the only thread."""
        go.wait(10)

    @tool(timeout=0.4)
    def second(ctx: ToolContext) -> None:
        """Wait for a thread."""

    world.app([asks("first") & asks("second"), answers("done")], [first, second])
    session = world.create()
    threads = world.worker.process.threads = Threads(1)
    try:
        world.run(session)
        assert codes(world, session) == ["TOOL_TIMEOUT", "TOOL_TIMEOUT"]
        go.set()
        threads.run(lambda: None).result(5)  # behind both
        assert len(world.starts("first")) == 1
        assert world.starts("second") == []
    finally:
        go.set()
    world.check(session)


# Leaving ----------------------------------------------------------------------------------------------------------------


def test_a_driver_that_begins_after_the_grace_is_over_gives_its_session_back(world: World) -> None:
    class Hangs:
        name = "scripted"

        async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
            await asyncio.sleep(60)
            yield TextDelta("never")

    world.app(Hangs())
    session = world.create()
    worker, how = world.worker, []
    enter = worker.process.enter

    def late(owned: Owned) -> None:
        worker.process.drain(0)
        enter(owned)

    worker.process.enter = late  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: how.append(worker.carry_on(session).how))
    thread.start()
    wait_for(lambda: how, 3, what="the session to be given back")
    thread.join(3)
    assert how[0] in ("given_back", "chained")
    assert world.fields(session)["token"] == ""
    world.app([answers("done")])
    world.run(session)
    assert world.history(session) == [said("hello"), answered("done")]
    world.check(session)
