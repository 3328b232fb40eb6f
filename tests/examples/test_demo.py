"""`make demo` as a stranger runs it, and what it claims to prove."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from examples import proof
from examples.proof import Note

ROOT = Path(__file__).parents[2]
START = 1_772_600_000.0
WORKERS = {11: "A", 12: "B"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where the demo makes its folder. Short: it is part of other names."""
    with tempfile.TemporaryDirectory(prefix="demo-") as made:
        yield Path(made)


def demo(place: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**environment, "TMPDIR": str(place), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_until_gone(place: Path, pids: list[int]) -> None:
    until = time.monotonic() + 30
    while any(alive(pid) for pid in pids) or list(place.iterdir()):
        assert time.monotonic() < until, ([pid for pid in pids if alive(pid)], list(place.iterdir()))
        time.sleep(0.1)


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_demo_survives_a_killed_worker_and_a_restart_of_everything_and_proves_it(place: Path) -> None:
    process = demo(place)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "kill -9" in output
    assert re.search(r"^step +attempts +workers", output, re.MULTILINE)
    rows = [line.split("  ") for line in output.splitlines() if re.match(r" *\d  ", line)]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[0] for row in cells] == ["0", "1", "2", "3"]
    broken = [row for row in cells if row[1] == "1, 2"]
    assert len(broken) == 1  # one step was cut, and both workers had a hand in it
    assert sorted(broken[0][2].split(", ")) == ["A", "B"]
    assert int(broken[0][7]) >= 1
    assert [row[4] for row in cells] == ["1"] * 4
    assert [row[6] for row in cells] == ["1", "3", "3", "0"]
    assert "B-1014, A Tale of Two Cities: 2026-03-19" in output
    parked = output.partition("Pay order B-1004 back?")[2]
    assert "nothing runs any more" in parked.partition("answer  approved")[0]  # all was stopped before it was answered
    assert "B-1004: 16.99 EUR are on their way." in parked.partition("answer  approved")[2]
    assert "One turn, one decision, one refund" in parked
    assert not list(place.iterdir())


@pytest.mark.acceptance
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_nothing_behind(place: Path, number: signal.Signals) -> None:
    process = demo(place)
    assert process.stdout is not None
    for line in process.stdout:
        if "step 0" in line:
            break
    (made,) = place.iterdir()
    pids = [int(pid) for pid in (made / "pids").read_text().split()]
    pids.append(int((made / "journal" / "valkey.pid").read_text()))
    assert all(map(alive, pids))
    process.send_signal(number)
    output = process.stdout.read()
    assert process.wait(30) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number], output
    process.stdout.close()
    wait_until_gone(place, pids)


# The proof bites ----------------------------------------------------------------------------------------------------


def event(kind: str, at: float, **data: Any) -> Mapping[str, Any]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{round(at % 1 * 1000):03d}Z"
    return {"type": kind, "data": {"stepIndex": 0, **data}, "meta": {"id": f"evt_{at}", "at": stamp, "attempt": 1}}


def call(at: float, what: str, place: int = 0, pid: int = 11, asked: str = "") -> Note:
    return Note(START + at, pid, f"tool {what}", f"ses_1/turn_0/call_0_0_{place}", asked or f"find {place}")


GOOD = [
    Note(START, 11, "model started", "ses_1/turn_0/0"),
    Note(START + 0.1, 11, "model answered", "ses_1/turn_0/0"),
    call(0.2, "started"),
    call(0.2, "started", 1),
    call(0.4, "returned"),
    call(3.0, "started", 1, pid=12),
    call(3.2, "returned", 1, pid=12),
]
STREAM = [
    event("actions.requested", START + 0.1, actions=[]),
    event("action.result", START + 0.4, result={"callId": "call_0_0_0"}),
    event("action.result", START + 3.2, result={"callId": "call_0_0_1"}),
    event("step.completed", START + 3.2),
]


def test_a_repeated_uncommitted_call_is_no_violation() -> None:
    assert proof.violations(GOOD, STREAM) == []
    assert [note.key[-1] for note in proof.unfinished(GOOD[:5])] == ["1"]
    assert proof.table(GOOD, STREAM, WORKERS).splitlines()[-1].split() == ["0", "1", "A,", "B", "1", "1", "3", "2", "1"]


@pytest.mark.parametrize(
    ("planted", "text"),
    [
        (call(3.0, "started", 0, pid=12), "was started again"),
        (Note(START + 3.0, 12, "model started", "ses_1/turn_0/0"), "was started again"),
        (call(0.3, "started", 2, asked="find 1"), "ran under 2 keys"),
        (call(0.3, "started", 2), "the journal has no result of it"),
    ],
)
def test_what_must_not_happen_is_found(planted: Note, text: str) -> None:
    assert any(text in problem for problem in proof.violations([*GOOD, planted], STREAM))


def test_a_result_that_is_told_twice_or_came_from_nowhere_is_found() -> None:
    assert proof.violations(GOOD, [*STREAM, STREAM[1]])
    assert proof.violations(GOOD[:2], STREAM)


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = json.dumps({"at": START, "pid": 11, "what": "model started", "key": "ses_1/turn_0/0"})
    log.write_text(f"{line}\n{line[:20]}")
    assert proof.read(log) == [Note(START, 11, "model started", "ses_1/turn_0/0")]
    assert proof.read(log, "ses_2") == []
