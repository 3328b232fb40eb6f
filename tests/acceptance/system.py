"""A whole system for one test: server, provider, supervised workers; what it did is read from logs that are not Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator import Engine, Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import SessionId
from orchestrator.loader import load_app
from tests.servers import Server, free_port, wait_for

ROOT = Path(__file__).parent.parent.parent
Event = dict[str, Any]


def said(text: str) -> Body:
    """A message."""
    return Body((Part("text", text),))


def seconds(event: Event) -> float:
    """When an event was stamped, as seconds since the epoch."""
    return datetime.fromisoformat(event["meta"]["at"]).timestamp()


@dataclass
class System:
    """Processes of one test."""

    server: Server
    folder: Path
    lease: float = 2.0
    env: dict[str, str] = field(default_factory=dict)
    app: str = "tests.acceptance.load:app"
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tool_log = self.folder / "tools.jsonl"
        self.model_log = self.folder / "model.jsonl"
        self.tool_log.touch()
        self.model_port = free_port()
        settings = Settings(url=self.server.url, app=self.app, lease_seconds=self.lease)
        self.engine = Engine(load_app(self.app), settings)
        self.environment = {
            **os.environ,
            "ORCHESTRATOR_APP": self.app,
            "ORCHESTRATOR_URL": self.server.url,
            "ORCHESTRATOR_LEASE_SECONDS": str(self.lease),
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.model_port}/v1",
            "OPENAI_API_KEY": "x",
            "LOAD_LOG": str(self.tool_log),
            **self.env,
        }

    # Processes --------------------------------------------------------------------------------------------------------

    def run(self, *command: str, name: str, **extra: str) -> subprocess.Popen[bytes]:
        """Start a process of ours; it ends with the test."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**self.environment, **extra},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )
        self.started.append(process)
        return process

    def start_model(self, *flags: str) -> None:
        """The stand-in provider."""
        self.run("tests.fake_openai", str(self.model_port), str(self.model_log), *flags, name="model")
        wait_for(lambda: b"ready" in (self.folder / "model.log").read_bytes(), 20, what="the provider")

    def start_worker(self, name: str = "worker", *flags: str, **extra: str) -> subprocess.Popen[bytes]:
        """One worker process, and wait until it listens."""
        before = self.known()
        process = self.run(*("celery", "-A", "tasks", "worker", "-n", f"{name}@test", *flags), name=name, **extra)
        wait_for(lambda: self.known() - before, 40, what=f"{name} to listen")
        return process

    def start_workers(self, count: int, *flags: str) -> subprocess.Popen[bytes]:
        """So many worker processes under one supervisor."""
        process = self.run("orchestrator.cli", "worker", "--processes", str(count), *flags, name="supervisor")
        wait_for(lambda: self.listening() >= count, 60, what="the workers to listen")
        return process

    def listening(self) -> int:
        """How many workers have beaten lately."""
        found = self.engine.reads.deployments().get("default")
        return int(str(found["workers"])) if found else 0

    def known(self) -> set[str]:
        """The names of all workers that have ever beaten and did not say goodbye."""
        journal = self.engine.journal
        return set(map(str, journal.client.hkeys(f"{journal.prefix}:workers")))

    def stop(self) -> None:
        """End everything by pid."""
        for process in reversed(self.started):
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.send_signal(signal.SIGTERM)
        until = time.monotonic() + 15
        for process in reversed(self.started):
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.engine.close()

    # What happened ----------------------------------------------------------------------------------------------------

    def begin(self, text: str) -> SessionId:
        """A session with one message."""
        return self.engine.create(said(text)).session

    def tools(self) -> list[dict[str, Any]]:
        """What the tools say they did."""
        return [json.loads(line) for line in self.tool_log.read_text().splitlines()]

    def model_calls(self) -> list[dict[str, Any]]:
        """What the provider was asked."""
        lines = self.model_log.read_text().splitlines() if self.model_log.exists() else []
        return [event for line in lines if (event := json.loads(line))["event"] == "call"]

    def events(self, session: SessionId) -> list[Event]:
        """The whole stream of a session."""
        lines: list[bytes] = []
        while page := self.engine.reads.events(session, len(lines), 1000):
            lines += page
        return [json.loads(line) for line in lines]

    def outcomes(self, session: SessionId) -> list[str]:
        """How the turns of a session ended."""
        return [
            event["type"]
            for event in self.events(session)
            if event["type"] in ("turn.completed", "turn.failed", "turn.cancelled")
        ]

    def all_quiet(self, sessions: Sequence[SessionId]) -> bool:
        """Whether nothing is open and nothing waits."""
        pipe = self.engine.journal.client.pipeline(transaction=False)
        for session in sessions:
            pipe.hmget(self.engine.journal.keys(session).own, "turn", "token", "waiting")
        return all(found == [b"", b"", b"0"] for found in pipe.execute())

    def owners(self) -> list[int]:
        """Pids of processes that have run a tool, the last one first."""
        pids: list[int] = []
        for line in reversed(self.tool_log.read_text().splitlines()[-200:]):
            pid = json.loads(line)["pid"]
            if pid not in pids and alive(pid):
                pids.append(pid)
        return pids


