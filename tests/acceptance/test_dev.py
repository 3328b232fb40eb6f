"""`orchestrator dev` ends hard or in order, in the middle of a turn, and goes on where it was when it is started again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import local
from orchestrator.core.names import SessionId
from tests.acceptance.caller import Caller, Follower, is_whole
from tests.acceptance.system import System, alive, nothing_happened_twice, running
from tests.servers import Server, free_port, wait_for
from tests.tasks.workers import Process

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(180)]
DRAIN = 2.0


class FolderServer(Server):
    """The server that `dev` starts by itself."""

    @property
    def url(self) -> str:
        return f"local:{self.dir}"


class Dev:
    """`orchestrator dev` on a folder, again and again."""

    def __init__(self, system: System, data: Path) -> None:
        self.system, self.data = system, data
        self.port = free_port()
        self.caller = Caller(self.port)
        self.process: Process | None = None

    def start(self) -> Process:
        """Start it, and wait until it says that it is ready."""
        flags = ["--port", str(self.port), "--data", str(self.data), "--workers", "2", "--no-chat"]
        command = [sys.executable, "-m", "orchestrator.cli", "dev", "tests.acceptance.load:app", *flags]
        log = self.system.folder / f"dev-{time.monotonic_ns()}.log"
        env = {**self.system.environment, "ORCHESTRATOR_DRAIN_SECONDS": str(DRAIN)}
        self.process = Process(command, env, log).says(f"ready http://127.0.0.1:{self.port}", 40.0)
        return self.process

    def tree(self) -> list[int]:
        """Every process of it: itself, all below it, and the server, which is nobody's child."""
        assert self.process is not None
        found = [self.process.pid]
        for pid in found:
            tasks = Path(f"/proc/{pid}/task").glob("*/children")
            found += [int(child) for children in tasks for child in children.read_text().split()]
        assert len(found) >= 5, "itself, two workers, gunicorn and its worker"
        return [*found, int((self.data / "valkey.pid").read_text())]


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
