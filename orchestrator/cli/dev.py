"""`orchestrator dev`: a server, workers and the web on this machine, ended together."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Self

from orchestrator import local
from orchestrator.cli.processes import Pool, check_access, free_port, prepare, web_child, workers
from orchestrator.cli.reach import find_app, shown
from orchestrator.cli.supervisor import Supervisor
from orchestrator.config import Settings
from orchestrator.engine import Engine
from orchestrator.errors import OrchestratorError
from orchestrator.watching.serving import together

LOG, CHAT = "dev.log", "chat"
"""In the data folder: what the processes say, and the session that was talked to last."""
CLOSE_SECONDS = 5.0
HINT = """\
Talk to it from another terminal:
  curl -d '{{"message": "Hello"}}' -H 'content-type: application/json' {url}/v1/session
  curl -N {url}/v1/session/SESSION_ID/stream
"""


def dev(app: str, *, port: int, data: str, processes: int, chat: bool, pool: Pool) -> int:
    """Run everything until Ctrl-C or SIGTERM. Prints one line on standard output: when all of it is ready."""
    port = free_port("127.0.0.1", port)
    folder = _folder(data, os.environ.get("ORCHESTRATOR_URL", ""))
    environ = {
        **os.environ,
        "ORCHESTRATOR_URL": f"{local.SCHEME}{folder}",
        "ORCHESTRATOR_ALLOW_ANONYMOUS": "loopback",
        "PYTHONUNBUFFERED": "1",
    }
    environ.pop("ORCHESTRATOR_BROKER_URL", None)
    env, settings = prepare(app, environ)
    check_access(env["ORCHESTRATOR_APP"], settings)
    _say_what_is_not_used(folder)
    local.resolve(settings.url)
    talks = chat and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        with (folder / LOG).open("ab") if talks else nullcontext() as log, together(settings, env, many=True):
            children = [*workers(pool, processes, env, settings), web_child(env, port)]
            names = {child.env["ORCHESTRATOR_WORKER"] for child in children[:-1]}
            supervisor = Supervisor([replace(child, log=log) for child in children])
            with Prompt(f"http://127.0.0.1:{port}", folder, log, supervisor.end) as prompt:
                ready = _Ready(env["ORCHESTRATOR_APP"], settings, names, port, prompt, hint=chat)
                return supervisor.run(ready.look)
    finally:
        local.stop(folder)


class Prompt:
    """The chat in this terminal, a process of its own. What all others say goes to the log from when it begins; when it ends, all end.

    Without a log there is none.
    """

    def __init__(self, url: str, folder: Path, log: IO[bytes] | None, over: Callable[[], None]) -> None:
        self._url = url
        self._folder = folder
        self._log = log
        self._over = over
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = -1

    def begin(self) -> bool:
        """Begin to talk, if this is a terminal."""
        if self._log is None:
            return False
        print(f"What the processes say is in {self._folder / LOG}.", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "orchestrator.cli", "chat", self._url, "--remember", str(self._folder / CHAT)]
        self._process = subprocess.Popen(command)
        self._stderr = os.dup(2)
        os.dup2(self._log.fileno(), 2)
        return True

    def look(self) -> None:
        """End everything if nobody talks any more."""
        if self._process is not None and self._process.poll() is not None:
            self._over()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and give the terminal back."""
        if self._process is None:
            return
        self._process.terminate()
        self._process.wait(CLOSE_SECONDS)
        os.dup2(self._stderr, 2)
        os.close(self._stderr)


def _folder(data: str, url: str) -> Path:
    """Where the Valkey's data are: as --data says, else as ORCHESTRATOR_URL does if it is a folder, as all other commands understand it."""
    given = data or (url.removeprefix(local.SCHEME) if url.startswith(local.SCHEME) else "") or local.DEFAULT_DIR
    return Path(given).expanduser().absolute()


def _say_what_is_not_used(folder: Path) -> None:
    """One line for settings that `dev` passes over: somebody may believe that they work on another Redis."""
    url, broker = os.environ.get("ORCHESTRATOR_URL", ""), os.environ.get("ORCHESTRATOR_BROKER_URL", "")
    other = url and (not url.startswith(local.SCHEME) or _folder("", url) != folder)
    ignored = [f"ORCHESTRATOR_URL={shown(url)}"] * bool(other) + [f"ORCHESTRATOR_BROKER_URL={shown(broker)}"] * bool(
        broker
    )
    if ignored:
        verb = "is" if len(ignored) == 1 else "are"
        print(
            f"{' and '.join(ignored)} {verb} not used: `orchestrator dev` has a Valkey of its own in {folder}."
            " On yours run `orchestrator worker` and `orchestrator web`.",
            file=sys.stderr,
            flush=True,
        )


class _Ready:
    """Says once that the web answers and every worker has beaten: those started now, not those of a run before."""

    def __init__(
        self, app: str, settings: Settings, workers: set[str], port: int, prompt: Prompt, *, hint: bool
    ) -> None:
        self._engine = Engine(find_app(app), settings)
        self._workers = workers
        self._url = f"http://127.0.0.1:{port}"
        self._prompt = prompt
        self._hint = hint
        self._said = False

    def look(self) -> None:
        """Look, and say it."""
        if self._said:
            self._prompt.look()
        if self._said or not self._beaten() or not self._answers():
            return
        self._said = True
        print(f"ready {self._url}", flush=True)
        if not self._prompt.begin() and self._hint:
            print(HINT.format(url=self._url), file=sys.stderr, flush=True)

    def _beaten(self) -> bool:
        try:
            return self._workers <= self._engine.reads.workers(self._engine.label).keys()
        except OrchestratorError:
            return False

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/eve/v1/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
