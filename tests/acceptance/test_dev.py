"""`orchestrator dev` ends hard or in order, in the middle of a turn, and goes on where it was when it is started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import local
from orchestrator.core.names import SessionId
from tests.acceptance.caller import Follower, is_whole
from tests.acceptance.dev import DRAIN, Dev, FolderServer
from tests.acceptance.system import System, alive, nothing_happened_twice, running
from tests.servers import wait_for

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    data = tmp_path / "data"
    data.mkdir()
    with running(System(FolderServer("valkey", data), tmp_path)) as system:
        system.start_model("--token-seconds", "0.02", "--call-seconds", "0.1")
        made = Dev(system, data)
        try:
            yield made
        finally:
            if made.process is not None:
                made.process.stop()
            local.stop(data)


@pytest.mark.parametrize("seen", [2, 5])
def test_dev_killed_with_all_its_processes_goes_on_and_so_do_its_readers(dev: Dev, seen: int) -> None:
    dev.start()
    session = dev.caller.create("steps=6 tool=work calls=2 tokens=30")
    lines, sse = Follower(session, "ndjson"), Follower(session, "sse")
    with dev.caller.following(lines), dev.caller.following(sse):
        for reader in (lines, sse):
            reader.until("action.result", seen)
        before = dev.tree()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: lines.broken and sse.broken, what="both readers to lose their connection")
    wait_for(lambda: not any(map(alive, before)), what="every process to be gone")
    assert "turn.completed" not in [event["type"] for event in lines.events]

    dev.start()
    with dev.caller.following(lines), dev.caller.following(sse):
        for reader in (lines, sse):
            reader.until("session.waiting")
    assert lines.events == sse.events == dev.caller.events(session)
    assert min(*lines.cursors[1:], *sse.cursors[1:]) > seen
    is_whole(lines.events)
    assert dev.caller.outcomes(session) == ["turn.completed"]
    assert sum(event["type"] == "action.result" for event in lines.events) == 10
    nothing_happened_twice(dev.system, [SessionId(session)])


def test_ctrl_c_ends_every_process_in_time_and_the_turn_goes_on_at_the_next_start(dev: Dev) -> None:
    process = dev.start()
    session = dev.caller.create('steps=3 tool=linger args={"seconds":4} #ctrl-c')
    follower = Follower(session, "ndjson")
    with dev.caller.following(follower):
        follower.until("actions.requested")
        wait_for(lambda: [line for line in dev.system.tools() if line["event"] == "start"], what="the tool to run")
        before = dev.tree()
        told = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
        assert process.ends(DRAIN + 10) == 0
        print(f"ended after {time.monotonic() - told:.1f} s, drain {DRAIN:g} s")
    assert not [pid for pid in before if alive(pid)], "an orphan"

    dev.start()
    with dev.caller.following(follower):
        follower.until("session.waiting", timeout=40)
    assert follower.events == dev.caller.events(session)
    is_whole(follower.events)
    assert dev.caller.outcomes(session) == ["turn.completed"]
    nothing_happened_twice(dev.system, [SessionId(session)])
