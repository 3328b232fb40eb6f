"""Who works on a session: one at a time, and what happens to those who come too late, die, or leave."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.core.names import SessionId
from orchestrator.journal import Refused
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks
from orchestrator.ports import ModelCall, ModelOutput
from orchestrator.tool import ToolContext, tool
from tests.engine.test_crash_table import shop, story
from tests.servers import wait_for
from tests.worlds import Crash, World, answered, results, said


class Slow:
    """A model that answers when it is let go."""

    name = "slow"

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        first = not self.asked.is_set()
        self.asked.set()
        while first and not self.go.is_set():
            await asyncio.sleep(0.002)
        async for out in ScriptedModel([answers("done")]).answer(call):
            yield out


def test_of_many_drivers_one_owns(world: World) -> None:
    shop(world)
    engines = [world.engine() for _ in range(4)]
    sessions = [world.create("A book, please.") for _ in range(4)]
    barrier = threading.Barrier(len(engines))

    def work(engine: Any) -> None:
        for session in sessions:
            barrier.wait()
            while engine.carry_on(session).how not in ("parked", "idle"):
                pass

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for session in sessions:
        assert world.history(session) == story()[:6]
        world.check(session)
    assert len({effect.key for effect in world.effects}) == len(world.effects), "an effect was started twice"


def test_a_stale_owner_that_comes_back_writes_nothing(world: World) -> None:
    slow = Slow()
    world.app(slow)
    session = world.create()
    stale = world.engine()
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(stale.carry_on(session).how))
    thread.start()
    assert slow.asked.wait(5)
    world.bury(session)
    world.run(session)
    before = world.fields(session), world.events(session), world.history(session)
    slow.go.set()
    thread.join(5)
    assert found == ["superseded"]
    assert (world.fields(session), world.events(session), world.history(session)) == before
    world.check(session)


@pytest.mark.parametrize("verb", ["own", "commit"])
def test_a_frozen_owner_starts_no_effect_after_a_takeover(
    world: World, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at its lease before each effect: past half of it, it asks first."""
    world.change(lease_seconds=0.5)
    shop(world)
    session = world.create("A book, please.")
    frozen = world.engine()
    monkeypatch.setattr(frozen.process.pulse, "beat", lambda: None)

    def freeze(_place: int, called: str) -> None:
        if called == verb:
            world.traffic.after = lambda _place, _verb: None
            other = world.engine()
            wait_for(lambda: other.carry_on(session).how not in ("leased", "later"))
            while other.carry_on(session).how not in ("parked", "idle"):
                pass

    world.traffic.after = freeze
    assert frozen.carry_on(session).how == "superseded"
    assert [effect.owner for effect in world.effects if effect.owner == frozen.process.prefix] == []
    assert world.history(session) == story()[:6]
    world.check(session)


