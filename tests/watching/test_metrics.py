"""Metrics: what a worker counts, what a scrape reads of the journal, and who may scrape."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

import web
from orchestrator.agent import Agent, App
from orchestrator.apikeys import mint
from orchestrator.config import Settings
from orchestrator.engine import Engine
from orchestrator.errors import ConfigError
from orchestrator.models.scripted import answers, asks, fails
from orchestrator.tool import tool
from orchestrator.watching import NOBODY, watch
from orchestrator.watching.serving import serve, together
from tests.servers import free_port
from tests.web.support import Http, http_of
from tests.worlds import World

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def values(text: str) -> Values:
    """What was scraped, by name and labels."""
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def of(found: Values, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


@pytest.fixture
def more() -> Callable[..., float]:
    """By how much a count has grown since the test began."""
    before = {
        (one.name, frozenset(one.labels.items())): one.value for family in REGISTRY.collect() for one in family.samples
    }

    def grown(name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return (REGISTRY.get_sample_value(name, labels) or 0) - before.get(key, 0)

    return grown


@tool
def work() -> str:
    """Works."""
    return "done"


@tool
def broken() -> str:
    """Does not."""
    raise ValueError("no")


def test_a_worker_counts_what_it_commits_and_what_it_calls(world: World, more: Callable[..., float]) -> None:
    world.change(metrics="on")
    world.app([asks("work"), asks("broken"), fails("busy", times=1, then=answers("done"))], [work, broken])
    session = world.create()
    assert "parked" in world.run(session)
    world.skip(10_000)
    world.run(session)
    assert more("orchestrator_turns_total", agent="helper", outcome="completed") == 1
    assert more("orchestrator_steps_total", agent="helper") == 3
    assert more("orchestrator_attempts_total") >= 3
    assert more("orchestrator_takeovers_total") == 0
    assert more("orchestrator_model_seconds_count", model="scripted") == 3
    assert more("orchestrator_model_failures_total", model="scripted", code="MODEL_CALL_FAILED") == 1
    assert more("orchestrator_model_tokens_total", model="scripted", kind="output") > 0
    assert more("orchestrator_tool_seconds_count", tool="work") == 1
    assert more("orchestrator_tool_failures_total", tool="broken", code="ACTION_RESULT_FAILED") == 1
    assert more("orchestrator_commit_seconds_count") >= 6


def test_a_takeover_is_counted(world: World, more: Callable[..., float]) -> None:
    world.change(metrics="on")
    lived: list[bool] = []

    @tool
    def deadly() -> str:
        """The first worker that runs it dies of it."""
        if not lived:
            lived.append(True)
            world.kill(world.worker)
        return "done"

    world.app([asks("deadly"), answers("done")], [deadly])
    world.run(world.create())
    assert more("orchestrator_takeovers_total") == 1


def test_nothing_is_counted_if_it_is_off(world: World, more: Callable[..., float]) -> None:
    world.app([answers("done")])
    assert world.worker.watch is NOBODY
    world.run(world.create())
    assert more("orchestrator_turns_total", agent="helper", outcome="completed") == 0


def test_the_libraries_are_not_even_imported_if_it_is_off() -> None:
    code = (
        "import sys, orchestrator.turn, orchestrator.watching as w, orchestrator.config as c;"
        "assert w.watch(c.Settings()) is w.NOBODY;"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "prometheus_client" not in loaded
    assert "orchestrator.watching.traces" not in loaded


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "orchestrator.watching.metrics", raising=False)
    with pytest.raises(ConfigError, match="celery-orchestrator\\[metrics\\]"):
        watch(Settings(metrics="on", prefix="elsewhere"))


# The journal ------------------------------------------------------------------------------------------------------------


def test_a_scrape_reads_the_journal(world: World) -> None:
    world.change(metrics="on")
    world.app([answers("done")])
    idle, queued = world.create(), world.create()
    world.run(idle)
    world.say(queued, "more")
    found = values(world.worker.figures().decode())
    assert of(found, "orchestrator_journal_up") == 1
    assert of(found, "orchestrator_sessions", state="resting") == 1
    assert of(found, "orchestrator_sessions", state="queued") == 1
    assert of(found, "orchestrator_sessions", state="unknown") == 0
    assert of(found, "orchestrator_inbox_waiting") == 2
    assert of(found, "orchestrator_queue_length", deployment="default") >= 1
    assert of(found, "orchestrator_queue_oldest_seconds", deployment="default") >= 0
    world.skip(60_000)
    assert of(values(world.worker.figures().decode()), "orchestrator_sessions_due") == 1


def test_a_scrape_costs_the_same_however_many_sessions_there_are(world: World) -> None:
    world.change(metrics="on")
    world.app([answers("done")])
    for _ in range(1500):
        world.worker.create("hello")

    def reads() -> int:
        return int(world.client.info("commandstats")["cmdstat_hgetall"]["calls"])

    before = reads()
    found = values(world.worker.figures().decode())
    assert reads() - before <= 64 * 10 + 10, "at most ten of a shard are looked at"
    assert (
        of(found, "orchestrator_sessions", state="queued") + of(found, "orchestrator_sessions", state="unknown") == 1500
    )
    assert of(found, "orchestrator_sessions", state="unknown") > 0


def test_a_journal_that_is_away_is_told_and_not_an_error() -> None:
    engine = Engine(App(agents=[Agent("helper")]), Settings(url=f"redis://127.0.0.1:{free_port()}/0", metrics="on"))
    assert of(values(engine.figures().decode()), "orchestrator_journal_up") == 0


# Who may scrape ---------------------------------------------------------------------------------------------------------


def site(url: str, **settings: str) -> Http:
    app = App(agents=[Agent("helper")])
    return http_of(web.create_app(app, Engine(app, Settings(url=url, **settings))))  # type: ignore[arg-type]  # words


def test_metrics_are_for_those_who_may_see_them(url: str) -> None:
    allowed, entry = mint("prometheus", ["metrics"])
    reader, other = mint("reader", ["read"])
    sender, third = mint("sender", ["send"])
    http = site(url, metrics="on", api_keys=f"{entry},{other},{third}")
    assert http.get("/metrics").status_code == 401
    for key, status in ((allowed, 200), (reader, 200), (sender, 403)):
        assert http.get("/metrics", headers={"authorization": f"Bearer {key}"}).status_code == status
    assert http.get("/v1/sessions", headers={"authorization": f"Bearer {allowed}"}).status_code == 403


def test_they_are_open_if_a_setting_says_so_and_absent_if_none_does(url: str) -> None:
    answer = site(url, metrics="open").get("/metrics")
    assert answer.status_code == 200
    assert answer.content_type.startswith("text/plain")
    assert "orchestrator_streams_open" in answer.text
    assert site(url).get("/metrics").status_code == 404


# A worker's own port ----------------------------------------------------------------------------------------------------


def test_a_worker_shows_what_it_counts_on_a_port(world: World) -> None:
    port = free_port()
    world.change(metrics_listen=str(port))
    world.app([answers("done")])
    world.run(world.create())
    server = serve(world.settings)
    assert server is not None
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            found = values(answer.read().decode())
        assert of(found, "orchestrator_turns_total", agent="helper", outcome="completed") >= 1
        assert serve(world.settings) is None, "a second one on the same port is told that it is taken"
    finally:
        server.shutdown()
        server.server_close()


COUNT = """
import os, sys
from orchestrator.config import Settings
from orchestrator.watching import watch
watch(Settings(metrics="on")).rung(int(sys.argv[1]))
from orchestrator.watching.metrics import text
print(text().decode())
"""


def test_processes_that_share_a_folder_count_together(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": ""}
    with together(Settings(metrics="on"), environ, many=True):
        folder = environ["PROMETHEUS_MULTIPROC_DIR"]

        def count(number: int) -> str:
            run = [sys.executable, "-c", COUNT, str(number)]
            return subprocess.run(run, capture_output=True, text=True, check=True, env=environ).stdout

        count(2)
        assert of(values(count(3)), "orchestrator_rung_total") == 5
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("name", "text"), [("metrics", "yes please"), ("traces", "all"), ("log", "xml"), ("metrics_listen", "nowhere")]
)
def test_a_word_that_means_nothing_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"ORCHESTRATOR_{name.upper()}"):
        Settings(**{name: text})  # type: ignore[arg-type]  # that is the point
