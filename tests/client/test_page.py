"""docs/client.md is true: its snippets run as they stand, and its names are there."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import apikeys, client
from orchestrator.client import Client, Outcome, Patience, Turn
from tests.acceptance.system import System, running
from tests.servers import Server
from tests.web.support import Web

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
BLOCKS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
APP = "tests.client.desk:app"
SAID = {
    "ask": "It is on its way to you.\nIt is on its way to you.\n",
    "watch": "",
    "decide": "Pay 14.99 EUR to B-1006? ['approve', 'cancel']\nYou get your 14.99 EUR back.\n",
    "later": "It is on its way to you.\n0 session.started\n",
    "asynchronous": "session.started\nturn.started\n",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server for the snippets, and what they know of it."""
    key, entry = apikeys.mint("website")
    folder = tmp_path_factory.mktemp("desk")
    with Server("valkey").start() as server, running(System(server, folder, app=APP)) as system:
        system.start_worker()
        given = {"ORCHESTRATOR_APP": APP, "ORCHESTRATOR_API_KEYS": entry, "ORCHESTRATOR_ALLOW_ANONYMOUS": ""}
        with Web(server.url, target="web:create_app()", **given) as web:
            yield {
                **os.environ,
                "AGENTS_URL": f"http://127.0.0.1:{web.port}",
                "AGENTS_KEY": key,
                "PYTHONPATH": str(ROOT),
            }


def test_every_snippet_has_a_name_and_a_test() -> None:
    assert set(BLOCKS) == set(SAID)
    assert len(re.findall(r"^```python$", PAGE, re.MULTILINE)) == len(BLOCKS)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", SAID)
def test_a_snippet_runs_as_it_stands(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(BLOCKS[name])
    told = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(SAID[name])


def test_every_error_is_on_the_page() -> None:
    names = {name for name in client.__all__ if inspect.isclass(getattr(client, name))}
    errors = {name for name in names if issubclass(getattr(client, name), client.ClientError)}
    assert {name for name in errors if f"`{name}`" not in PAGE} == set()


def test_what_the_page_says_of_turns_and_times_is_so() -> None:
    rows = re.search(r"\| a turn has \| which \|\n(.*?)\n\n", PAGE, re.DOTALL)
    assert rows is not None
    named = set(re.findall(r"`(\w+)\(", rows[1]))
    assert named == {name for name in vars(Turn) if inspect.isfunction(getattr(Turn, name)) and name[0] != "_"}
    fields = set(re.findall(r"`(\w+)`", rows[1])) - {"Outcome", "NoAnswer"}
    assert fields <= {one.name for one in dataclasses.fields(Outcome)}
    assert f"Patience(seconds={Patience().seconds:.0f})" in PAGE
    quiet = inspect.signature(Client).parameters["quiet_seconds"].default
    assert f"quiet for {quiet:.0f} s" in PAGE
