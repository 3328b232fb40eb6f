"""The processes of the demo, and how it speaks to them: a Valkey, gunicorn and two Celery workers, in a folder of their own."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator import local

ROOT = Path(__file__).resolve().parent.parent
LEASE_SECONDS = 2
PACE_SECONDS = 0.4
START_SECONDS = 60.0
STOP_SECONDS = 20.0
ANSWER_SECONDS = 120.0
Event = dict[str, Any]


class Failed(Exception):
    """The demo cannot go on; the text says why."""


class Stage:
    """The processes and the folder they live in. `clear` leaves nothing of them, whatever has happened."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.place = Path(tempfile.mkdtemp(prefix="orchestrator-demo-"))
        self.journal = self.place / "journal"
        self.log = self.place / "what-happened.log"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # Should we be killed ourselves, this one notices: its input is a pipe that only we hold.
        self.guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", str(self.place)], stdin=subprocess.PIPE, start_new_session=True
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.environment = kept | {
            "ORCHESTRATOR_APP": "examples.watched:app",
            "ORCHESTRATOR_URL": f"local:{self.journal}",
            "ORCHESTRATOR_LEASE_SECONDS": str(LEASE_SECONDS),
            "ORCHESTRATOR_DRAIN_SECONDS": "2",
            "ORCHESTRATOR_ALLOW_ANONYMOUS": "loopback",
            "BIND": "127.0.0.1:0",
            "TMPDIR": str(self.place),
            "DEMO_LOG": str(self.log),
            "DEMO_PACE": str(PACE_SECONDS),
        }

    def say(self, text: str) -> None:
        """A line, with the time."""
        print(f"{time.monotonic() - self.begun:5.1f} s  {text}", flush=True)

    def start(self, name: str, *command: str) -> int:
        """Start a process in a group of its own, so that Ctrl-C reaches us and not it. Returns its id."""
        with open(self.place / f"{name}.log", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.processes[name] = process
        self._tell_guard()
        return process.pid

    def stop(self) -> None:
        """End all processes as a deploy does, with SIGTERM, and wait until they are gone. The Valkey goes last."""
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                raise Failed(f"{name} did not end within {STOP_SECONDS:.0f} s of SIGTERM.") from None
        local.stop(self.journal)
        self.processes.clear()
        self._tell_guard()

    def _tell_guard(self) -> None:
        fresh = self.place / "pids.new"
        fresh.write_text("".join(f"{process.pid}\n" for process in self.processes.values()))
        fresh.replace(self.place / "pids")

    def output(self, name: str) -> str:
        """What a process has printed."""
        return (self.place / f"{name}.log").read_text(errors="replace")

    def wait_for(self, what: str, look: Callable[[], Any]) -> Any:
        """What `look` finds, as soon as it finds something."""
        until = time.monotonic() + START_SECONDS
        while not (found := look()):
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise Failed(f"{name} ended with {process.returncode} while we waited for {what}.")
            if time.monotonic() > until:
                raise Failed(f"Waited {START_SECONDS:.0f} s for {what}.")
            time.sleep(0.05)
        return found

    def last_words(self) -> str:
        """The ends of all logs, for whoever has to find out what went wrong."""
        return "\n".join(f"--- {name}\n{self.output(name)[-3000:]}" for name in self.processes)

    def clear(self) -> None:
        """End everything. Never raises, and is not interrupted."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + 5
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        try:
            local.stop(self.journal)
        except Exception as broken:
            print(f"the Valkey in {self.journal} did not end: {broken}", file=sys.stderr)
        shutil.rmtree(self.place, ignore_errors=True)
        with suppress(OSError):
            self.guard.communicate(b"done\n", timeout=5)


FOREIGN = ("ORCHESTRATOR_", "CELERY_", "GUNICORN_", "DEMO_", "BIND", "PORT", "FLASK_")
GUARD = """
read -r _ && exit
while read -r pid; do kill -s KILL -- "-$pid"; done <"$1/pids"
kill -s KILL "$(cat "$1/journal/valkey.pid")"
rm -rf "$1"
"""


class Web:
    """The HTTP API, through the standard library alone."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _ask(self, method: str, path: str, body: object = None, *, timeout: float = 10) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)
        headers = {"content-type": "application/json"} if body is not None else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        return connection.getresponse()

    def json(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer."""
        answer = self._ask(method, path, body)
        return answer.status, json.loads(answer.read())

    def events(self, session: str, query: str = "") -> Iterator[Event]:
        """The stream of a session, from its beginning, line by line as it comes. A quiet one says so every 10 seconds."""
        answer = self._ask("GET", f"/v1/session/{session}/stream{query}", timeout=30)
        if answer.status != 200:
            raise Failed(f"The stream answered {answer.status}: {answer.read()!r}")
        until = time.monotonic() + ANSWER_SECONDS
        while line := answer.readline():
            if line.strip():
                yield json.loads(line)
            if time.monotonic() > until:
                raise Failed(f"No answer after {ANSWER_SECONDS:.0f} s.")
        answer.close()


def start(stage: Stage, names: str = "AB") -> tuple[Web, dict[int, str]]:
    """Start everything and wait until it is there. Returns the API, and the workers' names by process id."""
    stage.say("starting a Valkey, gunicorn and two Celery workers")
    local.resolve(f"local:{stage.journal}")
    stage.start("web", "gunicorn", "-c", "python:web.gunicorn", "--no-control-socket", "web:create_app()")
    workers = {
        stage.start(
            f"worker-{name}", "celery", "-A", "tasks", "worker", "--pool", "threads", "-c", "4",
            "-n", f"{name}@%h", "-l", "INFO",
        ): name
        for name in names
    }  # fmt: skip
    port = stage.wait_for(
        "gunicorn", lambda: re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", stage.output("web"))
    )
    web = Web(int(port[1]))

    def ready() -> bool:
        try:
            status, health = web.json("GET", "/v1/health")
        except OSError:
            return False
        return status == 200 and sum(one["workers"] for one in health["deployments"].values()) == len(workers)

    stage.wait_for("two workers", ready)
    stage.say("ready: " + ", ".join(f"worker {name} is process {pid}" for pid, name in workers.items()))
    return web, workers
