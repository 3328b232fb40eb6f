"""JSON logs: every line of a driver, of its tools and of its model says which session it is about."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.models.scripted import answers, asks, calls, fails
from orchestrator.tool import tool
from orchestrator.watching.logs import JsonLines, about
from tests.worlds import World

log = logging.getLogger("shop")


@tool
def reserve() -> str:
    """On a thread."""
    log.warning("reserving")
    return "yours"


@tool
async def weigh() -> int:
    """On a loop."""
    log.warning("weighing")
    return 300


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What is logged, as it comes."""
    found: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(self.format(record)))

    keep = Keep()
    keep.setFormatter(JsonLines({"deployment": "default", "worker": "WORKER01"}))
    loggers = [logging.getLogger("shop"), logging.getLogger("orchestrator")]
    for logger in loggers:
        logger.addHandler(keep)
    levels = [logger.level for logger in loggers]
    loggers[1].setLevel(logging.INFO)
    yield found
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(keep)
        logger.setLevel(level)


def test_lines_name_session_turn_and_step(world: World, lines: list[dict[str, Any]]) -> None:
    world.change(log="json")
    script = [calls(asks("reserve"), asks("weigh")), fails("busy", times=1, then=answers("done"))]
    world.app(script, [reserve, weigh])
    session = world.create()
    world.run(session)
    by_text = {line["message"]: line for line in lines}
    for text in ("reserving", "weighing"):
        said = by_text[text]
        assert (said["session"], said["turn"], said["step"], said["attempt"]) == (session, "turn_0", 0, 1)
        assert (said["deployment"], said["worker"], said["level"]) == ("default", "WORKER01", "WARNING")
    (broke,) = [line for line in lines if "try 1 of the model call broke" in line["message"]]
    assert (broke["session"], broke["turn"], broke["step"], broke["logger"]) == (
        session,
        "turn_0",
        1,
        "orchestrator.turn.asking",
    )
    assert about() == {}, "behind a drive nothing is said of it"


def test_plain_logs_know_nothing_of_it(world: World, lines: list[dict[str, Any]]) -> None:
    world.app([asks("reserve"), answers("done")], [reserve])
    world.run(world.create())
    assert [line["message"] for line in lines if "session" in line] == []


def test_a_line_is_a_line_and_holds_no_more_than_was_said() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines({}))
    logger = logging.Logger("x")
    logger.addHandler(handler)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("it %s", "broke\nhere", extra={"api_key": "secret"})
    (line,) = out.getvalue().splitlines()
    found = json.loads(line)
    assert found["message"] == "it broke\nhere"
    assert "ValueError: two" in found["exception"]
    assert "secret" not in line
