"""`orchestrator init`: a project that runs, and whose test passes, with no other step."""

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import local
from orchestrator.cli.init import TEMPLATE
from tests.cli.conftest import Run, Told, command
from tests.servers import free_port
from tests.tasks.conftest import Desk
from tests.tasks.workers import ROOT, environment


@pytest.fixture
def project(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    answer = told("init", "My Library")
    assert answer.code == 0
    assert "orchestrator dev" in answer.out
    yield tmp_path / "My Library"
    local.stop(tmp_path / "My Library" / ".orchestrator")


def clean() -> dict[str, str]:
    env = environment("", "")
    del env["ORCHESTRATOR_URL"], env["ORCHESTRATOR_APP"]
    return {**env, "PYTHONPATH": str(ROOT)}


def test_a_project_has_what_it_needs(project: Path) -> None:
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert files == {".gitignore", "README.md", "app.py", "pyproject.toml", "tests/test_app.py"}
    about = tomllib.loads((project / "pyproject.toml").read_text())
    assert about["project"]["name"] == "my-library"
    assert about["tool"]["orchestrator"]["app"] == "app:app"
    assert not any("NAME" in (project / name).read_text() for name in files)
    assert ".orchestrator/" in (project / ".gitignore").read_text()


def test_an_empty_folder_will_do(tmp_path: Path, told: Told) -> None:
    (tmp_path / "shop").mkdir()
    assert told("init", str(tmp_path / "shop")).code == 0
    assert (tmp_path / "shop" / "app.py").exists()


def test_the_commands_of_its_readme_exist(project: Path) -> None:
    found = re.findall(r"(?:`|^)orchestrator ([a-z]+(?: [a-z]+)?)", (project / "README.md").read_text(), re.MULTILINE)
    assert len(found) > 5
    for words in found:
        done = subprocess.run(command(*words.split(), "--help"), capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, words


def test_its_code_is_as_tidy_as_ours(project: Path) -> None:
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, "--isolated", "--line-length", "140", "app.py", "tests"],
            capture_output=True, text=True, cwd=project,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.acceptance
def test_its_test_passes(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True, cwd=project, env=clean(), timeout=60
    )
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.acceptance
def test_it_runs_with_no_other_step(project: Path, run: Run) -> None:
    port = free_port()
    process = run("dev", "--port", str(port), "--no-chat", env=clean(), cwd=project)
    process.says(f"ready http://127.0.0.1:{port}", 30.0)
    body = json.dumps({"message": "Do you have Walden?"}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/session", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        session = json.load(answer)["sessionId"]
    Desk(local.resolve(f"local:{project}/.orchestrator")).wait(session)
    looked = subprocess.run(
        command("sessions", "follow", session, "--to-end", "--text"),
        capture_output=True,
        text=True,
        cwd=project,
        env=clean(),
    )
    assert "agent       Walden is on shelf B-7, and I have put it aside for you." in looked.stdout
    process.signal()
    assert process.ends() == 0


def test_no_file_of_the_template_is_one_of_our_modules() -> None:
    assert all(path.suffix == ".in" for path in TEMPLATE.rglob("*") if path.is_file())
    assert os.access(TEMPLATE, os.R_OK)
