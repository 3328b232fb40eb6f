"""Cancels over HTTP at any moment of many turns at once: one end each, a history that any provider takes, and nothing that goes on."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.names import SessionId
from tests.acceptance.caller import Answer, Caller
from tests.acceptance.system import System, nothing_happened_twice, running, seconds, streams_are_whole
from tests.conftest import MakeServer
from tests.fake_openai import Call, FakeOpenAI, by_message
from tests.servers import wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(180)]
SESSIONS = 30


@dataclass
class Told:
    """A session whose turn was cancelled at some moment, and what the caller was told."""

    session: SessionId
    message: str
    answer: Answer

    @property
    def accepted(self) -> bool:
        """Whether there was a turn to stop."""
        assert self.answer.status == 202
        return bool(self.answer.body["outcome"] == "cancelling")


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(by_message, log=tmp_path / "model.jsonl", token_seconds=0.03, call_seconds=0.1) as made:
        yield made


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path, provider: FakeOpenAI) -> Iterator[System]:
    made = System(make_server("valkey", appendonly=True), tmp_path, env={"OPENAI_BASE_URL": provider.url})
    with running(made):
        yield made


def every_call_has_its_result(messages: list[dict[str, Any]]) -> None:
    """What providers demand of a request."""
    unanswered: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            unanswered.remove(message["tool_call_id"])
            continue
        assert not unanswered, f"no result of {unanswered} before {message}"
        if message["role"] == "assistant":
            unanswered = [call["id"] for call in message.get("tool_calls") or []]
            assert message.get("content") or unanswered, "an answer with nothing in it"
    assert not unanswered


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cancel_at_any_moment_ends_its_turn_once_and_the_session_goes_on(
    system: System, provider: FakeOpenAI, seed: int
) -> None:
    system.start_workers(2, "-c", "32")
    chance = random.Random(seed)
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP="tests.acceptance.load:app") as site:
        caller = Caller(site.port)
        # The first call of a process loads its libraries, and cancels are to come in the middle of calls.
        for session in [caller.create("#warm") for _ in range(12)]:
            assert caller.ended(session) == ["turn.completed"]

        def cancelled(number: int, delay: float) -> Told:
            message = f"steps=4 tool=work calls=2 tokens=30 #{seed}.{number}"
            session = caller.create(message)
            time.sleep(delay)  # the moment of the cancel
            return Told(SessionId(session), message, caller.post(f"/session/{session}/cancel", {}))

        with ThreadPoolExecutor(SESSIONS) as callers:
            delays = [chance.uniform(0, 3.5) for _ in range(SESSIONS)]
            told = list(callers.map(cancelled, range(SESSIONS), delays))
        sessions = [one.session for one in told]
        wait_for(lambda: system.all_quiet(sessions), 60, what="all turns to end")

        for one in told:
            expected = "turn.cancelled" if one.accepted else "turn.completed"
            assert one.accepted or one.answer.body["outcome"] == "nothing_runs"
            assert system.outcomes(one.session) == [expected], one
        closed = [gap for one in told if one.accepted for gap in calls_after(provider, one)]

        with ThreadPoolExecutor(SESSIONS) as callers:
            list(callers.map(lambda one: caller.say(one.session, f"steps=2 tool=work #next {one.message[-6:]}"), told))
        wait_for(lambda: system.all_quiet(sessions), 60, what="the next turns to end")
    assert all(system.outcomes(session)[1:] == ["turn.completed"] for session in sessions)
    for call in provider.calls:
        every_call_has_its_result(call.messages)
    asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in provider.calls:
        if "#next" in call.user:
            asked[call.user] = call.messages
    heard = [message["content"] for messages in asked.values() for message in messages if message["role"] == "user"]
    assert sum("tokens=30" in str(text) for text in heard) == SESSIONS, "what the person said before stays"
    nothing_happened_twice(system, sessions)
    streams_are_whole(system, sessions)

    ends = [types(system, one.session) for one in told if one.accepted]
    moments = Counter(kinds[kinds.index("turn.cancelled") - 1] for kinds in ends)
    print(
        f"seed {seed}: {sum(one.accepted for one in told)} of {SESSIONS} cancelled, after {dict(moments)};"
        f" {len(closed)} calls were open, closed after at most {max(closed, default=0):.2f} s"
    )
    assert sum(one.accepted for one in told) >= SESSIONS // 3
    assert max(closed, default=0) <= 1.0


def types(system: System, session: SessionId) -> list[str]:
    return [event["type"] for event in system.events(session)]


def calls_after(provider: FakeOpenAI, told: Told) -> list[float]:
    """For each call of a turn that ended after the cancel was sent: how long after it was accepted."""
    calls = [call for call in provider.calls if call.user == told.message and end(call) > told.answer.asked_at]
    return [max(end(call) - told.answer.came_at, 0.0) for call in calls]


def end(call: Call) -> float:
    ended = call.done_at or call.disconnected_at
    assert ended is not None, f"{call} is still open"
    return ended


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_cancel_waits_neither_for_a_silent_provider_nor_for_a_tool_that_cannot_be_stopped(
    system: System, provider: FakeOpenAI, pool: str
) -> None:
    system.start_worker("worker", "--pool", pool, "-c", "4")
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP="tests.acceptance.load:app") as site:
        caller = Caller(site.port)
        silent = caller.create("call_seconds=60 #silent")
        deaf = caller.create('steps=2 tool=linger args={"seconds":10} #deaf')
        wait_for(lambda: len(provider.calls) == 2 and system.tools(), 30, what="the provider and the tool to be busy")
        for session in (silent, deaf):
            told = caller.post(f"/session/{session}/cancel", {})
            assert told.body["outcome"] == "cancelling"
            assert caller.ended(session, 10) == ["turn.cancelled"]
            [at] = [seconds(event) for event in caller.events(session) if event["type"] == "turn.cancelled"]
            assert at - told.asked_at <= 1.0
        [call] = [call for call in provider.calls if call.user.endswith("#silent")]
        provider.wait_for(lambda: call.disconnected_at)
        assert [line["event"] for line in system.tools()] == ["start"], "the tool is still at it"

        for session in (silent, deaf):
            caller.say(session, "steps=2 tool=work #next")
            assert caller.ended(session) == ["turn.cancelled", "turn.completed"]
    for call in provider.calls:
        every_call_has_its_result(call.messages)
