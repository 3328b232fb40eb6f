"""Model calls that break: tried again, put off, given up; what was half said does not count."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.fact import ModelAnswered, ModelTryFailed
from orchestrator.core.names import SessionId
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks, fails
from orchestrator.ports import ModelCall, ModelFailure, ModelOutput, TextDelta
from orchestrator.tool import ToolContext, tool
from tests import fake_openai as provider
from tests.fake_openai import FakeOpenAI
from tests.worlds import Fault, How, World, answered, said

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
        world.skip(5_500)
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
    world.skip(5_500)
    assert world.journal.due()[2] == 1


def test_a_crash_before_a_failed_try_is_on_record_repeats_that_try(world: World) -> None:
    world.app([fails("busy", retry_after=5, times=2, then=answers("done"))])
    world.traffic.fault = Fault(3, "crash before")
    session = world.create()
    for _ in range(3):
        world.run(session)
        world.skip(5_500)
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
    world.skip(5_500)
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


# What is not tried again, and what helps instead ------------------------------------------------------------------------


def test_a_filtered_answer_is_not_completed_and_not_tried_again(world: World) -> None:
    def script(talk: Conversation) -> Reply:
        return answers("half of", finish="content_filter") if talk.turn == "turn_0" else answers("done")

    world.app(script)
    session = world.create()
    world.run(session)
    assert len(world.requests) == 1
    assert failure(world, session)["code"] == "MODEL_CALL_FAILED"
    assert failure(world, session)["details"]["semanticErrorId"] == "model-response-content-filtered"
    assert world.types(session) == FAILED
    world.check(session)
    world.say(session, "again")
    world.run(session)
    assert world.history(session) == [said("hello"), said("again"), answered("done")]
    world.check(session)


def test_calls_of_an_answer_that_was_cut_by_its_length_are_answered_with_errors_and_the_turn_goes_on(
    world: World,
) -> None:
    @tool
    def look(ctx: ToolContext, at: str) -> str:
        """Look."""
        return "seen"

    world.app([asks("look", at="the she") & answers("I will", finish="length"), answers("done")], [look])
    session = world.create()
    world.run(session)
    assert not world.starts("look")
    (tool_name, told), *more = world.history(session)[2][1]
    assert (tool_name, more) == ("look", [])
    assert "cut at its length limit" in str(told)
    assert world.history(session)[-1] == answered("done")
    shown = world.shown(session)
    assert [data["finishReason"] for kind, data in shown if kind == "step.completed"] == ["tool-calls", "stop"]
    assert "actions.requested" not in world.types(session)
    world.check(session)


def test_a_text_that_was_cut_by_its_length_ends_the_turn_and_says_so(world: World) -> None:
    world.app([answers("half of", finish="length")])
    session = world.create()
    world.run(session)
    assert [data["finishReason"] for kind, data in world.shown(session) if kind == "step.completed"] == ["length"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def overflows(times: int) -> Callable[[Conversation], Reply]:
    """Some turns that are fine; in the last one the history is too long, until it was summed up so many times."""

    def script(talk: Conversation) -> Reply:
        if talk.message != "last":
            return answers(f"{talk.message} " + "x" * 400)
        too_long = fails("prompt is too long", retryable=False, overflow=True)
        return answers("done") if talk.summary and not times else too_long

    return script


def grown(world: World, times: int) -> SessionId:
    """A session whose history its model does not take any more."""
    world.app(overflows(times), context_window=100_000)
    session = world.create("first")
    world.run(session)
    for number in range(8):
        world.say(session, f"more {number}")
        world.run(session)
    world.say(session, "last")
    world.requests.clear()
    world.run(session)
    return session


def test_a_history_that_is_too_long_for_the_model_is_made_shorter_once_and_the_call_made_again(world: World) -> None:
    session = grown(world, 0)
    assert [call.purpose for call in world.requests] == ["answer", "summary", "answer"]
    assert world.types(session)[-8:] == [
        *("message.received", "step.started", "compaction.requested", "compaction.completed"),
        *("message.completed", "step.completed", "turn.completed", "session.waiting"),
    ]
    [begun] = [data for kind, data in world.shown(session) if kind == "compaction.requested"]
    assert (begun["turnId"], begun["stepIndex"]) == ("turn_9", 0)
    assert world.history(session)[-1] == answered("done")
    assert world.fields(session)["gen"] == "1"
    world.check(session)


def test_a_history_that_stays_too_long_fails_its_turn(world: World) -> None:
    session = grown(world, 1)
    assert [call.purpose for call in world.requests] == ["answer", "summary", "answer"]
    assert world.types(session)[-3:] == ["step.failed", "turn.failed", "session.waiting"]
    assert failure(world, session)["message"] == "prompt is too long"
    world.check(session)


def test_a_short_history_that_is_too_long_fails_its_turn(world: World) -> None:
    world.app([fails("prompt is too long", retryable=False, overflow=True)])
    session = world.create()
    world.run(session)
    assert world.types(session) == FAILED
    assert len(world.requests) == 2
    world.check(session)


@pytest.mark.parametrize("at", range(2, 12))
def test_an_overflow_that_breaks_anywhere_is_summed_up_once(world: World, at: int) -> None:
    world.app(overflows(0), context_window=100_000)
    session = world.create("first")
    world.run(session)
    for number in range(4):
        world.say(session, f"more {number}")
        world.run(session)
    world.say(session, "last")
    world.traffic.fault = Fault(len(world.traffic.verbs) + at - 2, "crash after")
    world.run(session)
    assert world.history(session)[-1] == answered("done")
    assert world.fields(session)["gen"] == "1"
    assert world.types(session).count("compaction.completed") == 1
    world.check(session)


class Counts:
    """A model that counts how often it is asked."""

    def __init__(self, name: str, script: Any) -> None:
        self._model, self.asked = ScriptedModel(script, name=name), 0

    @property
    def name(self) -> str:
        return self._model.name

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        self.asked += 1
        async for out in self._model.answer(call):
            yield out


def test_a_step_whose_model_keeps_failing_is_tried_on_the_fallback(world: World) -> None:
    other = Counts("other", [answers("done")])
    world.app([fails("busy", retry_after=0)], fallback_model=other)
    session = world.create()
    world.run(session)
    assert [call.tries for call in world.requests] == [0, 1, 2]
    assert other.asked == 1
    assert world.history(session) == DONE
    assert dict(world.shown(session))["step.started"]["modelId"] == "scripted"
    facts = list(world.reads.facts(session))
    assert [fact.model for fact in facts if isinstance(fact, ModelTryFailed)] == ["", "", "other"]
    assert [fact.model for fact in facts if isinstance(fact, ModelAnswered)] == ["other"]
    world.check(session)


def test_the_next_step_asks_the_own_model_first(world: World) -> None:
    other = Counts("other", [answers("done")])
    world.app(
        lambda talk: fails("busy", retry_after=0) if talk.turn == "turn_0" else answers("two"), fallback_model=other
    )
    session = world.create()
    world.run(session)
    world.say(session, "second")
    world.run(session)
    assert other.asked == 1
    assert world.history(session)[-1] == answered("two")
    world.check(session)


def test_a_fallback_that_fails_too_fails_the_turn_and_says_who_was_asked(world: World) -> None:
    other = Counts("other", [fails("busy, too", retry_after=0)])
    world.app([fails("busy", retry_after=0)], fallback_model=other)
    session = world.create()
    world.run(session)
    assert (len(world.requests), other.asked) == (3, 3)
    told = failure(world, session)
    assert (told["message"], told["details"]["modelId"], told["details"]["tries"]) == ("busy, too", "other", 6)
    assert world.types(session) == FAILED
    world.check(session)


def test_what_no_try_can_mend_is_not_tried_on_the_fallback(world: World) -> None:
    other = Counts("other", [answers("done")])
    world.app([fails("no such model", retryable=False)], fallback_model=other)
    session = world.create()
    world.run(session)
    assert other.asked == 0
    assert world.types(session) == FAILED
    world.check(session)


@pytest.mark.parametrize("at", range(2, 9))
@pytest.mark.parametrize("how", ["crash before", "crash after", "reply lost"])
def test_a_fallback_that_breaks_anywhere_is_asked_for_one_answer(world: World, at: int, how: How) -> None:
    other = Counts("other", [answers("done")])
    world.app([fails("busy", retry_after=0)], fallback_model=other)
    world.traffic.fault = Fault(at, how)
    session = world.create()
    world.run(session)
    assert [fact.model for fact in world.reads.facts(session) if isinstance(fact, ModelAnswered)] == ["other"]
    assert other.asked <= 2
    assert world.history(session) == DONE
    world.check(session)


# The same with a provider's library between ------------------------------------------------------------------------------


@pytest.fixture
def provided(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], FakeOpenAI]]:
    """`provided(script)`: from now on the world's agent is served by a provider with that script."""
    with ExitStack() as started:

        def start(script: Any) -> FakeOpenAI:
            fake = started.enter_context(FakeOpenAI(script))
            monkeypatch.setenv("OPENAI_BASE_URL", fake.url)
            monkeypatch.setenv("OPENAI_API_KEY", "x")
            world.change(model="openai-chat:gpt-test")
            world.app([])
            return fake

        yield start


