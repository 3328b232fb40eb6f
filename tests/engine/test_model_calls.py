"""Model calls that break: tried again, put off, given up; what was half said does not count."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from orchestrator.core.names import SessionId
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks, fails
from orchestrator.ports import ModelCall, ModelFailure, ModelOutput, TextDelta
from orchestrator.tool import ToolContext, tool
from tests.worlds import Fault, World, answered, said

DONE = [said("hello"), answered("done")]
FAILED = [
    "session.started",
    "turn.started",
    "message.received",
    "step.started",
    "step.failed",
    "turn.failed",
    "session.waiting",
]


class Stutters:
    """A model that says half of it and then does something, so many times."""

    name = "stutters"

    def __init__(self, times: int, then: Callable[[ModelCall], Any]) -> None:
        self.times, self.then = times, then

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        if self.times:
            self.times -= 1
            yield TextDelta("half of")
            await self.then(call)
        async for out in ScriptedModel([answers("done")]).answer(call):
            yield out


def failure(world: World, session: SessionId) -> dict[str, Any]:
    """What `turn.failed` says."""
    (data,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    return dict(data)


def test_a_call_that_fails_twice_is_tried_a_third_time(world: World) -> None:
    world.app([fails("busy", retry_after=0, times=2, then=answers("done"))])
    session = world.create()
    world.run(session)
    assert [call.tries for call in world.requests] == [0, 1, 2]
    assert world.history(session) == DONE
    assert world.types(session)[-3:] == ["step.completed", "turn.completed", "session.waiting"]
    world.check(session)


def test_a_call_that_fails_three_times_fails_its_turn_and_the_session_goes_on(world: World) -> None:
    world.app(lambda talk: fails("busy", retry_after=0) if talk.turn == "turn_0" else answers("done"))
    session = world.create()
    world.run(session)
    told = failure(world, session)
    assert [call.tries for call in world.requests] == [0, 1, 2]
    assert (told["code"], told["message"], told["terminal"]) == ("MODEL_CALL_FAILED", "busy", False)
    assert told["details"]["tries"] == 3
    assert world.types(session) == FAILED
    world.check(session)
    world.say(session, "again")
    world.run(session)
    assert world.history(session) == [said("hello"), said("again"), answered("done")]
    world.check(session)


@pytest.mark.parametrize("retryable", [False, None], ids=["refused", "broken"])
def test_a_call_that_no_try_can_mend_fails_at_once(world: World, retryable: bool | None) -> None:
    def script(talk: Conversation) -> Reply:
        if retryable is None:
            raise ZeroDivisionError("a fault of the model layer")
        return fails("no such model", retryable=retryable)

    world.app(script)
    session = world.create()
    world.run(session)
    assert len(world.requests) == 1
    assert failure(world, session)["code"] == "MODEL_CALL_FAILED"
    assert world.types(session) == FAILED
    world.check(session)


def test_an_unknown_model_fails_the_turn_with_what_to_do(world: World) -> None:
    world.change(model="nobody:knows-this")
    world.app([answers("done")])
    session = world.create()
    world.run(session)
    assert failure(world, session)["code"] == "MODEL_CONFIG"
    world.check(session)
    world.change(model="")
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("done")
    world.check(session)


def test_a_long_wait_is_a_timer_that_frees_the_worker(world: World) -> None:
    world.app([fails("busy", retry_after=5, times=2, then=answers("done"))])
    session = world.create()
    for tries in (1, 2):
        assert world.run(session) == ["parked"]
        assert world.fields(session)["token"] == ""
        assert world.worker.view(session).status == "waiting_for_timer"
        assert world.run(session) == ["idle"]
        assert len(world.requests) == tries
        world.check(session)
        world.kill(world.worker)
        world.skip(5_001)
    world.run(session)
    assert [call.tries for call in world.requests] == [0, 1, 2]
    assert world.history(session) == DONE
    world.check(session)


def test_the_keeper_rings_for_a_timer_when_its_time_has_come(world: World) -> None:
    world.app([fails("busy", retry_after=5, times=1, then=answers("done"))])
    session = world.create()
    world.run(session)
    world.client.delete("orc.default", "orc:wakes")
    assert world.journal.due()[2] == 0
    world.skip(5_001)
    assert world.journal.due()[2] == 1


def test_a_crash_before_a_failed_try_is_on_record_repeats_that_try(world: World) -> None:
    world.app([fails("busy", retry_after=5, times=2, then=answers("done"))])
    world.traffic.fault = Fault(3, "crash before")
    session = world.create()
    for _ in range(3):
        world.run(session)
        world.skip(5_001)
    assert [call.tries for call in world.requests] == [0, 0, 1, 2]
    assert world.history(session) == DONE
    world.check(session)


def test_a_message_during_a_timer_waits_for_its_turn(world: World) -> None:
    world.app(
        lambda talk: (
            fails("busy", retry_after=5, times=1, then=answers("done")) if talk.turn == "turn_0" else answers("two")
        )
    )
    session = world.create()
    world.run(session)
    world.say(session, "second", policy="queue")
    assert world.run(session) == ["parked"]
    assert world.worker.view(session).status == "waiting_for_timer"
    assert len(world.requests) == 1
    world.check(session)
    world.skip(5_001)
    world.run(session)
    assert world.history(session) == [*DONE, said("second"), answered("two")]
    world.check(session)


def test_a_cancel_during_a_timer_ends_the_turn_at_once(world: World) -> None:
    world.app([fails("busy", retry_after=5, times=1, then=answers("done"))])
    session = world.create()
    world.run(session)
    assert world.cancel(session) == "cancelling"
    world.run(session)
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    assert world.fields(session)["next_timer"] == "0"
    world.check(session)


def test_what_a_broken_call_had_said_is_superseded(world: World) -> None:
    async def breaks(call: ModelCall) -> None:
        while world.events(call.session)[-1]["type"] != "message.appended":
            await asyncio.sleep(0.005)
        raise ModelFailure("cut", retryable=True, retry_after=0)

    world.app(Stutters(2, breaks))
    session = world.create()
    world.run(session)
    kinds = [event["type"] for event in world.events(session)]
    assert kinds.count("step.superseded") == 2
    assert kinds.count("step.started") == 1
    assert world.history(session) == DONE
    world.check(session)


def test_what_a_dead_worker_had_said_is_superseded(world: World) -> None:
    async def dies(call: ModelCall) -> None:
        while world.events(call.session)[-1]["type"] != "message.appended":
            await asyncio.sleep(0.005)
        world.kill(world.worker)

    world.app(Stutters(2, dies))
    session = world.create()
    world.run(session)
    events = world.events(session)
    assert [event["type"] for event in events].count("step.superseded") == 2
    assert [event["meta"]["attempt"] for event in events if event["type"] == "message.completed"] == [3]
    assert world.history(session) == DONE
    world.check(session)


def test_usage_is_summed_once_for_each_answer(world: World) -> None:
    @tool
    def look(ctx: ToolContext) -> str:
        """Look."""
        return "seen"

    world.app([asks("look"), fails("busy", retry_after=0, times=1, then=answers("done"))], [look])
    world.traffic.fault = Fault(4, "crash after")
    session = world.create()
    world.run(session)
    last = world.events(session)[-1]
    assert last["data"]["usage"]["inputTokens"] == 20
    world.check(session)
