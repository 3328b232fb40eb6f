"""Budgets of a session: the call that crosses one is finished, people are asked before the next, and say how it goes on."""

from typing import Any

import pytest

from orchestrator.agent import Limits
from orchestrator.approval import always
from orchestrator.core.delivery import Response
from orchestrator.core.names import RequestId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import ConfigError
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks
from orchestrator.tool import ToolContext, tool
from tests.engine.test_crash_table import WAYS
from tests.engine.test_steering import ANN, BEN
from tests.worlds import Fault, How, World, answered, results, said


@tool
def look(ctx: ToolContext, at: int) -> str:
    """Look somewhere."""
    return f"nothing at {at}"


def looks(talk: Conversation) -> Reply:
    """Looks twice, then says what was said last."""
    return asks("look", at=talk.step) if talk.step < 2 else answers(f"After {talk.message}.")


ONE_CALL = Limits(input_tokens=10)
"""Each call of a scripted model takes 10 tokens in."""


def serve(world: World, limits: Limits = ONE_CALL, **model: Any) -> None:
    world.app(ScriptedModel(looks, **model), [look], limits=limits)


def asked(world: World, session: SessionId) -> list[RequestId]:
    """The requests that the stream shows."""
    found = [data["requests"] for kind, data in world.shown(session) if kind == "input.requested"]
    return [RequestId(request["requestId"]) for batch in found for request in batch]


def held(world: World, *, who: Principal | None = ANN) -> SessionId:
    """A session whose budget is used up by its first call."""
    serve(world)
    session = world.create("Look around", who=who)
    world.run(session)
    return session


def answer(world: World, session: SessionId, option: str, *, who: Principal | None = ANN) -> None:
    """An answer to what was asked last."""
    request = asked(world, session)[-1]
    world._insist(lambda: world.worker.answer(session, [Response(request, option)], principal=who))
    world.run(session)


def cannot_ask(world: World, session: SessionId) -> None:
    """A session in which nobody can be asked."""
    world.client.hset(world.journal.keys(session).own, "mute", "1")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(steps=1), "This session has used up its budget: 1 of 1 steps."),
        (Limits(turn_steps=1), "This turn has used up its budget: 1 of 1 steps."),
        (Limits(turn_input_tokens=10), "This turn has used up its budget: 10 of 10 input tokens."),
    ],
)
def test_steps_and_turns_have_budgets_as_well(world: World, limits: Limits, told: str) -> None:
    serve(world, limits)
    session = world.create("Look around", who=ANN)
    world.run(session)
    [request] = [data["requests"][0] for kind, data in world.shown(session) if kind == "input.requested"]
    assert request["prompt"] == f"{told} Let it go on, up to as much again?"
    answer(world, session, "continue")
    answer(world, session, "continue")
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    assert len(asked(world, session)) == 2, "it was let go on for one step each time"
    world.check(session)


def test_a_turn_begins_with_a_fresh_budget_of_its_own(world: World) -> None:
    serve(world, Limits(turn_steps=3))
    session = world.create("Look around", who=ANN)
    world.run(session)
    for number in range(3):
        world.say(session, f"Look again, {number}", who=ANN)
        world.run(session)
    assert asked(world, session) == []
    assert world.types(session).count("turn.completed") == 4
    world.check(session)


def test_a_turn_over_its_steps_fails_where_nobody_can_be_asked(world: World) -> None:
    serve(world, Limits(turn_steps=2))
    session = world.create(None)
    cannot_ask(world, session)
    world.say(session, "Look around", who=ANN)
    world.run(session)
    [failed] = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    assert failed["code"] == "SESSION_STEP_LIMIT_REACHED"
    assert failed["message"] == "This turn has used up its budget: 2 of 2 steps."
    world.check(session)


OPENING = [
    *("session.started", "turn.started", "message.received", "step.started", "actions.requested", "action.result"),
    *("step.completed", "input.requested", "turn.waiting"),
]


def test_the_call_that_crosses_the_budget_is_finished_and_people_are_asked_before_the_next(world: World) -> None:
    session = held(world)
    assert world.types(session) == OPENING
    [request] = [data["requests"][0] for kind, data in world.shown(session) if kind == "input.requested"]
    assert request == {
        "requestId": request["requestId"],
        "kind": "session-limit",
        "prompt": "This session has used up its budget: 10 of 10 input tokens. Let it go on, up to as much again?",
        "action": {
            "kind": "tool-call",
            "callId": request["requestId"],
            "toolName": "session_limit",
            "input": {},
        },
        "display": "confirmation",
        "allowFreeform": False,
        "options": [{"id": "continue", "label": "Continue"}, {"id": "stop", "label": "Stop"}],
    }
    assert dict(world.shown(session))["turn.waiting"]["usage"]["inputTokens"] == 10
    assert len(world.requests) == 1
    assert world.fields(session)["token"] == ""
    assert world.worker.view(session).status == "waiting_for_input"
    world.check(session)