class Every:
    """Does something again and again, beside the test."""

    def __init__(self, pause: float, act: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self.failed: list[BaseException] = []

        def run() -> None:
            while not self._stop.wait(pause):
                try:
                    act()
                except BaseException as broken:
                    self.failed.append(broken)
                    return

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.failed, self.failed


def in_time(measure: Callable[[int], float], limit: float) -> float:
    """A figure of time. A machine that others use as well gets two more rounds if the first was disturbed."""
    best = measure(0)
    for another in (1, 2):
        best = best if best <= limit else min(best, measure(another))
    return best


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def nothing_happened_twice(system: System, sessions: Sequence[SessionId], *, calls: int | None = None) -> None:
    """No committed result happened again: by the tools' own log and the provider's (its first `calls`), against the stream's commits."""
    starts: dict[str, list[float]] = defaultdict(list)
    for line in system.tools():
        if line["event"] == "start":
            starts[line["key"]].append(line["at"])
    asked: dict[tuple[str, int], list[float]] = defaultdict(list)
    for call in system.model_calls()[:calls]:
        asked[call["user"], call["step"]].append(call["at"])
    for session in sessions:
        message: dict[str, str] = {}
        first: dict[str, int] = {}
        for event in system.events(session):
            data = event["data"]
            match event["type"]:
                case "message.received":
                    message[data["turnId"]] = data["message"]
                    first.pop(data["turnId"], None)
                case "step.started":
                    # A provider counts from what the person said last, also in the middle of a turn.
                    first.setdefault(data["turnId"], data["stepIndex"])
                case "action.result" if data["status"] == "completed":
                    key = f"{session}/{data['turnId']}/{data['result']['callId']}"
                    late = [at for at in starts[key] if at > seconds(event) + 0.005]
                    assert starts[key], f"{key} has a result and never started"
                    assert not late, f"{key} started again after its result was committed"
                case "actions.requested" | "message.completed":
                    step = (message[data["turnId"]], data["stepIndex"] - first[data["turnId"]])
                    late = [at for at in asked[step] if at > seconds(event) + 0.005]
                    assert not late, (
                        f"{session} {step}: asked at {late}, after its answer was committed at {seconds(event)}"
                    )
                case _:
                    pass


def streams_are_whole(system: System, sessions: Sequence[SessionId]) -> None:
    """Every id once, one terminal event a turn, the boundary last."""
    for session in sessions:
        events = system.events(session)
        ids = [event["meta"]["id"] for event in events]
        assert len(ids) == len(set(ids))
        assert events[-1]["type"] == "session.waiting"
        turns = [event["data"]["turnId"] for event in events if event["type"] == "turn.started"]
        assert len(turns) == len(set(turns)) == len(system.outcomes(session))


@contextmanager
def running(system: System) -> Iterator[System]:
    """Everything is stopped at the end."""
    try:
        yield system
    finally:
        system.stop()
