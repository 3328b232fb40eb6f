"""`make demo`: an agent answers a customer, a worker is killed with SIGKILL in the middle of it, another goes on.

Everything is real: a Valkey, gunicorn, two Celery workers, HTTP. It needs no key, no Docker, no Redis and no root, takes about
15 seconds and leaves nothing behind. It fails if anything that was committed happened twice.
"""

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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from examples import proof
from orchestrator import local

ROOT = Path(__file__).resolve().parent.parent
QUESTION = "Marta Jensen here. What have I bought, and when do my open orders arrive?"
EXPECTED = ("B-1008", "B-1011", "B-1014")
LEASE_SECONDS = 2
PACE_SECONDS = 0.4
START_SECONDS = 60.0
ANSWER_SECONDS = 120.0
OVER = ("session.waiting", "session.failed", "session.completed")
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
        with open(self.place / "pids", "a") as pids:
            pids.write(f"{process.pid}\n")
        return process.pid

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


class Screen:
    """Prints a stream while it comes."""

    def __init__(self, stage: Stage) -> None:
        self._say = stage.say
        self._in_text = False

    def show(self, event: Event) -> None:
        """One event."""
        data = event["data"]
        if event["type"] == "message.appended":
            if not self._in_text:
                print("         model   ", end="")
            print(data["messageDelta"].replace("\n", "\n                 "), end="", flush=True)
            self._in_text = True
            return
        self.end_text()
        match event["type"]:
            case "turn.started":
                self._say("turn.started")
            case "step.started":
                self._say(f"step {data['stepIndex']}")
            case "actions.requested":
                for action in data["actions"]:
                    given = ", ".join(f"{name}={value!r}" for name, value in action["input"].items())
                    print(f"         calls   {action['toolName']}({given})", flush=True)
            case "action.result":
                told = json.dumps(data["result"]["output"], ensure_ascii=False)
                print(f"         result  {told if len(told) < 110 else told[:107] + '...'}", flush=True)
            case "turn.completed" | "turn.failed" | "turn.cancelled":
                self._say(event["type"])

    def end_text(self) -> None:
        """Go on on a new line."""
        if self._in_text:
            print(flush=True)
        self._in_text = False


def start(stage: Stage) -> tuple[Web, dict[int, str]]:
    """Start everything and wait until it is there. Returns the API, and the workers' names by process id."""
    stage.say("starting a Valkey, gunicorn and two Celery workers")
    local.resolve(f"local:{stage.journal}")
    stage.start("web", "gunicorn", "-c", "python:web.gunicorn", "--no-control-socket", "web:create_app()")
    workers = {
        stage.start(
            f"worker-{name}", "celery", "-A", "tasks", "worker", "--pool", "threads", "-c", "4",
            "-n", f"{name}@%h", "-l", "INFO",
        ): name
        for name in ("A", "B")
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


def follow(stage: Stage, web: Web, session: str, workers: dict[int, str]) -> tuple[list[Event], int]:
    """Show the stream to the end of the turn, and kill the worker in the middle of a step. Returns the events and who was killed."""
    screen, seen, killed = Screen(stage), list[Event](), 0
    for event in web.events(session):
        seen.append(event)
        screen.show(event)
        if event["type"] in OVER:
            break
        if not killed and event["type"] == "action.result":
            # One result of this step is committed. If others are still being made, this is the moment.
            running = proof.unfinished(proof.read(stage.log))
            if running:
                killed = running[-1].pid
                os.kill(killed, signal.SIGKILL)
                print()
                stage.say(f"kill -9 {killed}: worker {workers[killed]} dies with {len(running)} calls unfinished")
                print(f"         its lease of {LEASE_SECONDS} s must end before another may go on\n", flush=True)
    return seen, killed


def play(stage: Stage) -> int:
    """The whole of it. Returns the exit code."""
    web, workers = start(stage)
    stage.say(f"POST /v1/session  {QUESTION!r}")
    status, created = web.json("POST", "/v1/session", {"message": QUESTION})
    if status != 202:
        raise Failed(f"POST /v1/session answered {status}: {created}")
    session = created["sessionId"]
    stage.say(f"{status}: it is stored. GET /v1/session/{session}/stream")
    seen, killed = follow(stage, web, session, workers)
    stored = list(web.events(session, "?follow=false"))

    notes = proof.read(stage.log)
    print("\nWhat the calls themselves wrote down, beside what the journal says:\n")
    print(proof.table(notes, stored, workers))
    wrong = proof.violations(notes, stored)
    if not killed:
        wrong.append("no worker was killed: no call was running when a result of its step was committed")
    elif not any(note.pid != killed and note.at > max(n.at for n in notes if n.pid == killed) for note in notes):
        wrong.append("nobody went on after the worker was killed")
    if [event["meta"]["id"] for event in stored[: len(seen)]] != [event["meta"]["id"] for event in seen]:
        wrong.append("the stored stream is not the one that was seen")
    text = next((event["data"]["message"] for event in reversed(stored) if event["type"] == "message.completed"), "")
    wrong += [f"the answer does not speak of {order}" for order in EXPECTED if order not in text]
    print()
    for problem in wrong:
        print(f"WRONG: {problem}")
    if not wrong:
        repeated = sum(times - 1 for times in Counter(note.key for note in notes if note.started).values())
        print(
            f"Nothing that was committed happened twice. {repeated} unfinished calls ran again, each under its old key.\n"
            "What was seen on the stream is what is stored, and the answer is complete."
        )
    return 1 if wrong else 0


def _stop(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Play it and clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    stage = Stage()
    try:
        return play(stage)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (Failed, OSError, http.client.HTTPException) as broken:
        print(f"\nFAILED: {broken}\n{stage.last_words()}", file=sys.stderr)
        return 1
    finally:
        stage.clear()


if __name__ == "__main__":
    sys.exit(main())
