"""A turn through a real web and real workers, one of which is killed in the middle: one trace, and figures that tell it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any
from urllib.request import urlopen

import pytest

from tests.servers import free_port, wait_for
from tests.tasks.workers import Process, environment, worker
from tests.watching.test_metrics import Values, of, values
from tests.web.support import Web

pytestmark = pytest.mark.acceptance
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Start = Callable[..., tuple[Process, int]]


def settings_of(env: dict[str, str]) -> dict[str, str]:
    """What of an environment is said to a web process."""
    return {name: text for name, text in env.items() if name.startswith(("ORCHESTRATOR_", "SPANS", "TMPDIR"))}


def scrape(port: int) -> Values:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return values(answer.read().decode())


@pytest.fixture
def watched(url: str, tmp_path: Path) -> dict[str, str]:
    """The environment of all processes of a test."""
    spans = tmp_path / "spans.jsonl"
    spans.touch()
    settings = {"traces": "1", "metrics": "open", "log": "json", "lease_seconds": "1", "drain_seconds": "2"}
    return {**environment(url, "tests.watching.traced:app", **settings), "SPANS": str(spans), "TMPDIR": str(tmp_path)}


@pytest.fixture
def start(watched: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start a worker: it, and the port on which it can be scraped."""
    started: list[Process] = []

    def begin(*arguments: str) -> tuple[Process, int]:
        port, log = free_port(), tmp_path / f"worker-{len(started)}.log"
        env = {**watched, "ORCHESTRATOR_METRICS_LISTEN": f"127.0.0.1:{port}"}
        started.append(worker(log, env, "-n", f"w{len(started)}@test", *arguments))
        return started[-1], port

    yield begin
    for process in started:
        process.stop()


def test_a_turn_that_outlives_a_worker_is_one_trace(
    url: str, watched: dict[str, str], start: Start, tmp_path: Path
) -> None:
    def spans() -> list[dict[str, Any]]:
        return [json.loads(line) for line in Path(watched["SPANS"]).read_text().splitlines()]

    first, _ = start("-c", "2")
    given = settings_of(watched)
    with Web(url, target="web:create_app()", **given) as web:
        body = {"message": f"note {tmp_path} 60"}
        status, made, _ = web.post("/v1/session", body, traceparent=f"00-{TRACE}-{SPAN}-01")
        assert status == 202
        with web.follow(made["sessionId"]) as reader:
            wait_for(lambda: list(tmp_path.glob(f"ran-{first.pid}-*")), 20, what="the tool to run")
            found = scrape(web.port)
            assert of(found, "orchestrator_sessions", state="running") == 1
            assert of(found, "orchestrator_streams_open") == 1
            assert of(found, "orchestrator_workers", deployment="default") == 1
            first.signal(SIGKILL)
            second, port = start("-c", "2")
            (tmp_path / "go").touch()
            wait_for(lambda: '"type":"session.waiting"' in "".join(reader.lines), 30, what="the end of the turn")
        wait_for(lambda: any(span["name"].startswith("invoke_agent") for span in spans()), 10, what="its span")
        wait_for(lambda: of(scrape(web.port), "orchestrator_streams_open") == 0, 10, what="the reader to have left")
        assert of(scrape(web.port), "orchestrator_sessions", state="resting") == 1

    told = [(span["name"], span["attributes"].get("orchestrator.attempt"), span["pid"]) for span in spans()]
    assert told == [
        ("chat scripted", 1, first.pid),
        ("execute_tool note", 2, second.pid),
        ("step 0", 2, second.pid),
        ("chat scripted", 1, second.pid),
        ("step 1", 1, second.pid),
        ("invoke_agent clerk", 1, second.pid),
    ]
    assert {span["context"]["trace_id"] for span in spans()} == {f"0x{TRACE}"}, "the one that the request came in"
    by_name = {span["name"]: span for span in spans()}
    assert by_name["invoke_agent clerk"]["parent_id"] == f"0x{SPAN}"
    assert by_name["step 0"]["parent_id"] == by_name["invoke_agent clerk"]["context"]["span_id"]
    below = [span["name"] for span in spans() if span["parent_id"] == by_name["step 0"]["context"]["span_id"]]
    assert below == ["chat scripted", "execute_tool note"], "calls of both workers are below the one step"

    found = scrape(port)
    assert of(found, "orchestrator_takeovers_total") == 1
    assert of(found, "orchestrator_turns_total", agent="clerk", outcome="completed") == 1
    assert of(found, "orchestrator_tool_seconds_count", tool="note") == 1
    assert of(found, "orchestrator_rung_total") >= 1, "a keeper has rung for the lost worker's session"
    lines = [json.loads(line) for line in second.log.splitlines() if line.startswith("{")]
    assert {line["deployment"] for line in lines} == {"default"}
    assert any("ready" in line["message"] for line in lines)


def test_children_of_a_prefork_worker_are_counted_by_their_parent(
    url: str, watched: dict[str, str], start: Start, tmp_path: Path
) -> None:
    process, port = start("-P", "prefork", "-c", "2")
    given = settings_of(watched)
    with Web(url, target="web:create_app()", **given) as web:
        (tmp_path / "go").touch()
        for _ in range(3):
            assert web.post("/v1/session", {"message": f"note {tmp_path} 1"})[0] == 202
        key = "orchestrator_turns_total", frozenset({("agent", "clerk"), ("outcome", "completed")})
        wait_for(lambda: scrape(port).get(key) == 3, 30, what="three turns")
    assert list(tmp_path.glob("orc-metrics-*"))
    process.signal()
    process.ends()
    assert not list(tmp_path.glob("orc-metrics-*")), "nothing is left of what they shared"


def test_web_processes_of_one_gunicorn_answer_for_each_other(url: str, watched: dict[str, str], tmp_path: Path) -> None:
    given = settings_of(watched)
    with Web(url, "--workers", "2", target="web:create_app()", **given) as web:
        _, made, _ = web.post("/v1/session", {"message": "hello"})
        readers = [web.follow(made["sessionId"]) for _ in range(6)]

        def seen() -> set[float]:
            return {of(scrape(web.port), "orchestrator_streams_open") for _ in range(8)}

        wait_for(lambda: seen() == {6}, 20, what="both to tell of all readers")
        for reader in readers:
            reader.close()
        wait_for(lambda: seen() == {0}, 20, what="all readers to have left")
        said = [json.loads(line) for line in web.log.splitlines()]
        assert list(tmp_path.glob("orc-metrics-*"))
        web.stop()
        assert not list(tmp_path.glob("orc-metrics-*")), "nothing is left of what they shared"
    assert {line["deployment"] for line in said} == {"default"}
    assert any(line["logger"] == "gunicorn.access" and "/metrics" in line["message"] for line in said)
