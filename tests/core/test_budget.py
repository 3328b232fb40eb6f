"""What a used-up budget means for a turn, as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import budget
from orchestrator.core.advance import Scene, advance, follow, has_work, judge, next_effect
from orchestrator.core.budget import COST, STEPS, TOKENS, Budget, Budgets
from orchestrator.core.delivery import Envelope, Head
from orchestrator.core.effect import AskPeople, CallModel, Hold
from orchestrator.core.fact import (
    BudgetReached,
    InputRequested,
    MessagesJoined,
    MessageSteers,
    StepFailed,
    StepStarted,
    TurnSettled,
)
from orchestrator.core.holds import OPTIONS
from orchestrator.core.names import CallId, DeliveryId, Millis, RequestId, TurnId
from orchestrator.core.snapshot import Request, Snapshot, Turn, Usage

NOW = Millis(1_000_000)
SCENE = Scene(at=NOW, agent="helper", model="scripted", seq=40, events=90, over_budget=TOKENS)
TURN = Turn(TurnId("turn_2"), 2, (DeliveryId("dlv_A"),), None, "helper", NOW, step=1, finish="tool-calls")
BETWEEN = Snapshot(next_turn=3, judged=7, started=True, usage=Usage(100, 20, micro_usd=5_000, answers=3), turn=TURN)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Budget(), ""),
        (Budget(101, 21, 5_001, 4), ""),
        (Budget(100), TOKENS),
        (Budget(output_tokens=20), TOKENS),
        (Budget(micro_usd=5_000), COST),
        (Budget(steps=3), STEPS),
        (Budget(100, 20, 5_000, 3), TOKENS),
    ],
)
def test_each_size_is_used_up_by_itself(limits: Budget, code: str) -> None:
    assert budget.exceeded(BETWEEN, Budgets(session=limits)) == code
    granted = replace(BETWEEN, granted=BETWEEN.usage)
    assert budget.exceeded(granted, Budgets(session=limits)) == ""
    assert budget.exceeded(BETWEEN, Budgets(turn=limits)) == "", "this turn has used nothing yet"
    spent = replace(BETWEEN, turn=replace(TURN, spent=BETWEEN.usage))
    assert budget.exceeded(spent, Budgets(turn=limits)) == code


def test_what_is_used_up_is_told_with_whose_it_is() -> None:
    spent = replace(BETWEEN, turn=replace(TURN, spent=Usage(7, 5, answers=2)))
    budgets = Budgets(Budget(input_tokens=100, micro_usd=4_000), Budget(output_tokens=5, steps=2))
    assert budget.told(spent, budgets) == (
        "This session has used up its budget: 100 of 100 input tokens, 0.01 of 0.00 USD. "
        "This turn has used up its budget: 5 of 5 output tokens, 2 of 2 steps."
    )


def test_a_turn_over_its_budget_has_people_asked_and_waits_for_them() -> None:
    reached = follow(BETWEEN, SCENE)
    assert reached == BudgetReached(TURN.id, 1, TOKENS, NOW)
    after = advance(BETWEEN, reached)
    assert follow(after, SCENE) is None
    assert next_effect(after, NOW) == AskPeople(TURN.id, 1, ())
    assert has_work(after, NOW)
    request = Request(RequestId("req_1"), "session-limit", CallId(""), 41, options=OPTIONS["session-limit"])
    held = advance(after, InputRequested(TURN.id, 1, (request,), NOW))
    assert follow(held, SCENE) is None
    assert isinstance(next_effect(held, NOW), Hold)
    assert not has_work(held, NOW)


def test_a_turn_between_two_steps_with_nothing_to_do_asks_nobody() -> None:
    assert next_effect(BETWEEN, NOW) is None


def test_a_turn_that_is_not_over_its_budget_any_more_goes_on() -> None:
    after = advance(BETWEEN, BudgetReached(TURN.id, 1, TOKENS, NOW))
    started = follow(after, replace(SCENE, over_budget=""))
    assert isinstance(started, StepStarted)
    going = advance(after, started)
    assert next_effect(going, NOW) == CallModel(TURN.id, 1, 0)
    assert going.turn is not None
    assert not going.turn.over_budget


def test_where_nobody_can_be_asked_the_next_call_fails() -> None:
    scene = replace(SCENE, may_ask=False)
    started = follow(BETWEEN, scene)
    assert isinstance(started, StepStarted)
    failed = follow(advance(BETWEEN, started), scene)
    assert failed == StepFailed(TURN.id, 1, TOKENS, NOW)
    assert isinstance(follow(advance(advance(BETWEEN, started), failed), scene), TurnSettled)


def test_an_answer_that_needs_no_other_call_ends_its_turn() -> None:
    assert isinstance(follow(replace(BETWEEN, turn=replace(TURN, finish="stop")), SCENE), TurnSettled)


def test_a_message_that_comes_before_people_are_asked_joins_the_turn() -> None:
    after = advance(BETWEEN, BudgetReached(TURN.id, 1, TOKENS, NOW))
    head = Head(DeliveryId("dlv_B"), 8, 42, Envelope("message", None, "steer"))
    steers = judge(after, head, SCENE)
    assert isinstance(steers, MessageSteers)
    joined = follow(advance(after, steers), SCENE)
    assert isinstance(joined, MessagesJoined)
    assert next_effect(advance(advance(after, steers), joined), NOW) == AskPeople(TURN.id, 1, ())