def test_continue_gives_the_same_turn_as_much_again(world: World) -> None:
    session = held(world)
    answer(world, session, "continue")
    assert world.types(session)[len(OPENING) :] == [
        *("input.resolved", "step.started", "actions.requested", "action.result", "step.completed"),
        *("input.requested", "turn.waiting"),
    ]
    first, second = asked(world, session)
    assert first != second
    answer(world, session, "continue")
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    assert world.types(session).count("turn.started") == 1
    assert world.history(session)[0] == said("Look around")
    assert world.history(session)[-1] == answered("After Look around.")
    world.check(session)


def test_an_answer_that_comes_again_lets_the_session_go_on_once(world: World) -> None:
    session = held(world)
    [first] = asked(world, session)
    for _ in range(2):
        world._insist(lambda: world.worker.answer(session, [Response(first, "continue")], principal=ANN))
    world.run(session)
    assert len(world.requests) == 2
    for option in ("continue", "stop"):
        world.worker.answer(session, [Response(first, option)], principal=ANN)
        world.run(session)
    assert len(world.requests) == 2
    assert world.types(session).count("input.requested") == 2
    assert world.types(session)[-1] == "turn.waiting", "what is asked now waits for an answer of its own"
    answer(world, session, "continue")
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


@pytest.mark.parametrize(("option", "ends"), [("continue", "turn.completed"), ("stop", "turn.cancelled")])
def test_an_answer_to_a_prompt_whose_turn_is_over_begins_no_turn(world: World, option: str, ends: str) -> None:
    session = held(world)
    answer(world, session, option)
    while world.types(session)[-1] == "turn.waiting":
        answer(world, session, option)
    before = world.types(session)
    assert before[-2:] == [ends, "session.waiting"]
    for again in ("continue", "stop"):
        answer(world, session, again)
    assert world.types(session) == before
    world.say(session, "And now?", who=ANN)
    world.run(session)
    assert [row for row in world.history(session) if row[0] == "said"] == [said("Look around"), said("And now?")]
    world.check(session)


def test_stop_cancels_the_turn_and_the_next_message_is_asked_for_under_a_new_request(world: World) -> None:
    session = held(world)
    answer(world, session, "stop")
    assert world.types(session)[len(OPENING) :] == ["input.resolved", "turn.cancelled", "session.waiting"]
    world.check(session)
    world.say(session, "And now?", who=ANN)
    world.run(session)
    assert world.types(session)[-4:] == ["turn.started", "message.received", "input.requested", "turn.waiting"]
    first, second = asked(world, session)
    assert first != second
    assert len(world.requests) == 1
    world.check(session)
    answer(world, session, "continue")
    assert len(world.requests) == 2
    world.check(session)


def test_a_message_that_is_no_answer_waits_behind_the_prompt_and_runs_after_the_grant(world: World) -> None:
    session = held(world)
    world.say(session, "What is it?", who=ANN)
    world.run(session)
    assert world.types(session) == OPENING
    assert len(asked(world, session)) == 1
    while len(asked(world, session)) < 6 and world.types(session)[-1] == "turn.waiting":
        answer(world, session, "continue")
    assert world.types(session).count("turn.completed") == 2
    assert [row for row in world.history(session) if row[0] == "said"] == [said("Look around"), said("What is it?")]
    world.check(session)


@pytest.mark.parametrize("text", ["continue", " CONTINUE ", "1"])
def test_a_message_that_says_continue_is_an_answer(world: World, text: str) -> None:
    session = held(world)
    world.say(session, text, who=ANN)
    world.run(session)
    assert len(world.requests) == 2
    assert said(text) not in world.history(session)
    world.check(session)


def test_only_who_caused_the_turn_may_let_it_go_on(world: World) -> None:
    session = held(world)
    answer(world, session, "continue", who=BEN)
    assert world.types(session) == OPENING
    assert len(world.requests) == 1
    world.check(session)


def test_an_answer_that_is_no_option_leaves_the_prompt_open(world: World) -> None:
    session = held(world)
    answer(world, session, "perhaps")
    assert world.types(session) == OPENING
    answer(world, session, "stop")
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    world.check(session)


