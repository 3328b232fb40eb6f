"""Calls that a person must approve: asked once, answered once, run at most once, whatever breaks."""

from typing import Any

import pytest

from orchestrator.approval import always
from orchestrator.core.names import RequestId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.engine import Response
from orchestrator.models.scripted import Conversation, Reply, answers, asks
from orchestrator.tool import ToolContext, ask_question, tool
from tests.engine.test_crash_table import WAYS
from tests.engine.test_steering import ANN, BEN
from tests.worlds import Fault, How, World, answered, results, said

RAN = "turn_0/call_0_0_0"


@tool(approval=always(prompt="Refund {cents} cents?"))
def refund(ctx: ToolContext, cents: int) -> str:
    """Pay back."""
    return f"{cents} paid to {ctx.session.auth.id if ctx.session.auth else 'nobody'}"


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Look somewhere."""
    return f"nothing in the {at}"


def pays(talk: Conversation) -> Reply:
    """Wants to pay back and looks somewhere meanwhile; then says what it was told."""
    if talk.turn == "turn_0" and talk.step == 0:
        return asks("refund", cents=500) & asks("look", at="shelf")
    return answers(f"After {talk.message}.")


def asked(world: World, session: SessionId) -> list[RequestId]:
    """The requests that the stream shows."""
    found = [data["requests"] for kind, data in world.shown(session) if kind == "input.requested"]
    return [RequestId(request["requestId"]) for batch in found for request in batch]


def waiting(world: World) -> SessionId:
    """A session that waits for an approval."""
    world.app(pays, [refund, look])
    session = world.create("Pay me", who=ANN)
    assert world.run(session)[-1] in ("parked", "idle")
    return session


def answer(world: World, session: SessionId, option: str, *, who: Principal | None = ANN, text: str = "") -> None:
    [request] = asked(world, session)
    world._insist(lambda: world.worker.answer(session, [Response(request, option, text)], principal=who))


def types(world: World, session: SessionId) -> list[str]:
    return world.types(session)


OPENING = [
    *("session.started", "turn.started", "message.received", "step.started", "actions.requested", "action.result"),
    *("step.completed", "input.requested", "turn.waiting"),
]


def test_a_call_that_needs_approval_waits_and_the_others_run(world: World) -> None:
    session = waiting(world)
    assert types(world, session) == OPENING
    assert [effect.what for effect in world.effects if effect.kind == "tool"] == ["look"]
    [request] = [data["requests"][0] for kind, data in world.shown(session) if kind == "input.requested"]
    assert request == {
        "requestId": request["requestId"],
        "kind": "tool-approval",
        "prompt": "Refund 500 cents?",
        "action": {
            **{"kind": "tool-call", "callId": "call_0_0_0", "toolName": "refund"},
            "input": {"cents": 500},
        },
        "display": "confirmation",
        "allowFreeform": False,
        "options": [{"id": "approve", "label": "Approve"}, {"id": "cancel", "label": "Cancel"}],
    }
    assert world.fields(session)["token"] == ""
    assert world.worker.view(session).status == "waiting_for_input"
    world.check(session)


def test_an_approved_call_runs_as_who_asked_for_it_and_the_turn_goes_on(world: World) -> None:
    session = waiting(world)
    answer(world, session, "approve")
    world.run(session)
    assert types(world, session)[len(OPENING) :] == [
        *("approval.settled", "input.resolved", "step.started", "action.result", "message.completed"),
        *("step.completed", "turn.completed", "session.waiting"),
    ]
    shown = dict(world.shown(session)[len(OPENING) :])
    assert shown["action.result"]["stepIndex"] == 1
    assert shown["input.resolved"]["resolutions"][0]["outcome"] == "approved"
    assert world.history(session)[1:3] == [
        answered("", ("refund", {"cents": 500}), ("look", {"at": "shelf"})),
        results(("refund", "500 paid to ann"), ("look", "nothing in the shelf")),
    ]
    world.check(session)


def test_a_refused_call_never_runs_and_the_model_reads_why(world: World) -> None:
    session = waiting(world)
    answer(world, session, "cancel", text="Too much.")
    world.run(session)
    assert types(world, session)[len(OPENING) :] == [
        *("approval.settled", "input.resolved", "action.result", "step.started", "message.completed"),
        *("step.completed", "turn.completed", "session.waiting"),
    ]
    shown = dict(world.shown(session)[len(OPENING) :])
    assert shown["action.result"]["status"] == "rejected"
    assert shown["action.result"]["stepIndex"] == 0
    assert shown["action.result"]["error"]["code"] == "TOOL_EXECUTION_DENIED"
    assert shown["input.resolved"]["resolutions"][0]["response"]["text"] == "Too much."
    assert "Too much." in str(world.history(session)[2])
    assert not world.starts("refund")
    world.check(session)


def test_only_who_caused_the_turn_may_answer(world: World) -> None:
    session = waiting(world)
    answer(world, session, "approve", who=BEN)
    world.run(session)
    assert types(world, session) == OPENING
    answer(world, session, "approve")
    world.run(session)
    assert len(world.starts("refund")) == 1
    world.check(session)


def test_a_message_instead_of_an_answer_withdraws_what_was_asked_and_joins(world: World) -> None:
    session = waiting(world)
    world.say(session, "Forget it", who=ANN)
    world.run(session)
    assert types(world, session)[len(OPENING) :] == [
        *("input.resolved", "action.result", "message.received", "step.started", "message.completed"),
        *("step.completed", "turn.completed", "session.waiting"),
    ]
    shown = dict(world.shown(session)[len(OPENING) :])
    assert shown["input.resolved"]["resolutions"][0]["outcome"] == "ignored"
    assert not world.starts("refund")
    world.check(session)


@pytest.mark.parametrize("text", ["approve", " APPROVE ", "1"])
def test_a_message_that_says_an_option_is_an_answer(world: World, text: str) -> None:
    session = waiting(world)
    world.say(session, text, who=ANN)
    world.run(session)
    assert len(world.starts("refund")) == 1
    assert types(world, session).count("message.received") == 1
    world.check(session)


def test_a_cancel_withdraws_what_was_asked(world: World) -> None:
    session = waiting(world)
    world.cancel(session)
    world.run(session)
    assert types(world, session)[len(OPENING) :] == ["input.resolved", "turn.cancelled", "session.waiting"]
    assert not world.starts("refund")
    answer(world, session, "approve")
    world.run(session)
    assert not world.starts("refund")
    world.check(session)


ROAD = ("create", "own", "turn", "answer", "look", "ask", "answers", "own", "resolved", "started", "ran", "answer")


@pytest.mark.parametrize("at", range(15))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_an_approval_that_breaks_anywhere_runs_its_call_at_most_once(
    world: World, at: int, how: How, late_by: int | None
) -> None:
    world.traffic.fault = Fault(at, how, late_by)
    session = waiting(world)
    requests = asked(world, session)
    answer(world, session, "approve")
    world.run(session)
    for _ in range(3):
        again = [name for name in asked(world, session) if name not in requests]
        if again:
            # It may have run: people are asked again.
            requests += again
            world._insist(lambda: world.worker.answer(session, [Response(again[0], "approve")], principal=ANN))
            world.run(session)
    assert len(world.starts("refund")) <= len(requests)
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    assert len([row for row in world.history(session) if row[0] == "results"]) == 1
    world.check(session)


def test_a_question_is_answered_by_any_text(world: World) -> None:
    def curious(talk: Conversation) -> Reply:
        return asks("ask_question", question="Which colour?") if talk.step == 0 else answers("Fine.")

    world.app(curious, [ask_question])
    session = world.create("Paint it", who=ANN)
    world.run(session)
    assert types(world, session)[-2:] == ["input.requested", "turn.waiting"]
    world.say(session, "Green, please", who=ANN)
    world.run(session)
    row: Any = world.history(session)[2]
    assert row == results(("ask_question", {"status": "answered", "answer": "Green, please"}))
    assert world.history(session)[0] == said("Paint it")
    world.check(session)
