"""Approvals with real processes: whatever dies while one waits, it is answered once, and its call runs once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.core.delivery import Response
from orchestrator.core.names import RequestId, SessionId
from tests.acceptance.caller import Caller
from tests.acceptance.system import System, nothing_happened_twice, running, streams_are_whole
from tests.conftest import MakeServer
from tests.servers import wait_for
from tests.web.support import Web

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.slow,
    pytest.mark.timeout(int(os.environ.get("ORCHESTRATOR_PARKED", "2000")) / 5 + 240),
]
ASKS = "steps=2 tool=sign"


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path) -> Iterator[System]:
    made = System(make_server("valkey", appendonly=True), tmp_path, lease=1.0)
    with running(made):
        made.start_model()
        yield made


def asked(system: System, session: SessionId) -> list[RequestId]:
    """The requests that the stream shows."""
    events = [event for event in system.events(session) if event["type"] == "input.requested"]
    return [RequestId(request["requestId"]) for event in events for request in event["data"]["requests"]]


def parked(system: System, session: SessionId) -> bool:
    return system.engine.view(session).status == "waiting_for_input"


def approve(system: System, session: SessionId, request: RequestId) -> None:
    system.engine.answer(session, [Response(request, "approve")])


def queued(system: System) -> int:
    """Wakes that wait for a worker."""
    return int(str(system.engine.journal.client.llen("orc.default")))


def signed(system: System) -> list[str]:
    return [str(line["key"]) for line in system.tools() if line["event"] == "start"]


def test_everything_is_stopped_while_an_approval_waits_and_the_same_turn_is_finished(system: System) -> None:
    worker = system.start_worker()
    session = system.begin(f"{ASKS} #stop")
    wait_for(lambda: parked(system, session), 30, what="the approval to be asked for")
    before = system.events(session)
    worker.send_signal(signal.SIGTERM)
    worker.wait(40)
    system.server.restart()
    system.start_worker("next")
    approve(system, session, asked(system, session)[0])
    wait_for(lambda: system.outcomes(session) == ["turn.completed"], 30, what="the turn to end")
    assert system.events(session)[: len(before)] == before
    assert len({event["data"].get("turnId", "turn_0") for event in system.events(session)}) == 1
    assert len(signed(system)) == 1
    nothing_happened_twice(system, [session])
    streams_are_whole(system, [session])


def test_a_worker_is_killed_right_after_the_request_is_seen_twenty_times(system: System) -> None:
    sessions = []
    for number in range(20):
        worker = system.start_worker(f"worker{number}")
        session = system.begin(f"{ASKS} #{number}")
        sessions.append(session)
        wait_for(lambda: asked(system, session), 30, what="the request to be seen")  # noqa: B023
        worker.kill()
        worker.wait(10)
    first = {session: asked(system, session) for session in sessions}
    system.start_worker("last")
    for session in sessions:
        assert asked(system, session) == first[session], "the same id is there"
        approve(system, session, first[session][0])
    wait_for(
        lambda: all(system.outcomes(session) == ["turn.completed"] for session in sessions), 60, what="all turns to end"
    )
    assert sorted(signed(system)) == sorted(f"{session}/turn_0/call_0_0_0" for session in sessions), "each once"
    streams_are_whole(system, sessions)


def test_of_twenty_five_approvals_and_five_refusals_over_two_web_processes_one_decides(system: System) -> None:
    system.start_workers(2, "-c", "16")
    session = system.begin(f"{ASKS} #thirty")
    wait_for(lambda: parked(system, session), 30, what="the approval to be asked for")
    [request] = asked(system, session)
    with ExitStack() as stack:
        target = {"target": "web:create_app()", "ORCHESTRATOR_APP": system.app}
        sites = [stack.enter_context(Web(system.server.url, **target)) for _ in range(2)]
        together = threading.Barrier(30)

        def answer(number: int) -> int:
            said = {"requestId": request, "optionId": "cancel" if number % 6 == 5 else "approve"}
            together.wait(20)
            return Caller(sites[number % 2].port).post(f"/session/{session}", {"inputResponses": [said]}).status

        with ThreadPoolExecutor(30) as pool:
            told = Counter(pool.map(answer, range(30)))
    wait_for(lambda: system.outcomes(session), 30, what="the turn to end")
    assert set(told) == {202}, "while the turn was open; a late one is accepted as well"
    wait_for(lambda: system.all_quiet([session]), 30, what="late answers")
    settled = [event for event in system.events(session) if event["type"] == "approval.settled"]
    assert len(settled) == 1, "one decision"
    assert len(signed(system)) == {"approved": 1, "cancelled": 0}[settled[0]["data"]["outcome"]]
    in_turn = [event for event in system.events(session) if event["type"] in ("turn.started", "turn.completed")]
    assert [event["type"] for event in in_turn[:2]] == ["turn.started", "turn.completed"], (
        "no other turn while it was open"
    )
    streams_are_whole(system, [session])


def test_thousands_of_approvals_wait_at_no_cost(system: System) -> None:
    worker = system.start_worker("worker", "-c", "64")
    warm = system.begin("steps=1 #warm")
    wait_for(lambda: system.outcomes(warm), 30, what="the first turn")

    def takes(number: int) -> float:
        begun = time.monotonic()
        session = system.begin(f"steps=1 #alone{number}")
        wait_for(lambda: system.outcomes(session), 30, what="a turn")
        return time.monotonic() - begun

    alone = sorted(takes(number) for number in range(20))[10]
    sessions = [system.begin(f"{ASKS} #{number}") for number in range(COUNT)]
    wait_for(
        lambda: all(parked(system, session) for session in sessions[-50:]), 100 + COUNT / 10, what="the last to wait"
    )
    wait_for(lambda: not queued(system), 60, what="an empty queue")
    before, at = cpu_seconds(worker.pid), time.monotonic()
    time.sleep(5)  # a rate is measured
    share = (cpu_seconds(worker.pid) - before) / (time.monotonic() - at)
    beside = sorted(takes(100 + number) for number in range(20))[10]
    print(
        f"{COUNT} approvals wait: worker {share:.1%} of a core; a turn {beside * 1000:.0f} ms, alone {alone * 1000:.0f} ms"
    )
    assert not queued(system)
    assert share < 0.05
    assert beside < 2 * alone + 0.02


COUNT = int(os.environ.get("ORCHESTRATOR_PARKED", "2000"))


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
