"""Commands of these tests, and the processes they start: gone after the test."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator import local
from tests.tasks.conftest import desk, folder  # noqa: F401  # fixtures
from tests.tasks.workers import ROOT, Process, environment

Say = Callable[..., "subprocess.CompletedProcess[str]"]
Run = Callable[..., Process]
APP = "tests.tasks.shop:app"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator.cli", *arguments]


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

    def start(*arguments: str, env: Mapping[str, str]) -> Process:
        process = Process(command(*arguments), env, tmp_path / f"command-{len(started)}.log")
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