@pytest.mark.parametrize("where", ["a loop", "a thread"])
def test_what_was_handed_over_before_the_freeze_does_not_begin_after_a_takeover(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may stand still between its look at the lease and the first line of a model's or a tool's own code."""
    world.change(lease_seconds=0.5)
    begun: list[str] = []

    class Counted(Slow):
        async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
            begun.append(f"model {call.step}")
            async for out in ScriptedModel([asks("note"), answers("done")]).answer(call):
                yield out

    @tool
    def note() -> str:
        """Note it."""
        begun.append("tool")
        return "noted"

    world.app(Counted(), tools=[note])
    session = world.create()
    frozen, other = world.engine(), world.engine()
    monkeypatch.setattr(frozen.process.pulse, "beat", lambda: None)
    hands = frozen.process.loops if where == "a loop" else frozen.process.threads
    run = hands.run

    def freeze(work: Any) -> Any:
        monkeypatch.setattr(hands, "run", run)
        wait_for(lambda: other.carry_on(session).how not in ("leased", "later"))
        while other.carry_on(session).how not in ("parked", "idle"):
            pass
        return run(work)

    monkeypatch.setattr(hands, "run", freeze)
    assert frozen.carry_on(session).how == "superseded"
    assert begun == ["model 0", "tool", "model 1"]
    world.check(session)


def test_a_lease_that_ran_out_with_nobody_to_take_it_is_renewed_and_the_call_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.change(lease_seconds=0.5)
    shop(world)
    session = world.create("A book, please.")
    worker = world.engine()
    run = worker.process.threads.run
    late: list[object] = []

    def stand_still(work: Any) -> Any:
        if not late:
            (owned,) = worker.process.owned()
            owned.lease_until = 0.0
            late.append(work)
        return run(work)

    monkeypatch.setattr(worker.process.threads, "run", stand_still)
    while worker.carry_on(session).how not in ("parked", "idle"):
        pass
    assert late
    assert world.history(session) == story()[:6]
    world.check(session)


def test_a_refused_owner_changes_nothing_but_rung_and_due(world: World) -> None:
    shop(world)
    session = world.create("A book, please.")
    world.worker.journal.own(session, world.worker.process.new_token(), world.journal.time(), deployment="default")
    other = world.engine()

    def refused() -> str:
        before = {name: value for name, value in world.fields(session).items() if name not in ("rung", "rings")}
        answer = other.journal.own(session, other.process.new_token(), world.journal.time(), deployment="default")
        after = {name: value for name, value in world.fields(session).items() if name not in ("rung", "rings")}
        assert isinstance(answer, Refused)
        assert before == after
        return answer.why

    assert refused() == "leased"
    world.bury(session)
    world.run(session)
    assert refused() == "idle"
    world.client.hset(world.journal.keys(session).own, mapping={"reads": 99, "work": 1})
    assert refused() == "too_new"


def bomb(world: World, deaths: int) -> list[int]:
    """A tool that brings its process down so many times. Returns the attempts it will have seen."""
    attempts: list[int] = []

    @tool
    def explode(ctx: ToolContext) -> str:
        """Explode."""
        attempts.append(ctx.attempt)
        if len(attempts) <= deaths:
            world.kill(world.worker)
        return "nothing happened"

    def script(talk: Conversation) -> Reply:
        return asks("explode") if talk.turn == "turn_0" and talk.step == 0 else answers("done")

    world.app(script, [explode])
    return attempts


def die(world: World, session: SessionId, *, fault: bool) -> None:
    with pytest.raises(Crash):
        world.worker.carry_on(session)
    world.bury(session, fault=fault)
    world.skip(60_000)


def test_a_step_that_kills_its_process_twice_fails_its_turn_and_nothing_else(world: World) -> None:
    attempts = bomb(world, 99)
    session = world.create()
    die(world, session, fault=True)
    die(world, session, fault=True)
    world.run(session)
    assert attempts == [1, 2]
    (failed,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    assert (failed["code"], failed["terminal"]) == ("STEP_CRASHED", False)
    world.check(session)
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-2:] == [said("again"), answered("done")]
    assert world.fields(session)["faults"] == world.fields(session)["attempt"] == "0"
    world.check(session)


def test_deaths_that_are_not_its_own_never_fail_a_turn(world: World) -> None:
    attempts = bomb(world, 5)
    session = world.create()
    for _ in range(5):
        die(world, session, fault=False)
    world.run(session)
    assert attempts == [1, 2, 3, 4, 5, 6]
    assert world.history(session)[-2:] == [results(("explode", "nothing happened")), answered("done")]
    world.check(session)


def test_the_second_takeover_waits_longer_than_the_first(world: World) -> None:
    attempts = bomb(world, 99)
    session = world.create()
    for _ in range(2):
        with pytest.raises(Crash):
            world.worker.carry_on(session)
        world.bury(session)
    assert world.worker.carry_on(session).how == "later"
    world.skip(1_100)
    with pytest.raises(Crash):
        world.worker.carry_on(session)
    assert attempts == [1, 2, 3]


def test_a_process_that_leaves_gives_back_and_no_attempt_is_counted(world: World) -> None:
    attempts: list[int] = []

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait, the first time."""
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            await asyncio.sleep(60)
        return "waited"

    world.app([asks("wait"), answers("done")], [wait])
    session = world.create()
    leaving = world.engine()
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(leaving.carry_on(session).how))
    thread.start()
    wait_for(lambda: attempts)
    assert leaving.process.drain(0.05)
    thread.join(5)
    assert found == ["given_back"]
    assert (world.fields(session)["token"], world.fields(session)["attempt"]) == ("", "0")
    world.check(session)
    assert leaving.carry_on(session).how == "draining"
    world.run(session)
    assert attempts == [1, 1]
    assert world.history(session)[-1] == answered("done")
    world.check(session)


def test_a_step_that_ends_within_the_grace_is_committed(world: World) -> None:
    slow = Slow()
    world.app(slow)
    session = world.create()
    leaving = world.engine()
    thread = threading.Thread(target=leaving.carry_on, args=(session,))
    thread.start()
    assert slow.asked.wait(5)
    threading.Timer(0.1, slow.go.set).start()
    assert leaving.process.drain(5.0)
    thread.join(5)
    assert world.history(session) == [said("hello"), answered("done")]
    assert len(world.starts("slow")) == 1
    world.check(session)


def test_a_worker_follows_a_clock_of_redis_that_was_set(world: World) -> None:
    shop(world)
    session = world.create("A book, please.")
    world.skip(3_600_000)
    assert world.worker.carry_on(session).how == "stale"
    assert world.worker.carry_on(session).how == "chained"
    world.run(session)
    assert world.history(session) == story()[:6]
    world.check(session)
