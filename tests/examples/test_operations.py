"""docs/operations.md gives a Redis user that can do what we need and no more: a worker lives with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from examples.support import app
from orchestrator import Engine, Settings
from orchestrator.core.delivery import Body, Part
from tests.servers import Server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.acceptance
@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_the_user_of_the_page_is_enough(make_server: Callable[..., Server], kind: str, tmp_path: Path) -> None:
    server = make_server(kind)
    (line,) = re.findall(r"^ *(ACL SETUSER .*)$", PAGE, re.MULTILINE)
    words = line.replace("PASSWORD", "secret").split()
    with redis.Redis.from_url(server.url) as admin:
        if kind == "redis7":
            words.remove("+waitaof")
        admin.execute_command(*words)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        url = server.url.replace("redis://", "redis://orchestrator:secret@")
        with open(tmp_path / "worker.log", "wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "4", "-E"],
                env={**clean, "ORCHESTRATOR_URL": url, "ORCHESTRATOR_APP": "examples.support:app"},
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        try:
            engine = Engine(app, Settings(url=url))
            session = engine.create(Body((Part("text", "Tom Okafor here"),))).session
            until = time.monotonic() + 60
            while engine.view(session).status != "idle":
                assert time.monotonic() < until, (tmp_path / "worker.log").read_text()
                time.sleep(0.1)
            ear = engine.tails.wait_beside(session)
            ear.wait(0.5)
            ear.close()
        finally:
            worker.terminate()
            worker.wait(30)
        assert admin.execute_command("ACL", "LOG") == []
