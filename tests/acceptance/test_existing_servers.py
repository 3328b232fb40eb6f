"""The README's commands, letter by letter, against a Redis or Valkey that was there before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.caller import Caller, Follower, is_whole
from tests.conftest import MakeServer
from tests.servers import free_port, wait_for
from tests.tasks.workers import ROOT, Process

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(180)]

BIN = Path(sys.executable).parent
QUESTION = "Where are B-1006 and B-1008? It is about the swordfish."


class Shell:
    """A terminal in the folder of the project, with the variables that the README exports."""

    def __init__(self, folder: Path, **exported: str) -> None:
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("ORCHESTRATOR_", "CELERY_", "GUNICORN_", "PYTHON"))
        }
        self.folder = folder
        self.exported = {**kept, "ORCHESTRATOR_APP": "examples.support:app", "PYTHONUNBUFFERED": "1", **exported}
        self.started: list[Process] = []

    def start(self, name: str, *arguments: str, **variables: str) -> Process:
        """A command that goes on. Programs are those of this environment, as its activation would find them."""
        command = [str(BIN / name), *arguments]
        log = self.folder / f"{name}-{len(self.started)}.log"
        self.started.append(Process(command, {**self.exported, **variables}, log))
        return self.started[-1]

    def worker(self, port: int) -> Process:
        """The README's worker, which says nothing when it is ready; the web on `port` knows."""
        worker = self.start("celery", "-A", "tasks", "worker", "--pool", "threads", "-c", "32", "-E")
        wait_for(lambda: Caller(port).get("/health").body["deployments"], 40, what=f"the worker:\n{worker.log}")
        return worker

    def web(self, **variables: str) -> int:
        """The README's web; its port."""
        port = free_port()
        gunicorn = self.start("gunicorn", "-c", "python:web.gunicorn", "web:create_app()", PORT=str(port), **variables)
        gunicorn.says("Booting worker", 20)
        wait_for(lambda: answers(port), 20, what=f"the web:\n{gunicorn.log}")
        return port

    def new_key(self, name: str) -> str:
        """`orchestrator keys new`, and its entry is exported as it says."""
        said = subprocess.run(
            [str(BIN / "orchestrator"), "keys", "new", name],
            env=self.exported,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        entry = next(word for word in said.stderr.split() if word.startswith("ORCHESTRATOR_API_KEYS="))
        assert entry.startswith(f"ORCHESTRATOR_API_KEYS={name}=sha256:")
        self.exported["ORCHESTRATOR_API_KEYS"] = entry.partition("=")[2]
        return said.stdout.strip()

    def close(self) -> None:
        for process in reversed(self.started):
            if process.running:
                process.signal()
        for process in reversed(self.started):
            if process.running:
                try:
                    process.ends(20)
                finally:
                    process.stop()


def answers(port: int) -> bool:
    try:
        return Caller(port).get("/health").status == 200
    except OSError:
        return False


@pytest.fixture(params=["redis7", "valkey", "redis7, db 5", "valkey, broker in db 4", "redis7, broker on valkey"])
def shell(request: pytest.FixtureRequest, make_server: MakeServer, tmp_path: Path) -> Iterator[Shell]:
    """A shell whose journal and broker are where the parameter says."""
    kind, _, more = str(request.param).partition(", ")
    settings: dict[str, Any] = {"appendonly": True}  # and noeviction, which is this fixture's own default
    port = make_server(kind, **settings).port
    exported = {"ORCHESTRATOR_URL": f"redis://127.0.0.1:{port}/{5 if more == 'db 5' else 0}"}
    if more == "broker in db 4":
        exported["ORCHESTRATOR_BROKER_URL"] = f"redis://127.0.0.1:{port}/4"
    elif more == "broker on valkey":
        exported["ORCHESTRATOR_BROKER_URL"] = f"redis://127.0.0.1:{make_server('valkey').port}/0"
    made = Shell(tmp_path, **exported)
    try:
        yield made
    finally:
        made.close()


def test_the_commands_of_the_readme_serve_a_conversation_for_who_has_a_key(shell: Shell) -> None:
    key = shell.new_key("website")
    port = shell.web(BIND="127.0.0.1")
    worker = shell.worker(port)
    for stranger in (Caller(port), Caller(port, "no such key"), Caller(port, key[:-1])):
        for prefix in ("/v1", "/eve/v1"):
            stranger.prefix = prefix
            assert stranger.get("/health").status == 200
            for method, path in (
                ("POST", "/session"),
                ("POST", "/session/ses_x"),
                ("POST", "/session/ses_x/cancel"),
                ("GET", "/session/ses_x/stream"),
            ):
                assert stranger.ask(method, path, {"message": "hello"}).status == 401, (method, prefix, path)

    for prefix in ("/v1", "/eve/v1"):
        caller = Caller(port, key, prefix)
        session = caller.create(QUESTION)
        lines, sse = Follower(session, "ndjson"), Follower(session, "sse")
        with caller.following(lines), caller.following(sse):
            lines.until("session.waiting")
            caller.say(session, "Thank you, I am Marta Jensen.")
            for follower in (lines, sse):
                follower.until("session.waiting", 2)

            told = caller.post(f"/session/{session}/cancel", {})
            assert (told.status, told.body.get("outcome", "nothing_runs")) == (202, "nothing_runs")

            # Nobody works while it is stopped, so the cancel comes before the end of the turn.
            worker.signal(signal.SIGSTOP)
            caller.say(session, "And B-1014?")
            told = caller.post(f"/session/{session}/cancel", {})
            assert (told.status, told.body["status"]) == (202, "accepted")
            worker.signal(signal.SIGCONT)
            for follower in (lines, sse):
                follower.until("session.waiting", 3)
        assert lines.events == sse.events == caller.events(session)
        is_whole(lines.events, turns=3)
        assert caller.outcomes(session) == ["turn.completed", "turn.completed", "turn.cancelled"]
        final = [event["data"]["message"] for event in lines.events if event["type"] == "message.completed"]
        assert any(text.startswith("Here is when they arrive:") for text in final)
    assert "control socket" not in "".join(process.log for process in shell.started).lower()
    assert "Traceback" not in "".join(process.log for process in shell.started)


def test_flower_started_as_the_readme_says_lists_tasks_by_session_and_step(
    make_server: MakeServer, tmp_path: Path
) -> None:
    pytest.importorskip("flower")
    shell = Shell(tmp_path, ORCHESTRATOR_URL=f"redis://127.0.0.1:{make_server('redis7', appendonly=True).port}/0")
    try:
        port = free_port()
        flower = shell.start("celery", "-A", "tasks", "flower", f"--port={port}", FLOWER_UNAUTHENTICATED_API="true")

        def asked(path: str) -> Any:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    return json.load(answer)
            except OSError:
                return None

        caller = Caller(shell.web(ORCHESTRATOR_ALLOW_ANONYMOUS="loopback"))
        shell.worker(caller.port)
        wait_for(lambda: asked("/api/workers?refresh=1"), 40, what=f"Flower:\n{flower.log}")
        session = caller.create(QUESTION)
        assert caller.ended(session) == ["turn.completed"]

        def finished() -> list[dict[str, Any]]:
            tasks = (asked("/api/tasks") or {}).values()
            return [task for task in tasks if task["state"] == "SUCCESS"]

        wait_for(lambda: len(finished()) >= 3, 20, what="Flower to see the tasks of three steps")
        tasks = finished()
        assert {task["name"] for task in tasks} == {"orchestrator.resume", "orchestrator.step"}
        shown = {task["args"] for task in tasks}
        assert {f"{session}/turn_0/1", f"{session}/turn_0/2"} <= shown, shown
        assert "swordfish" not in json.dumps(asked("/api/tasks"))
    finally:
        shell.close()