def test_an_overflow_in_the_words_of_a_provider_is_summed_up(
    world: World, provided: Callable[[Any], FakeOpenAI]
) -> None:
    def script(call: Any) -> provider.Reply:
        if "Write the summary now." in str(call.messages[-1]["content"]):
            return provider.text("They spoke of pears.")
        if len(str(call.messages)) > 12_000:
            return provider.error(400, code="context_length_exceeded", message="maximum context length")
        return provider.text("x" * 500)

    fake = provided(script)
    session = world.create("first " + "y" * 500)
    world.run(session)
    for number in range(20):
        if "compaction.completed" in world.types(session):
            break
        world.say(session, f"more {number} " + "y" * 500)
        world.run(session)
    assert "compaction.completed" in world.types(session)
    assert "turn.failed" not in world.types(session)
    assert "They spoke of pears." in str(fake.calls[-1].messages)
    world.check(session)


def test_a_filtered_answer_of_a_provider_fails_the_turn_and_the_session_goes_on(
    world: World, provided: Callable[[Any], FakeOpenAI]
) -> None:
    fake = provided([provider.filtered("I will not"), provider.text("all of it")])
    session = world.create()
    world.run(session)
    assert failure(world, session)["details"]["semanticErrorId"] == "model-response-content-filtered"
    assert world.types(session) == FAILED
    assert len(fake.calls) == 1
    world.say(session, "again")
    world.run(session)
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_calls_that_a_provider_has_cut_are_answered_so_that_it_takes_the_history(
    world: World, provided: Callable[[Any], FakeOpenAI]
) -> None:
    @tool
    def find(ctx: ToolContext, x: int) -> str:
        """Find."""
        return "found"

    cut = replace(provider.tools(provider.Use("find", '{"x": ', id="c1")), finish="length")
    fake = provided([cut, provider.text("all of it")])
    world.app([], [find])
    session = world.create()
    world.run(session)
    assert not world.starts("find")
    [told] = [message for message in fake.calls[-1].messages if message["role"] == "tool"]
    assert told["tool_call_id"] == "c1"
    assert "cut at its length limit" in told["content"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_arguments_that_are_no_json_are_told_to_the_model_and_the_turn_goes_on(
    world: World, provided: Callable[[Any], FakeOpenAI]
) -> None:
    @tool
    def find(ctx: ToolContext, x: int) -> str:
        """Find."""
        return f"found {x}"

    broken = provider.tools(provider.Use("find", '{"x": 1', id="c1"), provider.Use("find", '{"x": 2}', id="c2"))
    fake = provided([broken, provider.tools(provider.Use("find", '{"x": 1}', id="c3")), provider.text("all of it")])
    world.app([], [find])
    session = world.create()
    world.run(session)
    told = {
        message["tool_call_id"]: message["content"] for message in fake.calls[-1].messages if message["role"] == "tool"
    }
    assert "JSON" in told["c1"]
    assert (told["c2"], told["c3"]) == ("found 2", "found 1")
    assert world.types(session).count("action.result") == 2
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_a_model_that_stops_without_a_word_completes_its_turn_without_a_message(
    world: World, provided: Callable[[Any], FakeOpenAI]
) -> None:
    @tool
    def look(ctx: ToolContext) -> str:
        """Look."""
        return "seen"

    fake = provided([provider.tools(provider.use("look", id="c1")), provider.empty(), provider.text("all of it")])
    world.app([], [look])
    session = world.create()
    world.run(session)
    assert world.types(session)[-4:] == ["step.started", "step.completed", "turn.completed", "session.waiting"]
    assert "message.completed" not in world.types(session)
    world.check(session)
    world.kill(world.worker)
    world.say(session, "again")
    world.run(session)
    assert [message["role"] for message in fake.calls[-1].messages] == ["user", "assistant", "tool", "user"]
    assert world.history(session)[-2:] == [said("again"), answered("all of it")]
    world.check(session)


@pytest.mark.parametrize("at", range(2, 7))
@pytest.mark.parametrize("how", ["crash before", "crash after", "reply lost"])
def test_an_answer_without_a_word_that_breaks_anywhere_ends_its_turn_once(world: World, at: int, how: How) -> None:
    world.app(lambda talk: answers("") if talk.turn == "turn_0" else answers("done"))
    world.traffic.fault = Fault(at, how)
    session = world.create()
    world.run(session)
    world.say(session, "again")
    world.run(session)
    assert world.history(session) == [said("hello"), said("again"), answered("done")]
    assert world.types(session).count("turn.completed") == 2
    world.check(session)


def test_an_answer_without_a_word_brings_no_result(world: World) -> None:
    world.app([answers(""), answers('{"cents": 5}')])
    session = world.create("price?", output={"type": "object"})
    world.run(session)
    assert [data["result"] for kind, data in world.shown(session) if kind == "result.completed"] == [{"cents": 5}]
    world.check(session)


def test_an_outage_of_the_provider_fails_the_turn_and_never_the_session(
    world: World, provided: Callable[[Any], FakeOpenAI]
) -> None:
    fake = provided([*[provider.error(503, retry_after=0)] * 3, provider.text("all of it")])
    session = world.create()
    world.run(session)
    assert len(fake.calls) == 3
    assert failure(world, session)["details"]["statusCode"] == 503
    world.say(session, "again")
    world.run(session)
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)