def test_a_cancel_ends_the_turn_behind_the_prompt(world: World) -> None:
    session = held(world)
    world.cancel(session)
    world.run(session)
    assert world.types(session)[len(OPENING) :] == ["input.resolved", "turn.cancelled", "session.waiting"]
    world.check(session)


def test_a_turn_that_needs_no_call_after_the_crossing_one_completes(world: World) -> None:
    world.app([answers("done")], limits=ONE_CALL)
    session = world.create()
    world.run(session)
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (ONE_CALL, "SESSION_TOKEN_LIMIT_REACHED"),
        (Limits(output_tokens=1), "SESSION_TOKEN_LIMIT_REACHED"),
        (Limits(cost_usd=0.002), "SESSION_TOKEN_COST_LIMIT_REACHED"),
    ],
)
def test_where_nobody_can_be_asked_the_next_call_fails_its_turn_and_the_session_stays(
    world: World, limits: Limits, code: str
) -> None:
    serve(world, limits, cost_usd=0.002)
    session = world.create()
    cannot_ask(world, session)
    world.run(session)
    assert world.types(session)[-5:] == [
        "step.completed",
        "step.started",
        "step.failed",
        "turn.failed",
        "session.waiting",
    ]
    shown = dict(world.shown(session))
    assert shown["turn.failed"]["code"] == shown["step.failed"]["code"] == code
    assert shown["turn.failed"]["message"].startswith("This session has used up its budget: ")
    assert len(world.requests) == 1
    world.check(session)
    serve(world, Limits())
    world.say(session, "again")
    world.run(session)
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_each_budget_is_told_with_its_figures(world: World) -> None:
    serve(world, Limits(input_tokens=10, output_tokens=1, cost_usd=1.5), cost_usd=2)
    session = world.create(who=ANN)
    world.run(session)
    [request] = [data["requests"][0] for kind, data in world.shown(session) if kind == "input.requested"]
    assert "10 of 10 input tokens, 1 of 1 output tokens, 2.00 of 1.50 USD." in request["prompt"]


def test_the_cost_of_each_committed_answer_is_counted_once(world: World) -> None:
    serve(world, Limits(), cost_usd=0.0125)
    world.traffic.fault = Fault(4, "crash after")
    session = world.create()
    world.run(session)
    shown = world.shown(session)
    assert [data["usage"]["costUsd"] for kind, data in shown if kind == "step.completed"] == [0.0125] * 3
    assert shown[-1][1]["usage"]["costUsd"] == 0.0375
    world.check(session)


def test_what_costs_nothing_that_is_known_has_no_cost(world: World) -> None:
    serve(world, Limits())
    session = world.create()
    world.run(session)
    assert "costUsd" not in world.shown(session)[-1][1]["usage"]


def test_a_budget_holds_approved_calls_back_because_the_model_is_asked_behind_them(world: World) -> None:
    @tool(approval=always())
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        return "paid"

    world.app([asks("pay"), answers("done")], [pay], limits=ONE_CALL)
    session = world.create(who=ANN)
    world.run(session)
    answer(world, session, "approve")
    assert not world.starts("pay")
    assert world.types(session)[-2:] == ["input.requested", "turn.waiting"]
    answer(world, session, "continue")
    assert len(world.starts("pay")) == 1
    assert world.history(session)[-2:] == [results(("pay", "paid")), answered("done")]
    world.check(session)


@pytest.mark.parametrize("at", range(14))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_a_budget_prompt_that_breaks_anywhere_is_one_prompt_for_each_window(
    world: World, at: int, how: How, late_by: int | None
) -> None:
    world.traffic.fault = Fault(at, how, late_by)
    session = held(world)
    assert len(asked(world, session)) == 1
    answer(world, session, "continue")
    assert len(asked(world, session)) == 2
    answer(world, session, "stop")
    assert world.types(session)[-3:] == ["input.resolved", "turn.cancelled", "session.waiting"]
    assert world.snapshot(session).usage.input == 20
    world.check(session)


@pytest.mark.parametrize(
    "wrong", [{"input_tokens": 0}, {"output_tokens": -1}, {"cost_usd": 0.0}, {"cost_usd": float("nan")}]
)
def test_a_limit_is_above_zero(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limits(**wrong)


def test_a_session_has_a_limit_of_input_tokens_if_nothing_is_said() -> None:
    assert Limits() == Limits(input_tokens=40_000_000, output_tokens=None, cost_usd=None)
