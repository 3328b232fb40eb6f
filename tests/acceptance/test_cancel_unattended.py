"""A cancel is stored like a message: it may be said while nobody is there to obey it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.names import SessionId
from tests.acceptance.caller import Caller
from tests.acceptance.sites import below
from tests.acceptance.system import System, alive, running, streams_are_whole
from tests.conftest import MakeServer
from tests.servers import wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path) -> Iterator[System]:
    with running(System(make_server("valkey", appendonly=True), tmp_path)) as made:
        yield made


def test_a_cancel_taken_while_no_worker_runs_is_obeyed_when_they_start(system: System) -> None:
    system.start_model()
    supervisor = system.start_workers(2, "-c", "16")
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP=system.app) as site:
        caller = Caller(site.port)
        in_tool = caller.create('steps=2 tool=linger args={"seconds":20} #in-tool')
        in_model = caller.create("call_seconds=20 #in-model")
        wait_for(lambda: len(system.tools()) == 1 and len(system.model_calls()) == 2, 20, what="both to be at work")
        before = below(supervisor.pid)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        supervisor.wait(10)
        wait_for(lambda: not any(map(alive, before)), 10, what="all workers to be gone")

        for session in (in_tool, in_model):
            answer = caller.post(f"/session/{session}/cancel", {})
            assert (answer.status, answer.body["status"]) == (202, "accepted")
        caller.say(in_tool, "#afterwards")
        assert not caller.outcomes(in_tool), "nobody is there"

        system.run("orchestrator.cli", "worker", "--processes", "2", "-c", "16", name="again")
        assert caller.ended(in_tool, 40) == ["turn.cancelled", "turn.completed"]
        assert caller.ended(in_model, 40) == ["turn.cancelled"]
    assert [line["event"] for line in system.tools()] == ["start"], "the tool was started again"
    assert sum("#in-model" in call["user"] for call in system.model_calls()) == 1
    streams_are_whole(system, [SessionId(in_tool), SessionId(in_model)])
