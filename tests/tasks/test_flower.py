"""Flower shows what runs, by name and id, and nothing that people said."""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port, wait_for
from tests.tasks.conftest import Desk, StartWorker
from tests.tasks.workers import Process, celery, environment

pytest.importorskip("flower")


def test_flower_shows_sessions_and_no_words(start: StartWorker, desk: Desk, url: str, tmp_path: Path) -> None:
    port = free_port()
    env = {**environment(url, app=""), "FLOWER_UNAUTHENTICATED_API": "true"}
    flower = Process(celery("flower", f"--port={port}", "--address=127.0.0.1"), env, tmp_path / "flower.log")
    try:
        start("-E")

        def asked(path: str) -> Any:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    return json.load(answer)
            except OSError:
                return None

        wait_for(lambda: asked("/api/workers?refresh=1"), 30.0, what=f"Flower:\n{flower.log}")
        session = desk.say("the secret is swordfish")
        desk.wait(session)
        shown = wait_for(lambda: asked("/api/tasks"))
        wait_for(lambda: any(task["state"] == "SUCCESS" for task in asked("/api/tasks").values()))
        shown = asked("/api/tasks")
        task = next(iter(shown.values()))
        assert task["name"] == "orchestrator.resume"
        assert task["args"].startswith(f"{session}/dlv_")
        assert task["uuid"].startswith(f"{session}/")
        assert "swordfish" not in json.dumps(shown)
    finally:
        flower.stop()
    assert sys.modules.get("tornado") is None, "Flower runs in its own process"
