"""The Dockerfile, as far as it can be known without Docker: what it copies is there, is enough, and what it installs exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ["celeryconfig", "examples", "orchestrator", "tasks", "web"]
Instruction = tuple[str, list[str]]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    made: list[list[Instruction]] = []
    for name, rest in lines:
        if name == "FROM":
            made.append([])
        made[-1].append((name, shlex.split(rest)))
    return made


def copied(stage: list[Instruction]) -> list[tuple[list[str], str]]:
    """What comes from the project, and where it goes."""
    copies = [words for name, words in stage if name == "COPY" and not words[0].startswith("--from")]
    return [(words[:-1], words[-1]) for words in copies]


def build(stage: list[Instruction], place: Path) -> None:
    """Do what the COPY lines of a stage do, with what .dockerignore lets through."""
    for sources, target in copied(stage):
        for source in sources:
            to = place / target / source if target.endswith("/") else place / target
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, to)


def test_what_the_image_copies_is_there_and_is_not_left_out() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    sources = {source for stage in stages() for names, _ in copied(stage) for source in names}
    assert all((ROOT / source).exists() for source in sources)
    assert sources == let_through


def test_what_the_image_installs_exists() -> None:
    first, _ = stages()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((_, default),) = [words[0].split("=") for name, words in first if name == "ARG"]
    assert set(default.split(",")) <= set(project["optional-dependencies"])
    (pip,) = [words for name, words in first if name == "RUN" and "install" in words]
    assert pip[-1] == ".[${EXTRAS}]"
    files = {source for names, _ in copied(first) for source in names}
    assert pip[pip.index("-c") + 1] in files
    named = {project["readme"], *project["license-files"], "pyproject.toml"}
    assert named <= files, "the build of the package reads them"


def test_the_lock_has_a_version_of_everything_that_the_image_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["flower"], *extras["openai"], *extras["dev"]]
    names = {re.split(r"[\[<>=]", one)[0].lower().replace("_", "-") for one in asked} - {project["name"]}
    locked = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "requirements.lock").read_text().split()
    }
    assert names <= locked


def test_python_is_one_that_the_package_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for stage in stages():
        version = re.fullmatch(r"python:(3\.\d+)-slim", stage[0][1][0])
        assert version is not None
        assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


@pytest.mark.parametrize(
    "words",
    [
        ["orchestrator.cli", "--help"],
        ["celery", "-A", "tasks", "worker", "--help"],
        ["gunicorn", "--check-config", "-c", "python:web.gunicorn", "web:create_app()"],
    ],
    ids=["orchestrator", "worker", "web"],
)
def test_what_is_copied_is_enough_to_run(words: list[str], tmp_path: Path) -> None:
    installed, app = tmp_path / "site", tmp_path / "app"
    first, last = stages()
    for folder, stage in ((installed, first), (app, last)):
        folder.mkdir()
        build(stage, folder)
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("ORCHESTRATOR_", "PYTHON"))}
    environment = {**clean, "PYTHONPATH": f"{app}:{installed}", "ORCHESTRATOR_APP": "examples.support:app"}
    # All that is ours must come from what was copied, and not from where this test runs.
    look = f"""
import runpy, sys
sys.argv = {words!r}
code = 0
try:
    runpy.run_module({words[0]!r}, run_name="__main__", alter_sys=True)
except SystemExit as ended:
    code = ended.code
elsewhere = [m.__file__ for n, m in sys.modules.items() if n.split(".")[0] in {OURS!r} and m.__file__
             and not m.__file__.startswith({str(tmp_path)!r})]
assert not elsewhere, elsewhere
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=app, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
