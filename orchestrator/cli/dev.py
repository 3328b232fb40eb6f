"""`orchestrator dev`: a server, workers and the web on this machine, ended together."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from orchestrator import local
from orchestrator.cli.processes import Pool, check_access, free_port, prepare, web_child, workers
from orchestrator.cli.reach import find_app, shown
from orchestrator.cli.supervisor import Supervisor
from orchestrator.config import Settings
from orchestrator.engine import Engine
from orchestrator.errors import OrchestratorError
from orchestrator.watching.serving import together

HINT = """\
Talk to it from another terminal:
  curl -d '{{"message": "Hello"}}' -H 'content-type: application/json' {url}/eve/v1/session
  curl -N {url}/eve/v1/session/SESSION_ID/stream
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
    try:
        with together(settings, env, many=True):
            children = [*workers(pool, processes, env, settings), web_child(env, port)]
            names = {child.env["ORCHESTRATOR_WORKER"] for child in children[:-1]}
            ready = _Ready(env["ORCHESTRATOR_APP"], settings, names, port, chat=chat)
            return Supervisor(children).run(ready.look)
    finally:
        local.stop(folder)


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

    def __init__(self, app: str, settings: Settings, workers: set[str], port: int, *, chat: bool) -> None:
        self._engine = Engine(find_app(app), settings)
        self._workers = workers
        self._url = f"http://127.0.0.1:{port}"
        self._chat = chat
        self._said = False

    def look(self) -> None:
        """Look, and say it."""
        if self._said or not self._beaten() or not self._answers():
            return
        self._said = True
        print(f"ready {self._url}", flush=True)
        if self._chat:
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
