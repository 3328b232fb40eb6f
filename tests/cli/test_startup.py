"""The command line starts quickly: what only some commands need is imported by them."""

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import command
from tests.tasks.workers import ROOT

HEAVY = {"pydantic_ai", "celery", "kombu", "flask", "gunicorn", "redis", "jwt", "cryptography"}
CPU_SECONDS = 0.4


@pytest.mark.parametrize(
    "arguments", [("--help",), ("sessions", "list", "--help"), ("keys", "new", "somebody")], ids=" ".join
)
def test_a_short_command_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        f"import sys; from orchestrator.cli import main; main({list(arguments)}); print(*sys.modules, file=sys.stderr)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in told.stderr.splitlines()[-1].split()}
    assert "typer" in loaded
    assert not HEAVY & loaded


def test_looking_at_sessions_needs_neither_celery_nor_models(url: str) -> None:
    code = "import sys; from orchestrator.cli import main; main(['sessions', 'list']); print(*sys.modules, file=sys.stderr)"
    env = {**os.environ, "ORCHESTRATOR_URL": url}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=env)
    loaded = {name.partition(".")[0] for name in told.stderr.splitlines()[-1].split()}
    assert "redis" in loaded
    assert not {"pydantic_ai", "celery", "flask", "gunicorn"} & loaded


def test_help_takes_little_time() -> None:
    """CPU and not the clock: others may work on this machine. The best of three: the first may compile."""
    assert min(cpu_seconds("--help") for _ in range(3)) < CPU_SECONDS


def cpu_seconds(*arguments: str) -> float:
    before = os.times()
    subprocess.run(command(*arguments), capture_output=True, check=True, cwd=ROOT)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
