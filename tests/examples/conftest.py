"""The processes that an example is run with: a web, workers, and a caller between them and the test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.caller import Caller
from tests.servers import free_port, wait_for
from tests.tasks.workers import ROOT, Process, celery, environment


class House:
    """All that runs for one App on one Redis. Nothing of it is left after the test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.app = ""
        self.variables: dict[str, str] = {}
        self.started: list[Process] = []

    def runs(self, app: str, **variables: str) -> None:
        """Which App the processes are of, and what else is in their environment."""
        self.app, self.variables = app, variables

    @property
    def environment(self) -> dict[str, str]:
        settings = {"lease_seconds": "2", "drain_seconds": "2", "allow_anonymous": "loopback"}
        return {**environment(self.url, self.app, **settings), "PYTHONPATH": str(ROOT), **self.variables}

    def start(self, *command: str, **variables: str) -> Process:
        """A module of this environment as a process."""
        log = self.folder / f"{len(self.started)}-{command[0]}.log"
        self.started.append(
            Process([sys.executable, "-m", *command], {**self.environment, **variables}, log, cwd=self.folder)
        )
        return self.started[-1]

    def worker(self, *flags: str) -> Process:
        """One more worker, ready."""
        name = f"worker{len(self.started)}@test"
        return self.start(*celery("worker", "-l", "INFO", "-c", "4", "-n", name, *flags)[2:]).says(" ready.")

    def web(self, *command: str, prefix: str = "/v1") -> Caller:
        """The web, answering. `command` is another one than ours."""
        port = free_port()
        ours = ("gunicorn", "-c", "python:web.gunicorn", "web:create_app()")
        process = self.start(*(command or ours), BIND=f"127.0.0.1:{port}", GUNICORN_CMD_ARGS=f"--bind 127.0.0.1:{port}")
        caller = Caller(port, prefix=prefix)

        def answers() -> bool:
            try:
                return caller.get("/health").status == 200
            except OSError:
                return False

        wait_for(answers, 30, what=f"the web:\n{process.log}")
        return caller

    def close(self) -> None:
        """End everything by pid."""
        for process in reversed(self.started):
            if process.running:
                process.signal()
        for process in reversed(self.started):
            try:
                if process.running:
                    process.ends(20)
            finally:
                process.stop()


@pytest.fixture
def house(url: str, tmp_path: Path) -> Iterator[House]:
    """`house.runs("examples.research:app")`, then `house.web()` and `house.worker()`."""
    made = House(url, tmp_path)
    try:
        yield made
    finally:
        made.close()
