"""What comes beside a message, for its turn only: context that the model is told, and the shape of the result that is owed."""

import time
from typing import Any

import pytest

from orchestrator.approval import always
from orchestrator.asides import LIMIT_BYTES
from orchestrator.core.delivery import Body, Part, Response
from orchestrator.core.names import RequestId, SessionId
from orchestrator.errors import BadRequest
from orchestrator.models.scripted import Conversation, Reply, answers, asks, calls, delivers
from orchestrator.tool import ToolContext, tool
from tests.engine.test_crash_table import WAYS
from tests.engine.test_steering import ANN
from tests.worlds import Fault, How, World, answered, results, said

PRICE = {"type": "object", "properties": {"cents": {"type": "integer", "minimum": 1}}, "required": ["cents"]}
TAKEN = results(("final_result", "The result was delivered."))
TOLD = ["turn.completed", "session.waiting"]


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Look somewhere."""
    return f"nothing in the {at}"


@tool(approval=always())
def refund(ctx: ToolContext, cents: int) -> str:
    """Pay back."""
    return f"{cents} paid"


def told(world: World, turn: str) -> list[tuple[str, ...]]:
    """The context of each model call of a turn."""
    return [request.context for request in world.requests if request.turn == turn]


def shown(world: World, session: SessionId, kind: str) -> list[Any]:
    """The data of the events of one type."""
    return [data for name, data in world.shown(session) if name == kind]


def heard(world: World, session: SessionId) -> None:
    """Wait until the message that was just said is known to join the turn."""
    while not ((turn := world.snapshot(session).turn) and turn.joining):
        time.sleep(0.005)


# Context ----------------------------------------------------------------------------------------------------------------


def looks(talk: Conversation) -> Reply:
    return asks("look", at="shelf") if talk.step == 0 else answers(f"I was told {talk.context}.")


@pytest.mark.parametrize(
    ("context", "texts"),
    [
        ("The cart is empty.", ("The cart is empty.",)),
        (["One.", "Two."], ("One.", "Two.")),
        ({"page": "/cart", "items": [1, None]}, ('{"page":"/cart","items":[1,null]}',)),
    ],
)
def test_context_is_told_in_every_model_call_of_its_turn_and_in_no_other(
    world: World, context: Any, texts: tuple[str, ...]
) -> None:
    world.app(looks, [look])
    session = world.create("hello", context=context)
    world.run(session)
    world.say(session, "and now?")
    world.run(session)
    assert told(world, "turn_0") == [texts, texts]
    assert told(world, "turn_1") == [(), ()]
    assert world.history(session)[0] == said("hello")
    assert [data["message"] for data in shown(world, session, "message.received")] == ["hello", "and now?"]
    world.check(session)


def test_messages_that_share_a_turn_bring_their_contexts_in_their_order(world: World) -> None:
    world.app(looks, [look])
    session = world.create(None)
    for text in ("a", "b", "c"):
        world.say(session, text, who=ANN, **({} if text == "b" else {"context": f"beside {text}"}))
    world.run(session)
    assert told(world, "turn_0") == [("beside a", "beside c")] * 2
    world.check(session)


def test_a_message_that_steers_adds_its_context(world: World) -> None:
    @tool
    def wait(ctx: ToolContext) -> str:
        """Something comes in meanwhile."""
        world.say(ctx.session.id, "more", who=ANN, context="second")
        heard(world, ctx.session.id)
        return "waited"

    world.app(lambda talk: asks("wait") if talk.step == 0 else answers("done"), [wait])
    session = world.create("go", who=ANN, context="first")
    world.run(session)
    assert told(world, "turn_0") == [("first",), ("first", "second")]
    world.check(session)


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_context_and_a_result_survive_whatever_breaks(world: World, at: int, how: How, late_by: int | None) -> None:
    def script(talk: Conversation) -> Reply:
        if talk.turn == "turn_1":
            return answers("Nothing is owed.")
        return [asks("look", at="shelf"), delivers({"cents": 0}), delivers({"cents": 5})][talk.step]

    world.app(script, [look])
    world.traffic.fault = Fault(at, how, late_by)
    session = world.create("price?", context="beside", output=PRICE)
    world.run(session)
    world.say(session, "thanks")
    world.run(session)
    assert set(told(world, "turn_0")) == {("beside",)}
    assert set(told(world, "turn_1")) == {()}
    assert [data["result"] for data in shown(world, session, "result.completed")] == [{"cents": 5}]
    assert world.types(session).count("turn.completed") == 2
    world.check(session)


@pytest.mark.parametrize("at", range(6, 16))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_what_a_message_that_joins_adds_survives_whatever_breaks(
    world: World, at: int, how: How, late_by: int | None
) -> None:
    def script(talk: Conversation) -> Reply:
        return asks("refund", cents=5) if talk.message == "pay" else delivers("pear")

    world.app(script, [refund])
    world.traffic.fault = Fault(at, how, late_by)
    session = world.create("pay", who=ANN, context="first", output=PRICE)
    world.run(session)
    world.say(session, "a name, rather", who=ANN, context="second", output={"type": "string"})
    world.run(session)
    assert set(told(world, "turn_0")) == {("first",), ("first", "second")}
    assert [data["result"] for data in shown(world, session, "result.completed")] == ["pear"]
    assert world.types(session)[-2:] == TOLD
    world.check(session)


# A result ---------------------------------------------------------------------------------------------------------------


def test_a_result_that_fits_ends_the_turn(world: World) -> None:
    world.app([delivers({"cents": 5})])
    session = world.create("price?", output=PRICE)
    world.run(session)
    assert world.types(session) == [
        *("session.started", "turn.started", "message.received", "step.started", "step.completed"),
        *("result.completed", *TOLD),
    ]
    assert shown(world, session, "step.completed")[0]["finishReason"] == "stop"
    assert shown(world, session, "result.completed") == [
        {"turnId": "turn_0", "sequence": 0, "stepIndex": 0, "result": {"cents": 5}}
    ]
    assert world.history(session) == [said("price?"), answered("", ("final_result", {"cents": 5})), TAKEN]
    world.check(session)


def test_a_text_that_is_the_json_of_a_result_is_one(world: World) -> None:
    world.app([answers('{"cents": 7}')])
    session = world.create("price?", output=PRICE)
    world.run(session)
    assert [data["result"] for data in shown(world, session, "result.completed")] == [{"cents": 7}]
    assert world.types(session)[-5:] == ["message.completed", "step.completed", "result.completed", *TOLD]
    world.check(session)


@pytest.mark.parametrize("wrong", [delivers({"cents": "five"}), delivers([]), answers("It costs five.")])
def test_what_does_not_fit_is_told_and_tried_again(world: World, wrong: Reply) -> None:
    world.app([wrong, wrong, delivers({"cents": 5})])
    session = world.create("price?", output=PRICE)
    world.run(session)
    assert [data["result"] for data in shown(world, session, "result.completed")] == [{"cents": 5}]
    assert len(shown(world, session, "step.completed")) == 3
    assert "does not fit" in str(world.history(session)[2])
    assert not shown(world, session, "action.result")
    world.check(session)


@pytest.mark.parametrize("wrong", [delivers({"cents": "five"}), answers("It costs five.")])
def test_a_turn_whose_model_never_delivers_fails_and_the_session_goes_on(world: World, wrong: Reply) -> None:
    def script(talk: Conversation) -> Reply:
        return wrong if talk.owes_result else answers("Fine.")

    world.app(script)
    session = world.create("price?", output=PRICE)
    world.run(session)
    assert world.types(session)[-4:] == ["step.completed", "step.failed", "turn.failed", "session.waiting"]
    [step], [turn] = shown(world, session, "step.failed"), shown(world, session, "turn.failed")
    assert (step["code"], turn["code"]) == ("OUTPUT_SCHEMA_NOT_FULFILLED", "OUTPUT_SCHEMA_NOT_FULFILLED")
    assert step["stepIndex"] == 2
    assert step["message"] == turn["message"] == "The model gave 3 answers, and none of them fits the output schema."
    world.say(session, "never mind")
    world.run(session)
    assert world.types(session)[-2:] == TOLD
    assert len(shown(world, session, "result.completed")) == 0
    world.check(session)


@pytest.mark.parametrize("result", [None, [1, "two"], 3, "text"])
def test_a_result_may_be_any_json(world: World, result: object) -> None:
    world.app([delivers(result)])
    session = world.create("?", output={"type": ["null", "array", "integer", "string"]})
    world.run(session)
    assert [data["result"] for data in shown(world, session, "result.completed")] == [result]
    world.check(session)


def test_what_is_asked_beside_a_result_is_done_before_the_turn_ends(world: World) -> None:
    world.app([calls(asks("look", at="shelf"), delivers({"cents": 5}), delivers({"cents": 6}))], [look])
    session = world.create("price?", output=PRICE)
    world.run(session)
    assert len(world.starts("look")) == 1
    assert [data["result"] for data in shown(world, session, "result.completed")] == [{"cents": 5}]
    assert world.types(session)[-5:] == ["action.result", "step.completed", "result.completed", *TOLD]
    world.check(session)


def test_a_result_waits_for_the_approval_of_what_is_asked_beside_it(world: World) -> None:
    world.app([calls(asks("refund", cents=5), delivers({"cents": 5}))], [refund])
    session = world.create("pay", who=ANN, output=PRICE)
    world.run(session)
    assert world.types(session)[-1] == "turn.waiting"
    world.check(session)
    [asked] = shown(world, session, "input.requested")
    request = RequestId(asked["requests"][0]["requestId"])
    world.worker.answer(session, [Response(request, "approve")], principal=ANN)
    world.run(session)
    assert len(world.starts("refund")) == 1
    assert [data["result"] for data in shown(world, session, "result.completed")] == [{"cents": 5}]
    assert world.types(session)[-2:] == TOLD
    world.check(session)


def test_a_message_that_steers_replaces_the_schema(world: World) -> None:
    @tool
    def wait(ctx: ToolContext) -> str:
        """Something comes in meanwhile."""
        world.say(ctx.session.id, "a name, rather", who=ANN, output={"type": "string", "pattern": "^[a-z]+$"})
        heard(world, ctx.session.id)
        return "waited"

    world.app([asks("wait"), delivers({"cents": 5}), delivers("pear")], [wait])
    session = world.create("price?", who=ANN, output=PRICE)
    world.run(session)
    assert [data["result"] for data in shown(world, session, "result.completed")] == ["pear"]
    world.check(session)


def test_a_result_that_did_not_know_of_a_message_is_not_the_one(world: World) -> None:
    @tool
    def wait(ctx: ToolContext) -> str:
        """Something comes in meanwhile."""
        world.say(ctx.session.id, "and in euros?", who=ANN)
        heard(world, ctx.session.id)
        return "waited"

    world.app([calls(asks("wait"), delivers({"cents": 5})), delivers({"cents": 4})], [wait])
    session = world.create("price?", who=ANN, output=PRICE)
    world.run(session)
    assert [data["result"] for data in shown(world, session, "result.completed")] == [{"cents": 4}]
    assert world.types(session).count("turn.started") == 1
    world.check(session)


def test_a_cancelled_turn_leaves_nothing_of_what_came_beside_its_messages(world: World) -> None:
    world.app([calls(asks("refund", cents=5), delivers({"cents": 5}))], [refund])
    session = world.create("pay", who=ANN, output=PRICE, context="beside")
    world.run(session)
    world.cancel(session)
    world.run(session)
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    assert not shown(world, session, "result.completed")
    world.check(session)


def test_a_turn_whose_schema_is_lost_does_not_go_on_for_ever(world: World) -> None:
    @tool
    def forget(ctx: ToolContext) -> str:
        """The store loses what was kept for the turn."""
        if world.client.hdel(world.journal.keys(ctx.session.id).rec, ctx.session.turn):
            world.kill(world.worker)
        return "forgotten"

    world.app(lambda talk: asks("forget") if talk.owes_result else answers("hi"), [forget])
    session = world.create("price?", output=PRICE)
    world.run(session)
    assert [data["code"] for data in shown(world, session, "turn.failed")] == ["OUTPUT_SCHEMA_LOST"]


# The door ---------------------------------------------------------------------------------------------------------------

LONG = "x" * (LIMIT_BYTES + 1)
BOMB = {
    "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}},
    "$ref": "#/$defs/d0",
}


@pytest.mark.parametrize(
    "context", ["", [], [""], ["a", ""], [1], 7, LONG, [LONG], {"a": LONG}, {"a": float("nan")}, "\ud800"]
)
def test_context_that_makes_no_sense_is_refused(world: World, context: Any) -> None:
    world.app([answers("hi")])
    with pytest.raises(BadRequest):
        world.worker.create(Body((Part("text", "hello"),)), context=context)


@pytest.mark.parametrize(
    "output",
    [
        7,
        {"type": "text"},
        {"properties": []},
        {"description": LONG},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/missing"},
        {"properties": {"a": {"$id": "x"}}},
        {"patternProperties": {"(a+)+$": {}}},
        {"x-ours": {"$ref": 5}},
        {"$ref": "#/required/a", "required": ["a"]},
        {"type": [[n] for n in range(9_000)]},
        {"properties": {"a": {"required": [{}, *([n] for n in range(9_000))]}}},
        {"dependentRequired": {"a": [{}, *([n] for n in range(9_000))]}},
    ],
)
def test_a_schema_that_nothing_could_be_held_against_is_refused(world: World, output: Any) -> None:
    world.app([answers("hi")])
    with pytest.raises(BadRequest):
        world.worker.create(Body((Part("text", "hello"),)), output=output)


def test_context_and_schema_need_a_message(world: World) -> None:
    world.app([answers("hi")])
    for beside in ({"context": "x"}, {"output": PRICE}):
        with pytest.raises(BadRequest):
            world.worker.create(None, **beside)


def test_a_property_may_be_called_like_a_keyword(world: World) -> None:
    world.app([answers("hi")])
    wanted = {"type": "object", "properties": {"$ref": {"type": "string"}}, "dependentRequired": {"$ref": ["a"]}}
    assert world.worker.create(Body((Part("text", "hello"),)), output=wanted).session


@pytest.mark.parametrize("output", [BOMB, {"$ref": "#"}, {"type": "string", "pattern": "^(a+)+$"}])
def test_no_schema_keeps_a_worker_busy_for_ever(world: World, output: Any) -> None:
    world.app(lambda talk: answers("a" * 40 + "!"))
    session = world.create("hello", output=output)
    world.run(session)
    assert world.types(session)[-2:] == ["turn.failed", "session.waiting"]
    world.check(session)
