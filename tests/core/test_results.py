"""The rules of a result that a turn owes, on values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.advance import Scene, advance, follow
from orchestrator.core.fact import (
    Fact,
    MessagesJoined,
    ModelAnswered,
    ResultDelivered,
    ResultRefused,
    StepFailed,
    StepSettled,
    StepStarted,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import DeliveryId, Millis, TurnId
from orchestrator.core.snapshot import EMPTY, Snapshot, Usage
from orchestrator.core.steps import NOT_FULFILLED, RESULT_TRIES

NOW, TURN = Millis(1_000), TurnId("turn_0")
SCENE = Scene(at=NOW, agent="helper", model="scripted", seq=9, events=9, all_in=True)
BEGUN = TurnStarted(TURN, 0, (DeliveryId("dlv_1"),), 1, 0, None, "helper", 0, NOW, aside=True, output=True)


def owing(*facts: Fact) -> Snapshot:
    """A turn that owes a result, after these facts."""
    made = advance(EMPTY, BEGUN)
    for fact in facts:
        made = advance(made, fact)
    return made


def asked(step: int, then: type[ResultDelivered | ResultRefused] | None) -> list[Fact]:
    """A step whose answer is a text."""
    said = ModelAnswered(TURN, step, "stop", Usage(10, 5), (), NOW)
    came = [then(TURN, step, NOW)] if then else []
    return [StepStarted(TURN, step, "scripted", NOW), said, *came, StepSettled(TURN, step, "stop", NOW)]


def test_a_turn_that_owes_a_result_does_not_end_with_a_text() -> None:
    assert follow(owing(*asked(0, None)), SCENE) == StepStarted(TURN, 1, "scripted", NOW)


def test_a_turn_ends_with_its_result() -> None:
    assert follow(owing(*asked(0, ResultDelivered)), SCENE) == TurnSettled(TURN, "completed", "", False, NOW)


@pytest.mark.parametrize("misfits", range(1, RESULT_TRIES + 1))
def test_a_turn_fails_at_the_last_answer_that_brings_no_result(misfits: int) -> None:
    made = owing(*(fact for step in range(misfits) for fact in asked(step, ResultRefused)))
    failed = StepFailed(TURN, misfits, NOT_FULFILLED, NOW)
    again = StepStarted(TURN, misfits, "scripted", NOW)
    assert follow(made, SCENE) == (failed if misfits == RESULT_TRIES else again)


def test_a_message_that_waits_does_not_join_a_turn_that_fails() -> None:
    made = owing(*(fact for step in range(RESULT_TRIES) for fact in asked(step, ResultRefused)))
    assert made.turn is not None
    joining = replace(made, turn=replace(made.turn, joining=(DeliveryId("dlv_2"),)))
    assert isinstance(follow(joining, SCENE), StepFailed)


def test_a_message_that_joins_wants_a_result_of_its_own() -> None:
    joined = MessagesJoined(TURN, 1, (DeliveryId("dlv_2"),), NOW)
    made = owing(*asked(0, ResultDelivered), joined)
    assert follow(made, SCENE) == StepStarted(TURN, 1, "scripted", NOW)
