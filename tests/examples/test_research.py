"""The researcher works on several things at once, hands in what was asked for, and loses only unfinished pages with a worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.research import SHELVES, Report, researcher, search
from orchestrator import Retry
from tests.examples.conftest import House
from tests.examples.gated import FIRST
from tests.servers import wait_for
from tests.tasks.workers import ROOT

QUESTION = "Which bridges were brought down by wind?"
WINDY = ["Tay Bridge, 1879", "Tay Bridge, the court of 1880", "Tacoma Narrows, 1940"]


def asked(events: list[dict[str, Any]]) -> list[list[str]]:
    """The tools of each answer."""
    return [
        [action["toolName"] for action in event["data"]["actions"]]
        for event in events
        if event["type"] == "actions.requested"
    ]


def result(events: list[dict[str, Any]]) -> Report:
    (found,) = [event["data"]["result"] for event in events if event["type"] == "result.completed"]
    return Report.model_validate(found)


def test_a_report_of_the_asked_form_comes_out_of_parallel_calls(house: House) -> None:
    house.runs("examples.research:app")
    caller = house.web()
    house.worker()
    told = caller.post("/session", {"message": QUESTION, "outputSchema": Report.model_json_schema()})
    assert told.status == 202, told
    session = told.body["sessionId"]
    assert caller.ended(session) == ["turn.completed"]
    events = caller.events(session)
    assert asked(events) == [["search"] * len(SHELVES), ["read"] * 3]
    report = result(events)
    assert report.question == QUESTION
    assert [finding.source for finding in report.findings] == WINDY


def test_who_asks_for_no_form_gets_a_sentence(house: House) -> None:
    house.runs("examples.research:app")
    caller = house.web()
    house.worker()
    session = caller.create(QUESTION)
    assert caller.ended(session) == ["turn.completed"]
    said = [event["data"]["message"] for event in caller.events(session) if event["type"] == "message.completed"]
    assert said[-1] == "3 pages speak of it."


def test_its_program_prints_the_report(house: House) -> None:
    house.runs("examples.research:app")
    caller = house.web()
    house.worker()
    said = subprocess.run(
        [sys.executable, "-m", "examples.research", "Why do eyebars crack?"],
        env={**house.environment, "WEB_URL": f"http://127.0.0.1:{caller.port}"},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert said.returncode == 0, said.stderr
    assert said.stderr.count("search ") == 3
    sources = [finding["source"] for finding in json.loads(said.stdout)["findings"]]
    assert sources == ["Corrosion of eyebars"]


@pytest.mark.acceptance
def test_a_killed_worker_costs_the_pages_that_were_not_read_to_the_end(house: House, tmp_path: Path) -> None:
    house.runs("tests.examples.gated:app", GATE=str(tmp_path))
    caller = house.web()
    first = house.worker()
    told = caller.post("/session", {"message": QUESTION, "outputSchema": Report.model_json_schema()})
    session = told.body["sessionId"]
    log = tmp_path / "started"

    def started() -> list[str]:
        return [line.partition(" ")[2] for line in log.read_text().splitlines()] if log.exists() else []

    # All three are being read at the same time, or this waits for ever; one has come to its end.
    wait_for(lambda: sorted(started()) == sorted(WINDY), 20, what="three pages to be read at once")
    wait_for(lambda: caller.types(session).count("action.result") == 4, 20, what="the first page to be committed")
    first.signal(signal.SIGKILL)
    first.ends()
    (tmp_path / "go").touch()
    house.worker()
    assert caller.ended(session) == ["turn.completed"]
    assert started().count(FIRST) == 1, "what was committed was read again"
    assert {title: started().count(title) for title in WINDY if title != FIRST} == dict.fromkeys(WINDY[1:], 2)
    assert [finding.source for finding in result(caller.events(session)).findings] == WINDY


async def _search(shelf: str) -> object:
    return await search(shelf, "wind")


def test_a_shelf_that_is_not_there_is_told_to_the_model() -> None:
    import asyncio

    with pytest.raises(Retry, match="newspapers, inquiries, journals"):
        asyncio.run(_search("attic"))
    assert [one.name for one in researcher.tools] == ["search", "read"]
