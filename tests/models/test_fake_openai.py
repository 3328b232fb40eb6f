"""The stand-in provider itself, where other tests rely on it: as a process, counted by its log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.event import Outcome
from orchestrator.models import Layer
from orchestrator.ports import Result
from orchestrator.tool import tool
from tests.models.conftest import NAME, ask, call


@tool
def find(x: int, name: str) -> str:
    """Find it."""
    return f"{name}{x}"


def test_it_runs_as_a_process_and_logs_what_it_was_asked(
    layer: Layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls.jsonl"
    command = [sys.executable, "-m", "tests.fake_openai", "0", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, url = process.stdout.readline().split()
            assert ready == "ready"
            monkeypatch.setenv("OPENAI_BASE_URL", url)
            monkeypatch.setenv("OPENAI_API_KEY", "x")
            model = layer.model(NAME)
            history = list(call(layer, "please do steps=3 calls=2").history)
            for step in range(2):
                answer = ask(model, call(layer, history, tools=[find], step=step))
                assert [layer.toolbox([find]).check("find", c.input) for c in answer.calls] == [
                    {"x": 1, "name": "1"}
                ] * 2
                results = [Result(c.provider_id, c.tool, Outcome("completed", "ok")) for c in answer.calls]
                history += [layer.read(answer.row), layer.read(layer.results_row(results))]
            last = call(layer, history, tools=[find], step=2)
            assert ask(model, last).text == "done after 3 steps: please do steps=3 calls=2"
            assert ask(model, last).text == "done after 3 steps: please do steps=3 calls=2"
        finally:
            process.terminate()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "call"] == [0, 1, 2, 2]
    assert sum(event["event"] == "done" for event in events) == 4
