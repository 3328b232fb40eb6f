"""Messages over HTTP at any moment of many turns at once: none is lost or doubled, and every request is one that a provider takes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.core.names import SessionId
from tests.acceptance.caller import Caller
from tests.acceptance.system import System, nothing_happened_twice, running, streams_are_whole
from tests.acceptance.test_cancel_everywhere import end, every_call_has_its_result
from tests.conftest import MakeServer
from tests.fake_openai import FakeOpenAI, by_message
from tests.servers import wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(180)]
SESSIONS = 30


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(by_message, log=tmp_path / "model.jsonl", token_seconds=0.02, call_seconds=0.2) as made:
        yield made


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path, provider: FakeOpenAI) -> Iterator[System]:
    made = System(make_server("valkey", appendonly=True), tmp_path, env={"OPENAI_BASE_URL": provider.url})
    with running(made):
        yield made


def test_messages_at_any_moment_are_taken_in_once_and_leave_a_history_that_any_provider_takes(
    system: System, provider: FakeOpenAI
) -> None:
    system.start_workers(2, "-c", "32")
    chance = random.Random(3)
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP="tests.acceptance.load:app") as site:
        caller = Caller(site.port)

        def talk(number: int) -> tuple[SessionId, list[str]]:
            sent = [f"steps=3 tool=work calls=2 tokens=20 #{number}.0"]
            session = caller.create(sent[0])
            for later in range(1, 4):
                time.sleep(chance.uniform(0, 1.2))  # the moment of the message
                sent.append(f"steps=2 tool=work tokens=10 #{number}.{later}")
                caller.say(session, sent[-1])
            return SessionId(session), sent

        with ThreadPoolExecutor(SESSIONS) as callers:
            told = list(callers.map(talk, range(SESSIONS)))
        sessions = [session for session, _ in told]
        wait_for(lambda: system.all_quiet(sessions), 90, what="all turns to end")
        joined = 0
        for session, sent in told:
            events = caller.events(session)
            heard = [event["data"]["message"] for event in events if event["type"] == "message.received"]
            assert heard == sent, "each of them once, in their order"
            turns = sum(event["type"] == "turn.started" for event in events)
            assert caller.outcomes(session) == ["turn.completed"] * turns
            joined += len(sent) - turns
    for call in provider.calls:
        every_call_has_its_result(call.messages)
    nothing_happened_twice(system, sessions)
    streams_are_whole(system, sessions)
    print(f"{SESSIONS} sessions with 4 messages each: {joined} joined a turn that was open")
    assert joined >= SESSIONS


def test_a_message_closes_a_call_that_has_said_nothing_within_a_second(system: System, provider: FakeOpenAI) -> None:
    system.start_workers(2, "-c", "32")
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP="tests.acceptance.load:app") as site:
        caller = Caller(site.port)
        warm = [caller.create("#warm") for _ in range(8)]
        wait_for(
            lambda: system.all_quiet([SessionId(one) for one in warm]), 60, what="the first calls of the processes"
        )

        def steer(number: int) -> float:
            silent = f"call_seconds=60 #silent{number}"
            session = caller.create(silent)
            wait_for(lambda: any(call.user == silent for call in provider.calls), 30, what="the call to be open")
            said_at = time.time()
            caller.say(session, f"instead #{number}")
            [call] = [call for call in provider.calls if call.user == silent]
            wait_for(lambda: call.disconnected_at, 30, what="the provider's connection to be closed")
            assert caller.ended(session) == ["turn.completed"]
            types = caller.types(session)
            assert types.count("turn.started") == 1
            assert types.count("step.completed") == 2
            return end(call) - said_at

        with ThreadPoolExecutor(10) as callers:
            gaps = sorted(callers.map(steer, range(40)))
    print(f"message accepted until the provider's connection was closed: p50 {gaps[20]:.3f} s, max {gaps[-1]:.3f} s")
    assert gaps[-1] <= 1.0
