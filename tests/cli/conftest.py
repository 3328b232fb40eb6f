"""Commands of these tests, and the processes they start: gone after the test."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import local
from orchestrator.cli import main
from tests.tasks.conftest import desk, folder  # noqa: F401  # fixtures
from tests.tasks.workers import ROOT, Process, environment

Say = Callable[..., "subprocess.CompletedProcess[str]"]
Told = Callable[..., "Answer"]
Run = Callable[..., Process]
APP = "tests.tasks.shop:app"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator.cli", *arguments]


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def told(url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Told:
    """Run a command to its end in this process, on the server of the test; settings by their names."""

    def run(*arguments: str, **settings: str) -> Answer:
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
                patch.delenv(name)
            for name, value in {"url": url, **settings}.items():
                patch.setenv(f"ORCHESTRATOR_{name.upper()}", value)
            # It would become what these tests run in.
            patch.setattr(os, "execve", lambda *_: pytest.fail("nothing refused it, and it became another program"))
            capfd.readouterr()
            code = main(list(arguments))
        return Answer(code, *capfd.readouterr())

    return run


@pytest.fixture
def say(url: str) -> Say:
    """Run a command to its end."""

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        env = env or environment(url, "")
        return subprocess.run(command(*arguments), env=env, capture_output=True, text=True, cwd=ROOT, timeout=60)

    return run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a command that goes on."""
    started: list[Process] = []

    def start(*arguments: str, env: Mapping[str, str], cwd: Path = ROOT) -> Process:
        process = Process(command(*arguments), env, tmp_path / f"command-{len(started)}.log", cwd)
        started.append(process)
        return process

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """The folder of a local world, whose server is ended after the test."""
    yield tmp_path / "data"
    local.stop(tmp_path / "data")
