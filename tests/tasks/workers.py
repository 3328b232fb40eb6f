"""Real worker processes for tests: started from the command line, with a log, stopped by their pid."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.servers import wait_for

ROOT = Path(__file__).parent.parent.parent


def environment(url: str, app: str = "tests.tasks.shop:app", **settings: str) -> dict[str, str]:
    """The environment of a process: nothing of ours but what the test says."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRATOR_", "CELERY_"))}
    given = {f"ORCHESTRATOR_{name.upper()}": value for name, value in settings.items()}
    return {**clean, "ORCHESTRATOR_URL": url, "ORCHESTRATOR_APP": app, "PYTHONUNBUFFERED": "1", **given}


class Process:
    """One process and all it says."""

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path, cwd: Path = ROOT) -> None:
        self.log_file = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def says(self, text: str, timeout: float = 20.0) -> Self:
        """Wait until its log has `text`."""
        wait_for(lambda: text in self.log or not self.running, timeout, what=f"{text!r} in\n{self.log}")
        assert text in self.log, f"it ended without {text!r}:\n{self.log}"
        return self

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.pid, number)

    def ends(self, timeout: float = 15.0) -> int:
        """Wait until it has ended; its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {timeout} s:\n{self.log}") from None

    def stop(self) -> None:
        """Kill it, whatever it does."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(10)

    def children(self) -> list[int]:
        """Its living children."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in found]


def celery(*arguments: str) -> list[str]:
    """A celery command of ours."""
    return [sys.executable, "-m", "celery", "-A", "tasks", *arguments]


def worker(log: Path, env: Mapping[str, str], *arguments: str, cwd: Path = ROOT) -> Process:
    """`celery -A tasks worker`, ready."""
    return Process(celery("worker", "-l", "INFO", *arguments), env, log, cwd).says(" ready.")
