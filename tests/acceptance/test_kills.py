"""Workers die in the middle, again and again; queues are deleted; Redis restarts; one tool is poison. Nothing is lost or done twice."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from orchestrator import JournalAway
from orchestrator.core.names import SessionId
from tests.acceptance.system import (
    Every,
    System,
    in_time,
    nothing_happened_twice,
    running,
    said,
    seconds,
    streams_are_whole,
)
from tests.conftest import MakeServer
from tests.servers import wait_for

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path) -> Iterator[System]:
    with running(System(make_server("valkey", appendonly=True), tmp_path)) as made:
        yield made


def test_fifty_turns_survive_thirty_killed_workers(system: System) -> None:
    system.start_model("--call-seconds", "0.3")
    system.start_workers(3, "-c", "16")
    killed: list[int] = []

    def kill() -> None:
        for pid in system.owners():
            if pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return

    began = time.monotonic()
    killer = Every(2.0, kill)
    sessions = []
    for number in itertools.count():
        if len(killed) >= 30 and number >= 50:
            break
        assert time.monotonic() - began < 150, f"only {len(killed)} kills"
        sessions.append(system.begin(f"steps=5 tool=work #{number}"))
        time.sleep(0.4 if len(killed) >= 30 else 1.2)
    killer.stop()
    wait_for(lambda: system.all_quiet(sessions), 180 - (time.monotonic() - began), what="all turns to end")
    took = time.monotonic() - began

    assert len(killed) >= 30
    assert all(system.outcomes(session) == ["turn.completed"] for session in sessions)
    nothing_happened_twice(system, sessions)
    streams_are_whole(system, sessions)
    print(f"{len(sessions)} turns, {len(killed)} kills, {took:.0f} s")


def test_deleted_queues_cost_seconds_and_nothing_else(system: System) -> None:
    system.start_model()
    system.start_workers(3, "-c", "16")
    client = system.engine.journal.client
    sessions = [system.begin(f"steps=5 tool=work #{number}") for number in range(50)]
    wait_for(lambda: system.all_quiet(sessions), 60, what="the first turns to end")

    number = itertools.count(1000)

    def stall(_round: int) -> float:
        """The longest one while 200 wakes or more are destroyed."""
        destroyed = 0
        said_at: dict[str, float] = {}
        until = time.monotonic() + 170
        while destroyed < 200:
            assert time.monotonic() < until, f"only {destroyed} wakes destroyed"
            for session in [session for session in sessions if system.all_quiet([session])][:20]:
                text = f"steps=5 tool=work #{next(number)}"
                system.engine.deliver(session, said(text))
                said_at[text] = time.time()
            pipe = client.pipeline(transaction=True)
            pipe.llen("orc.default")
            pipe.delete("orc.default")
            destroyed += pipe.execute()[0]
            time.sleep(0.1)
        wait_for(lambda: system.all_quiet(sessions), 60, what="all turns to end")
        longest = longest_stall(system, sessions, said_at)
        print(f"{destroyed} wakes destroyed, {len(said_at)} turns, longest stall {longest:.2f} s")
        return longest

    assert in_time(stall, 2 + 0.25 + 1) <= 2 + 0.25 + 1
    assert all(set(system.outcomes(session)) == {"turn.completed"} for session in sessions)
    nothing_happened_twice(system, sessions)
    streams_are_whole(system, sessions)


def longest_stall(system: System, sessions: Sequence[SessionId], said_at: dict[str, float]) -> float:
    """The longest time in which a session had something to do and nobody did it: message to turn, step to step."""
    asked: dict[tuple[str, int], float] = {}
    for call in system.model_calls():
        asked.setdefault((call["user"], call["step"]), call["at"])
    longest = 0.0
    for session in sessions:
        text = ""
        for event in system.events(session):
            match event["type"]:
                case "message.received":
                    text = event["data"]["message"]
                    longest = max(longest, seconds(event) - said_at.get(text, seconds(event)))
                case "step.started" if text in said_at and (text, event["data"]["stepIndex"]) in asked:
                    longest = max(longest, asked[text, event["data"]["stepIndex"]] - seconds(event))
                case _:
                    pass
    return longest


def test_redis_restarts_twice_and_everything_goes_on(system: System) -> None:
    system.start_model("--call-seconds", "0.2")
    system.start_workers(3, "-c", "16")
    sessions: list[SessionId] = []
    for number in range(50):
        if number in (15, 35):
            system.server.restart()
        text = f"steps=5 tool=work #{number}"
        sessions.append(wait_for_one(partial(begin_or_none, system, text), 20, what="Redis to take a message"))
        time.sleep(0.1)
    wait_for(lambda: system.all_quiet(sessions), 120, what="all turns to end")

    assert all(system.outcomes(session) == ["turn.completed"] for session in sessions)
    nothing_happened_twice(system, sessions)
    streams_are_whole(system, sessions)


def wait_for_one(begin: Callable[[], SessionId | None], seconds: float, *, what: str) -> SessionId:
    session = wait_for(begin, seconds, what=what)
    assert session is not None
    return session


def begin_or_none(system: System, text: str) -> SessionId | None:
    try:
        return system.begin(text)
    except JournalAway:
        return None


def test_a_tool_that_segfaults_fails_its_own_turn_only(system: System) -> None:
    system.start_model()
    system.start_workers(3, "-c", "64")
    poison = system.begin("steps=2 tool=crash #poison")
    healthy = []
    for number in range(50):
        healthy.append(system.begin(f"steps=5 tool=work #{number}"))
        time.sleep(0.2)
    wait_for(lambda: system.all_quiet([*healthy, poison]), 180, what="all turns to end")

    assert system.outcomes(poison) == ["turn.failed"]
    failed = [event["data"] for event in system.events(poison) if event["type"] == "turn.failed"]
    assert failed[0]["code"] == "STEP_CRASHED"
    assert all(system.outcomes(session) == ["turn.completed"] for session in healthy)
    nothing_happened_twice(system, healthy)
    streams_are_whole(system, healthy)
