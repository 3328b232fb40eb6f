"""docs/tutorial.md, step by step as it is written: its files, its commands, and what it says will be seen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator import local
from tests.servers import Server, free_port, wait_for
from tests.tasks.workers import ROOT, Process

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
STEPS = re.split(r"^## \d\. ", PAGE, flags=re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS_ON = ("orchestrator dev", "orchestrator worker", "orchestrator web")
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


def blocks(step: int) -> list[tuple[str, str]]:
    return BLOCK.findall(STEPS[step])


class Walk:
    """Somebody who does what the page says, in a folder of their own and with two terminals."""

    def __init__(self, place: Path) -> None:
        self.place, self.folder, self.port = place, place, free_port()
        self.processes: list[Process] = []
        tools = place / "bin"
        tools.mkdir()
        for name, program in (("orchestrator", "-m orchestrator.cli"), ("python", "")):
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
            (tools / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        self.env = {
            **kept,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PORT": str(self.port),
            "ORCHESTRATOR_LEASE_SECONDS": "1",
        }
        self.said: dict[str, str] = {}
        self.seen: dict[str, str] = {}

    def reads(self, step: int) -> str:
        """Do a step: write its files, run its commands in their order. What the last one said."""
        told = ""
        for language, text in blocks(step):
            if language == "python":
                self.write_file(text)
            for line in text.splitlines() if language == "sh" else ():
                told = self.run(line)
        return told

    def write(self, step: int) -> None:
        for language, text in blocks(step):
            if language == "python":
                self.write_file(text)

    def write_file(self, text: str) -> None:
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None, "a file without its name"
        (self.folder / name[1]).write_text(text.replace("localhost:8000", f"localhost:{self.port}"))

    def run(self, line: str) -> str:
        """One line of a terminal."""
        name = line.removeprefix("export ").partition("=")[0]
        if line.startswith("export "):
            self.env[name] = self.said.get(name) or self.bash(f'printf %s "$({line} && printf %s "${name}")"')
            assert name not in ("SESSION", "REQUEST", "KEY") or self.said.get(name), f"nothing has said {name}"
        elif line.startswith("cd "):
            self.folder = self.folder / line.removeprefix("cd ")
        elif line.startswith(RUNS_ON):
            self.start(line)
        elif line.startswith("cat "):
            file = self.folder / line.removeprefix("cat ")
            seen = self.seen.get(file.name, "")
            wait_for(lambda: file.exists() and file.read_text() != seen, 20, what=line)
            self.seen[file.name] = file.read_text()
            return self.bash(line)
        else:
            if line.startswith("orchestrator sessions follow"):
                self.rests()
                line += " --to-end"
            if line.startswith("orchestrator sessions show"):
                self.rests()
            if line.startswith("curl") and "/$SESSION" in line:  # nobody types so fast that the turn has not begun
                wait_for(lambda: self.view()["events"], 20, what="the turn to begin")
            return self.notes(self.bash(line.replace("localhost:8000", f"localhost:{self.port}")))
        return ""

    def notes(self, told: str) -> str:
        """Remember what a person would copy."""
        for name, pattern in {
            "SESSION": r'"sessionId":"(ses_\w+)"',
            "REQUEST": r"^ +(req_\w+)",
            "KEY": r"^(orc_\S+)$",
            "ORCHESTRATOR_API_KEYS": r"ORCHESTRATOR_API_KEYS=(\S+)",
        }.items():
            if found := re.search(pattern, told, re.MULTILINE):
                self.said[name] = found[1]
        return told

    def bash(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line], env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if line.startswith("orchestrator") else "")

    def start(self, line: str) -> None:
        log = self.place / f"{time.monotonic_ns()}.log"
        port = f" --port {self.port}" if line.startswith("orchestrator dev") else ""
        process = Process(["bash", "-c", f"exec {line}{port}"], self.env, log, self.folder)
        self.processes.append(process)
        if line.startswith("orchestrator dev"):
            process.says(f"ready http://127.0.0.1:{self.port}", 60)
        if line.startswith("orchestrator web"):
            process.says("Booting worker", 60)

    def serves(self, step: int) -> None:
        """The code of a step, in a server that is started anew."""
        self.stop()
        for earlier in range(1, step + 1):
            self.write(earlier)
        self.start("orchestrator dev")

    def stop(self) -> None:
        for process in self.processes:
            if process.running:
                process.signal()
                process.ends(30)
        self.processes.clear()

    def view(self) -> Mapping[str, Any]:
        session = self.env["SESSION"]
        headers = {"authorization": f"Bearer {self.env['KEY']}"} if "KEY" in self.env else {}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/session/{session}", headers=headers)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found: Mapping[str, Any] = json.load(answer)
        return found

    def rests(self) -> None:
        """Wait until the session has nothing more to do."""
        wait_for(lambda: self.view()["status"] in ("idle", "waiting_for_input"), 60, what="the turn to end")


def events(told: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.splitlines() if line.startswith("{")]


def types(told: str) -> list[str]:
    return [event["type"] for event in events(told)]


def replies(told: str) -> list[str]:
    return [
        event["data"]["message"]
        for event in events(told)
        if event["type"] == "message.completed" and event["data"]["finishReason"] != "tool-calls"
    ]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    made = Walk(tmp_path_factory.mktemp("tutorial"))
    (first, text), *_ = blocks(1)
    assert first == "sh"
    for line in text.splitlines():
        made.run(line)
    yield made
    made.stop()
    local.stop(made.folder / ".orchestrator")


def test_there_are_eight_steps_and_every_file_has_a_name() -> None:
    assert len(STEPS) == 9
    for step in range(1, 9):
        assert all(re.match(r"# \w+\.py\n", text) for language, text in blocks(step) if language == "python")


def test_step_1_what_init_writes_runs_and_answers(walk: Walk) -> None:
    told = ""
    for _, text in [one for one in blocks(1) if one[0] == "sh"][1:]:
        for line in text.splitlines():
            told = walk.run(line)
    assert "Walden is on shelf B-7, and I have put it aside for you." in replies(told)


def test_step_2_a_tool_is_called(walk: Walk) -> None:
    walk.serves(2)
    told = walk.reads(2)
    assert {"actions.requested", "action.result", "message.completed"} <= set(types(told))
    assert replies(told) == ["B-1014 is on its way"]


def test_step_3_state_counts_across_messages_and_restarts(walk: Walk) -> None:
    walk.serves(3)
    assert "order 2 that we look at" in replies(walk.reads(3))[-1]
    walk.serves(3)
    walk.run(next(line for _, text in blocks(3) for line in text.splitlines() if "/$SESSION" in line))
    assert "order 3 that we look at" in replies(walk.run("orchestrator sessions follow $SESSION"))[-1]


def test_step_4_a_killed_worker_costs_one_more_call_under_the_same_key(walk: Walk) -> None:
    walk.serves(4)
    couriers = walk.reads(4).splitlines()
    assert [line.partition(",")[0] for line in couriers] == ["attempt 1", "attempt 2"]
    assert len({line.partition(", key ")[2] for line in couriers}) == 1
    told = walk.run("orchestrator sessions follow $SESSION")
    assert types(told).count("actions.requested") == types(told).count("action.result") == 1
    assert "A courier is on the way for B-1006." in replies(told)


def test_step_5_a_person_approves_and_the_same_turn_goes_on(walk: Walk) -> None:
    walk.serves(5)
    told = walk.reads(5)
    assert replies(told) == ["14.99 EUR were paid back for B-1006."]
    assert types(told).count("turn.started") == 1
    assert "Pay 14.99 EUR for B-1006?" in told


def test_step_6_one_message_joins_the_turn_and_another_waits(walk: Walk) -> None:
    walk.serves(3)
    told = walk.reads(6)
    heard = [event for event in events(told) if event["type"] == "message.received"]
    assert [(event["data"]["message"], event["data"]["turnId"]) for event in heard] == [
        ("Where is B-1014? Tell me slowly.", "turn_0"),
        ("I mean B-1006, just as slowly.", "turn_0"),
        ("And B-1014?", "turn_1"),
    ]
    assert [reply.partition(":")[0] for reply in replies(told)] == ["B-1006 is lost", "B-1014 is on its way"]


def test_step_7_two_webhooks_are_one_session_and_both_answers_are_posted(walk: Walk) -> None:
    walk.run(next(text for language, text in blocks(7) if text.startswith("export TICKETS")).strip())
    walk.serves(7)
    assert walk.reads(7).splitlines() == ["ticket-17: B-1014 is on its way", "ticket-17: B-1006 is lost"]


def test_step_8_worker_and_web_serve_callers_with_a_key(walk: Walk, valkey: Server) -> None:
    walk.stop()
    walk.write(3)
    walk.said["ORCHESTRATOR_URL"] = valkey.url
    walk.reads(8)
    walk.env["SESSION"] = walk.said["SESSION"]
    walk.rests()
    assert "order 1 that we look at" in replies(walk.run("orchestrator sessions follow $SESSION"))[0]
