"""`orchestrator dev`: a server, workers and the web on this machine, ended together."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

from orchestrator import local
from orchestrator.cli.processes import prepare, web_child, workers
from orchestrator.cli.supervisor import Supervisor
from orchestrator.config import Settings
from orchestrator.engine import Engine
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.loader import load_app

HINT = """\
Talk to it from another terminal:
  curl -d '{{"message": "Hello"}}' -H 'content-type: application/json' {url}/eve/v1/session
  curl -N {url}/eve/v1/session/SESSION_ID/stream
"""


def dev(asked: argparse.Namespace) -> int:
    """Run everything until Ctrl-C or SIGTERM. Prints one line on standard output: when all of it is ready."""
    port = _free_port(asked.port)
    folder = Path(asked.data).absolute()
    environ = {
        **os.environ,
        "ORCHESTRATOR_URL": f"local:{folder}",
        "ORCHESTRATOR_ALLOW_ANONYMOUS": "loopback",
        "PYTHONUNBUFFERED": "1",
    }
    environ.pop("ORCHESTRATOR_BROKER_URL", None)
    env, settings = prepare(asked.app, environ)
    local.resolve(settings.url)
    children = [*workers(asked, asked.workers, env, settings), web_child(env, port)]
    ready = _Ready(
        settings, {child.env["ORCHESTRATOR_WORKER"] for child in children[:-1]}, port, chat=not asked.no_chat
    )
    try:
        return Supervisor(children).run(ready.look)
    finally:
        local.stop(folder)


class _Ready:
    """Says once that the web answers and every worker has beaten: those started now, not those of a run before."""

    def __init__(self, settings: Settings, workers: set[str], port: int, *, chat: bool) -> None:
        self._engine = Engine(load_app(settings.app), settings)
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


def _free_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as taken:
            raise ConfigError(
                problem=f"Port {port} of 127.0.0.1 cannot be had: {taken.strerror}.",
                remedy="Name another one with --port.",
            ) from taken
        return int(probe.getsockname()[1])
