"""A deploy under living conversations: the next turn is the new code's, with the history and the state of the old."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import Engine, Settings
from orchestrator.core.names import SessionId
from tests.acceptance import redeploy
from tests.acceptance.system import System, nothing_happened_twice, running, said, streams_are_whole
from tests.conftest import MakeServer
from tests.fake_openai import Call, FakeOpenAI, by_message
from tests.servers import wait_for

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(180)]
OLD = {"ORCHESTRATOR_APP": "tests.acceptance.redeploy:before"}
NEW = {"ORCHESTRATOR_APP": "tests.acceptance.redeploy:after"}


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(by_message, log=tmp_path / "model.jsonl") as made:
        yield made


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path, provider: FakeOpenAI) -> Iterator[System]:
    made = System(make_server("valkey", appendonly=True), tmp_path, env={"OPENAI_BASE_URL": provider.url})
    made.engine = Engine(redeploy.before, Settings(url=made.server.url))
    with running(made):
        yield made


def instructions(call: Call) -> str:
    return "\n".join(str(message["content"]) for message in call.messages if message["role"] in ("system", "developer"))


def offered(call: Call) -> set[str]:
    return {tool["function"]["name"] for tool in call.body["tools"]}


def results(call: Call) -> list[str]:
    return [str(message["content"]) for message in call.messages if message["role"] == "tool"]


def ended(system: System, session: SessionId, turns: int) -> list[str]:
    wait_for(lambda: len(system.outcomes(session)) == turns and system.all_quiet([session]), 40, what=f"{turns} turns")
    return system.outcomes(session)


def test_the_next_turn_is_the_new_codes_with_the_history_and_the_state_of_the_old(
    system: System, provider: FakeOpenAI
) -> None:
    old = system.start_worker("old", **OLD)
    session = system.begin("steps=2 tool=count #one")
    assert ended(system, session, 1) == ["turn.completed"]
    first = provider.calls[-1]
    assert (first.body["model"], offered(first), results(first)) == (
        "gpt-old",
        {"count", "vanishing", "changing"},
        ["1"],
    )
    assert instructions(first) == "You are the old one."
    assert "Written at the head by the old one." in json.dumps(first.messages)

    old.send_signal(signal.SIGTERM)
    assert old.wait(40) == 0
    system.engine.deliver(session, said("steps=2 tool=count #two"))
    system.start_worker("new", **NEW)
    assert ended(system, session, 2) == ["turn.completed", "turn.completed"]

    second = provider.calls[-1]
    assert (second.body["model"], offered(second), results(second)) == (
        "gpt-new",
        {"count", "fresh", "changing"},
        ["1", "2"],
    )
    assert instructions(second) == "You are the new one."
    assert second.messages[1 : len(first.messages)] == first.messages[1:], "the history stays as it was"
    told = json.dumps(second.messages)
    assert told.count("Written at the head by the old one.") == 1
    assert "by the new one." not in told
    assert "done after 2 steps: steps=2 tool=count #one" in told
    nothing_happened_twice(system, [session])
    streams_are_whole(system, [session])


@pytest.mark.parametrize(
    ("name", "said"), [("vanishing", "There is no tool 'vanishing' any more"), ("changing", "new: Field required")]
)
def test_a_call_of_a_killed_worker_that_the_new_code_cannot_take_is_told_to_the_model_and_the_turn_ends(
    system: System, provider: FakeOpenAI, name: str, said: str
) -> None:
    old = system.start_worker("old", **OLD)
    session = system.begin(f"steps=2 tool={name} #gone")
    wait_for(system.tools, 20, what="the tool to run")
    os.kill(old.pid, signal.SIGKILL)
    old.wait()
    system.start_worker("new", **NEW)
    assert ended(system, session, 1) == ["turn.completed"]

    last = provider.calls[-1]
    assert last.body["model"] == "gpt-new"
    assert instructions(last) == "You are the new one."
    [told] = results(last)
    print(f"the model reads: {told}")
    assert said in told
    shown = [event["data"] for event in system.events(session) if event["type"] == "action.result"]
    assert [(one["status"], one["result"]["isError"]) for one in shown] == [("failed", True)]
    assert len(system.tools()) == 1, "the tool ran again"
    streams_are_whole(system, [session])
