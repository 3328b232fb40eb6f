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
from tests.acceptance.system import System, nothing_happened_twice, running, streams_are_whole
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

        def cancelled(number: int, delay: float) -> Told:
            message = f"steps=4 tool=work calls=2 tokens=30 #{seed}.{number}"
            session = caller.create(message)
            time.sleep(delay)  # the moment of the cancel
            return Told(SessionId(session), message, caller.post(f"/session/{session}/cancel", {}))

        with ThreadPoolExecutor(SESSIONS) as callers:
            delays = [chance.uniform(0, 5) for _ in range(SESSIONS)]
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
    assert sum(one.accepted for one in told) >= SESSIONS // 2
    assert max(closed, default=0) <= 1.0


def types(system: System, session: SessionId) -> list[str]:
    return [event["type"] for event in system.events(session)]


def calls_after(provider: FakeOpenAI, told: Told) -> list[float]:
    """How long the provider was busy with a turn after its cancel was sent: once for each call that was open or began."""
    at = told.answer.asked_at
    return [max(end(call) - at, 0.0) for call in provider.calls if call.user == told.message and end(call) > at]


def end(call: Call) -> float:
    ended = call.done_at or call.disconnected_at
    assert ended is not None, f"{call} is still open"
    return ended
