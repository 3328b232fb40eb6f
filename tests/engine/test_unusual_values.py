"""Values that Python, JSON, UTF-8 and the store do not agree on: each has an end that somebody can read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from orchestrator.core import codec
from orchestrator.core.delivery import Body, Part
from orchestrator.core.event import storable
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Usage
from orchestrator.errors import BadRequest, BodyTooLarge, ConfigError
from orchestrator.models.scripted import ScriptedModel, answers, asks
from orchestrator.ports import Answer, AskedTool, ModelCall, ModelFailure, ModelOutput, ReasoningDelta, TextDelta
from orchestrator.process.history import Histories, History, row
from orchestrator.tool import ToolContext, tool
from tests.worlds import World, answered, results, said

HALF = "\ud83d"
"""Half of a character: a Python string may hold it, UTF-8 may not."""
WEI = 10**20
HUGE = 10**5000
"""More digits than Python turns into text."""


class Says:
    """A model that says these things, whatever it is asked."""

    name = "says"

    def __init__(self, *outs: ModelOutput | ModelFailure, then: str = "") -> None:
        self.outs, self.then = outs, then

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        if call.step and self.then:
            async for told in ScriptedModel(lambda _: answers(self.then)).answer(call):
                yield told
            return
        for out in self.outs:
            if isinstance(out, ModelFailure):
                raise out
            yield out


def answer(text: str = "done", *asked: AskedTool) -> Answer:
    """An answer whose row is all right, whatever its values are."""
    parts = '{"content":"done","part_kind":"text"}'
    if asked:
        parts = ",".join(
            f'{{"tool_name":"look","args":{{}},"tool_call_id":"{storable(one.provider_id)}","part_kind":"tool-call"}}'
            for one in asked
        )
    line = f'{{"parts":[{parts}],"kind":"response"}}'
    return Answer(line.encode(), text, "", "tool-calls" if asked else "stop", Usage(), asked)


def failure(world: World, session: SessionId) -> Mapping[str, Any]:
    """What `turn.failed` says."""
    (data,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    return dict(data)


def goes_on(world: World, session: SessionId) -> None:
    """The session takes another message."""
    world.app([answers("next")])
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("next")
    world.check(session)


# Numbers ----------------------------------------------------------------------------------------------------------------


@tool
def balance(ctx: ToolContext) -> int:
    """Give a number of more than 64 bits."""
    return WEI


@tool
def balances(ctx: ToolContext) -> dict[str, int]:
    """Give such a number in a dict."""
    return {"wei": WEI}


@tool
async def slow(ctx: ToolContext) -> str:
    """Come later than the others."""
    await asyncio.sleep(0.2)
    return "slow"


def test_a_number_of_more_than_64_bits_is_recorded_while_another_call_runs(world: World) -> None:
    world.app([asks("balance") & asks("balances") & asks("slow"), answers("done")], [balance, balances, slow])
    session = world.create()
    assert world.run(session)[-1] == "parked"
    found = results(("balance", WEI), ("balances", {"wei": WEI}), ("slow", "slow"))
    assert world.history(session)[2:] == [found, answered("done")]
    shown = [part.content for part in world.requests[-1].history[-1].parts]
    assert shown == [WEI, {"wei": WEI}, "slow"], "the model sees it"
    assert [len(world.starts(name)) for name in ("balance", "balances", "slow")] == [1, 1, 1]
    world.check(session)


def test_a_recorded_number_of_more_than_64_bits_is_read_again_by_the_next_worker(world: World) -> None:
    runs: list[int] = []

    @tool
    async def dies(ctx: ToolContext) -> str:
        """Take the worker along, once the others are on record."""
        runs.append(1)
        if len(runs) == 1:
            while not world.client.hlen(world.journal.keys(ctx.session.id).rec):
                await asyncio.sleep(0.01)
            world.kill(world.worker)
        return "alive"

    world.app([asks("balances") & asks("dies"), answers("done")], [balances, dies])
    session = world.create()
    world.run(session)
    assert world.history(session)[2] == results(("balances", {"wei": WEI}), ("dies", "alive"))
    assert len(world.starts("balances")) == 1
    assert len(runs) == 2
    world.check(session)


@pytest.mark.parametrize("value", [HUGE, {"wei": HUGE}], ids=["itself", "nested"])
def test_a_number_of_too_many_digits_is_a_failed_result(world: World, value: object) -> None:
    @tool
    def overflows(ctx: ToolContext) -> object:
        """Give it."""
        return value

    world.app([asks("overflows"), answers("done")], [overflows])
    session = world.create()
    world.run(session)
    ((_, told),) = world.history(session)[2][1]
    assert "cannot be stored as JSON" in told
    assert world.history(session)[-1] == answered("done")
    assert len(world.starts("overflows")) == 1
    world.check(session)


# Halves of characters ---------------------------------------------------------------------------------------------------


FAILURES: dict[str, Callable[[], ModelFailure]] = {
    "text": lambda: ModelFailure(f"bad {HALF}", retryable=False),
    "details": lambda: ModelFailure("bad", retryable=False, details={"said": HALF, HALF: "said"}),
    "code": lambda: ModelFailure("bad", retryable=False, code=f"BAD{HALF}"),
}


@pytest.mark.parametrize("where", FAILURES)
def test_half_a_character_in_a_failure_fails_the_turn(world: World, where: str) -> None:
    world.app(Says(FAILURES[where]()))
    session = world.create()
    assert world.run(session) == ["parked"]
    assert len(world.requests) == 1
    assert failure(world, session)["message"].startswith("bad")
    world.check(session)
    goes_on(world, session)


@pytest.mark.parametrize("value", [object(), HUGE, lambda: None], ids=["object", "huge", "function"])
def test_details_that_are_not_json_are_dropped(world: World, value: object) -> None:
    world.app(Says(ModelFailure("bad", retryable=False, details={"what": value})))
    session = world.create()
    assert world.run(session) == ["parked"]
    told = failure(world, session)
    assert (told["code"], told["message"]) == ("MODEL_CALL_FAILED", "bad")
    assert "what" not in told.get("details", {})
    world.check(session)
    goes_on(world, session)


@pytest.mark.parametrize(
    "outs",
    [
        (TextDelta(f"do{HALF}ne"), answer(f"do{HALF}ne")),
        (ReasoningDelta(HALF), TextDelta("done"), answer()),
        (TextDelta(HALF), TextDelta("\udc00"), answer(f"{HALF}\udc00")),
    ],
    ids=["text", "reasoning", "two halves in two deltas"],
)
def test_half_a_character_in_an_answer_completes_the_turn(world: World, outs: tuple[ModelOutput, ...]) -> None:
    world.app(Says(*outs))
    session = world.create()
    assert world.run(session) == ["parked"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    assert len(world.requests) == 1
    goes_on_quietly(world, session)


def goes_on_quietly(world: World, session: SessionId) -> None:
    """As `goes_on`, without the grammar: a delta with half a character does not add up to the text."""
    world.app([answers("next")])
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("next")


@pytest.mark.parametrize(
    "asked",
    [AskedTool("p1", f"look{HALF}", {}), AskedTool(f"p{HALF}", "look", {}), AskedTool("p1", "look", {"at": HALF})],
    ids=["tool", "provider id", "input"],
)
def test_half_a_character_in_a_call_has_a_result(world: World, asked: AskedTool) -> None:
    @tool
    def look(ctx: ToolContext, at: str = "") -> str:
        """Look."""
        return "seen"

    world.app(Says(answer("", asked), then="done"), [look])
    session = world.create()
    assert world.run(session)[-1] == "parked"
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    assert len(world.requests) == 2
    assert len(world.events(session)) > 5
    goes_on(world, session)


def test_provider_ids_that_no_snapshot_can_hold_fail_the_turn_after_one_call(world: World) -> None:
    @tool
    def look(ctx: ToolContext) -> str:
        """Look."""
        return "seen"

    asked = (AskedTool("x" * 9_000, "look", {}), AskedTool("y" * 9_000, "look", {}))
    world.app(Says(answer("", *asked), then="done"), [look])
    session = world.create()
    assert world.run(session) == ["parked"]
    assert len(world.requests) == 1
    assert "8,000" in failure(world, session)["message"]
    assert world.starts("look") == []
    world.check(session)
    goes_on(world, session)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300], ids=["inf", "nan", "1e300"])
def test_a_wait_that_never_ends_is_no_reason_to_try_for_ever(world: World, seconds: float) -> None:
    world.app(Says(ModelFailure("busy", retryable=True, retry_after=seconds)))
    session = world.create()
    assert world.run(session)[-1] == "parked"
    assert len(world.requests) <= 3
    world.check(session)


# What comes in ----------------------------------------------------------------------------------------------------------


def test_a_body_that_no_value_can_hold_is_refused_and_leaves_nothing(world: World) -> None:
    world.app([answers("done")])
    engine, large = world.worker, Body((Part("text", "x" * codec.MAX_BYTES),))
    before = set(world.client.keys("*"))
    with pytest.raises(BodyTooLarge):
        engine.create(large)
    assert set(world.client.keys("*")) == before
    session = world.create(None)
    fields = world.fields(session)
    with pytest.raises(BodyTooLarge):
        engine.deliver(session, large)
    assert world.fields(session) == fields
    assert world.reads.heads(session, 0) == ()
    world.say(session, "hello")
    world.run(session)
    assert world.history(session) == [said("hello"), answered("done")]
    world.check(session)


def test_half_a_character_in_a_message_is_refused_and_leaves_nothing(world: World) -> None:
    world.app([answers("done")])
    engine, half = world.worker, Body((Part("text", f"hello {HALF}"),))
    before = set(world.client.keys("*"))
    with pytest.raises(BadRequest, match="surrogate"):
        engine.create(half)
    assert set(world.client.keys("*")) == before
    session = world.create(None)
    with pytest.raises(BadRequest, match="surrogate"):
        engine.deliver(session, half)
    assert world.reads.heads(session, 0) == ()


def test_a_limit_for_bodies_that_is_more_than_can_be_stored_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.config import MAX_BODY_BYTES, from_environment

    monkeypatch.setenv("ORCHESTRATOR_BODY_LIMIT_BYTES", str(MAX_BODY_BYTES + 1))
    with pytest.raises(ConfigError, match="more than can be stored"):
        from_environment()
    monkeypatch.setenv("ORCHESTRATOR_BODY_LIMIT_BYTES", str(MAX_BODY_BYTES))
    assert from_environment().body_limit_bytes == MAX_BODY_BYTES
    assert MAX_BODY_BYTES < codec.MAX_BYTES


# What is remembered -----------------------------------------------------------------------------------------------------


def history(name: str, size: int) -> History:
    """A remembered history with one row of about so many bytes."""
    made = History(SessionId(name), 0)
    made.add([row("row_0", "turn_0/0", b'"' + b"x" * size + b'"')])
    return made


def test_a_history_that_is_put_back_twice_counts_once() -> None:
    kept = Histories()
    one = history("one", 1000)
    kept.put(one)
    kept.put(one)
    assert kept.take(SessionId("one")) is one
    assert kept._bytes == 0
    assert kept.take(SessionId("one")) is None
    assert kept._bytes == 0


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    kept = Histories(most_bytes=10_000)
    one, two, three = (history(name, 1000) for name in ("one", "two", "three"))
    for given in (one, two, one, three):
        kept.put(given)
    assert kept.take(SessionId("two")) is None
    assert kept.take(SessionId("three")) is three
    assert kept.take(SessionId("one")) is one
    assert kept._bytes == 0
