"""What the journal has kept of a session: facts, steps, attempts, times."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.past import step_times
from tests.cli.conftest import Told
from tests.servers import wait_for
from tests.tasks.conftest import Desk, StartWorker, ran
from tests.tasks.conftest import start as start  # a fixture


def event(kind: str, ms: int, attempt: int = 1, step: int | None = 0, **data: Any) -> dict[str, Any]:
    place = {"turnId": "turn_0", "sequence": 0} | ({"stepIndex": step} if step is not None else {})
    return {
        "type": kind,
        "data": {**place, **data},
        "meta": {"at": f"1970-01-01T00:00:00.{ms:03d}Z", "attempt": attempt},
    }


def test_a_step_is_told_by_its_events() -> None:
    events = [
        event("turn.started", 0, step=None),
        event("step.started", 10, modelId="m"),
        event("message.appended", 20, messageDelta="a"),
        event("message.completed", 40, message="a"),
        event("actions.requested", 40, actions=[{}, {}]),
        event("action.result", 90),
        event("step.completed", 100, finishReason="tool-calls"),
        event("step.started", 100, step=1, modelId="m"),
        event("message.completed", 150, step=1, message="b"),
        event("step.completed", 151, step=1, finishReason="stop"),
        event("turn.completed", 151, step=None),
    ]
    first, second = step_times(events)
    assert (first.model_ms, first.tools_ms, first.total_ms) == (30, 60, 90)
    assert (first.called, first.attempts, first.ended) == (2, [1], "tool-calls")
    assert (second.model_ms, second.tools_ms, second.total_ms) == (50, None, 51)


def test_a_step_that_was_taken_over_is_one_step_with_two_attempts() -> None:
    events = [
        event("step.started", 10, modelId="m"),
        event("message.appended", 20, messageDelta="a"),
        event("step.superseded", 700, attempt=2, **{"from": 1, "to": 1}),
        event("message.completed", 800, attempt=2, message="a"),
        event("step.completed", 800, attempt=2, finishReason="stop"),
    ]
    [step] = step_times(events)
    assert (step.attempts, step.total_ms) == ([1, 2], 790)
    again = event("step.started", 750, attempt=2, modelId="m")
    [step] = step_times([*events[:3], again, *events[3:]])
    assert (step.attempts, step.total_ms) == ([1, 2], 790), "also where it says so once more"


@pytest.mark.parametrize(("end", "said"), [("turn.cancelled", "cancelled"), ("turn.failed", "failed")])
def test_a_step_that_was_cut_ends_with_its_turn(end: str, said: str) -> None:
    [step] = step_times([event("step.started", 10, modelId="m"), event(end, 60, step=None)])
    assert (step.ended, step.total_ms, step.model_ms) == (said, 50, None)
    [open_step] = step_times([event("step.started", 10, modelId="m")])
    assert (open_step.ended, open_step.total_ms) == ("", None)


def test_the_past_of_a_session_is_shown(desk: Desk, told: Told) -> None:
    session = desk.say("hello")
    while desk.engine.carry_on(session).how != "parked":
        pass
    data = json.loads(told("journal", "show", session, "--json").out)
    facts = desk.engine.reads.facts(session)
    assert [fact["type"] for fact in data["facts"]] == [type(fact).__name__ for fact in facts]
    assert [fact["place"] for fact in data["facts"]] == list(range(len(facts)))
    assert (data["epoch"], data["attempt"], data["status"]) == (desk.engine.view(session).epoch, 1, "idle")
    [step] = data["steps"]
    assert (step["turnId"], step["stepIndex"], step["attempts"], step["ended"]) == ("turn_0", 0, [1], "stop")
    assert step["modelMs"] <= step["totalMs"]
    text = told("journal", "show", session).out
    assert f"{session}  clerk, idle" in text
    assert "ModelAnswered" in text
    assert "turn_0  0" in text


@pytest.mark.acceptance
def test_the_attempts_of_a_step_whose_worker_died_are_shown(
    desk: Desk, told: Told, start: StartWorker, folder: Path
) -> None:
    worker = start("-c", "2", lease_seconds="0.5")
    session = desk.say(f"note {folder} 60")
    wait_for(lambda: ran(folder))
    worker.signal(signal.SIGKILL)
    worker.ends()
    wait_for(lambda: "lease ran out" in told("sessions", "show", session).out)
    start("-c", "2", lease_seconds="0.5")
    wait_for(lambda: len(ran(folder)) == 2)
    (folder / "go").touch()
    desk.wait(session)
    first, *_ = json.loads(told("journal", "show", session, "--json").out)["steps"]
    assert first["attempts"] == [1, 2]
    assert "1, 2" in told("journal", "show", session).out
