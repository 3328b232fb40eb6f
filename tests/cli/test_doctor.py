"""`orchestrator doctor`: every line that can be wrong is seen wrong here, and right on a system that works."""

import json
import re
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import redis

from orchestrator import Agent, App, Settings
from orchestrator.auth import Anonymous
from orchestrator.channels import StandardWebhook
from orchestrator.cli import health
from orchestrator.cli.health import Line
from orchestrator.journal.looking import Looking, Queue, Server, Worker, World
from orchestrator.journal.server import Facts
from tests.cli.conftest import APP, Answer, Told
from tests.conftest import MakeServer
from tests.tasks.conftest import Desk, StartWorker
from tests.tasks.conftest import start as start  # a fixture
from tests.tasks.workers import ROOT
from tests.web.support import Web

FACTS = Facts("noeviction", "everysec", waits_for_disk=True, replicas=1, run_id="a")
GOOD = Server(
    "Valkey", "9.1.2", FACTS, "master", cluster=False, used=1_000_000, limit=0, aof=True, aof_ok=True, saves=False, saved_ok=True,
    loading=False, needed_replicas=1, now_ms=1_000_000, apart_ms=3.0, round_trip_ms=0.2,
)  # fmt: skip
NOW = 1_000_000
ALIVE = World((1, 64), 3, 2, 0, None, {"default": 1}, (Worker("default", "a", NOW - 1000, "x"),))


def levels(lines: list[Line]) -> dict[str, str]:
    return {line.about: line.level for line in lines}


def test_a_good_server_is_well() -> None:
    assert set(levels(list(health.server(GOOD))).values()) == {"ok"}


@pytest.mark.parametrize(
    ("server", "about", "level", "said"),
    [
        (replace(GOOD, kind="Redis", version="6.2.14"), "redis", "fail", "Use Redis 7.0 or newer"),
        (replace(GOOD, version="7.1.0"), "redis", "fail", "Use Valkey 7.2 or newer"),
        (replace(GOOD, role="slave"), "redis", "fail", "primary"),
        (replace(GOOD, cluster=True), "redis", "fail", "single server"),
        (replace(GOOD, round_trip_ms=80), "redis", "warn", "near their Redis"),
        (replace(GOOD, facts=replace(FACTS, policy="allkeys-lfu")), "eviction", "fail", "noeviction"),
        (replace(GOOD, facts=replace(FACTS, policy="volatile-ttl")), "eviction", "warn", "noeviction"),
        (replace(GOOD, limit=1_100_000), "memory", "warn", "maxmemory"),
        (replace(GOOD, limit=10_000_000), "memory", "ok", "10%"),
        (replace(GOOD, aof=False), "persistence", "warn", "a restart of Redis loses every session"),
        (replace(GOOD, aof=False, saves=True), "persistence", "warn", "appendonly yes"),
        (replace(GOOD, aof=False, saves=True, saved_ok=False), "persistence", "warn", "the last one failed"),
        (replace(GOOD, aof_ok=False), "persistence", "fail", "disk"),
        (replace(GOOD, facts=replace(FACTS, appendfsync="no")), "persistence", "warn", "everysec"),
        (replace(GOOD, loading=True), "persistence", "fail", "loading"),
        (replace(GOOD, apart_ms=-90_000), "clock", "warn", "1.5 min behind"),
        (replace(GOOD, apart_ms=4_000), "clock", "warn", "4.0 s ahead"),
    ],
)
def test_a_server_that_is_not_well_says_what_to_do(server: Server, about: str, level: str, said: str) -> None:
    [line] = [line for line in health.server(server) if line.about == about]
    assert line.level == level
    assert said in f"{line.says} {line.do}"


@pytest.mark.parametrize(
    ("level", "facts", "found", "said"),
    [
        ("server", FACTS, "ok", "a power loss costs up to two seconds"),
        ("server", replace(FACTS, appendfsync="always"), "ok", "a power loss costs nothing"),
        ("fsync", FACTS, "ok", "on the disk of Redis before they are answered"),
        ("fsync", replace(FACTS, waits_for_disk=False), "fail", "Set appendfsync always"),
        ("replica", FACTS, "ok", "at a replica before they are answered"),
        ("replica", replace(FACTS, replicas=0), "fail", "no replica"),
    ],
)
def test_the_level_of_durability_says_what_it_promises(level: str, facts: Facts, found: str, said: str) -> None:
    settings = Settings(durability=level)  # type: ignore[arg-type]  # one of the levels
    [line] = health.durability(settings, replace(GOOD, facts=facts))
    assert line.level == found
    assert said in line.says
    if level == "replica" and found == "ok":
        [unsure] = health.durability(settings, replace(GOOD, facts=facts, needed_replicas=0))
        assert (unsure.level, "min-replicas-to-write" in unsure.do) == ("warn", True)


@pytest.mark.parametrize(
    ("world", "about", "level", "said"),
    [
        (ALIVE, "workers", "ok", "default: 1 lives"),
        (replace(ALIVE, workers=()), "workers", "warn", "orchestrator worker"),
        (replace(ALIVE, workers=(*ALIVE.workers, Worker("default", "b", NOW, "y"))), "workers", "warn", "2 versions"),
        (replace(ALIVE, protocol=(2, 64)), "world", "fail", "ORCHESTRATOR_PREFIX"),
        (replace(ALIVE, protocol=None), "world", "ok", "not used yet"),
        (replace(ALIVE, due=2, oldest_due_ms=NOW - 500), "due", "ok", "500 ms overdue"),
        (replace(ALIVE, due=2, oldest_due_ms=NOW - 60_000), "due", "warn", "1.0 min overdue"),
    ],
)
def test_a_world_that_is_not_worked_on_is_seen(world: World, about: str, level: str, said: str) -> None:
    lines = [*health.world(world), *health.workers(Settings(), world, NOW), health.due(world, NOW)]
    [line] = [line for line in lines if line.about == about]
    assert line.level == level
    assert said in f"{line.says} {line.do}"


def test_workers_that_fell_silent_are_counted_apart() -> None:
    silent = replace(ALIVE, workers=(*ALIVE.workers, Worker("default", "b", NOW - 60_000, "y")))
    lines = list(health.workers(Settings(), silent, NOW))
    assert [line.level for line in lines] == ["ok", "warn"]
    assert lines[1].says.startswith("1 said nothing")


def test_wakes_that_grow_old_are_seen() -> None:
    young, old = Queue("default", 3, NOW - 100), Queue("default", 3, NOW - 60_000)
    [line] = health.queues([young], NOW, living=True)
    assert (line.level, line.says) == ("ok", "orc.default: 3 waiting, the oldest for 100 ms")
    assert [line.do for line in health.queues([old], NOW, living=False)] == ["Start a worker: `orchestrator worker`."]
    assert ["more workers" in line.do for line in health.queues([old], NOW, living=True)] == [True]


@pytest.mark.parametrize(
    ("app", "settings", "level", "said"),
    [
        (None, Settings(url="redis://r"), "warn", "nobody may call"),
        (None, Settings(), "ok", "orchestrator dev"),
        (None, Settings(allow_anonymous="all"), "warn", "every session"),
        (None, Settings(allow_anonymous="loopback"), "ok", "own machine"),
        (None, Settings(api_keys="shop:read+send=sha256:" + "a" * 64), "ok", "keys: shop (read+send)"),
        (None, Settings(api_keys="shop"), "fail", "Entry 1"),
        (None, Settings(jwt_issuer="https://id.shop", jwt_audience="us"), "ok", "tokens of https://id.shop for us"),
        (App([Agent("a")], auth=[Anonymous()]), Settings(), "ok", "App(auth=[Anonymous])"),
    ],
)
def test_who_may_call_is_told(app: App | None, settings: Settings, level: str, said: str) -> None:
    line = next(iter(health.access(app, settings)))
    assert (line.about, line.level) == ("access", level)
    assert said in f"{line.says} {line.do}"


def test_routes_name_the_channels() -> None:
    secret = "whsec_" + "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4"
    app = App([Agent("a")], channels=[StandardWebhook("post", secrets=[secret])])
    [_, line] = health.access(app, Settings(allow_anonymous="loopback", cors_origins="https://shop.example"))
    assert line.says == "/v1, /eve/v1, /v1/channels/post, /v1/webhooks/post; pages of https://shop.example may call"


def test_agents_without_a_model_are_named() -> None:
    assert health.app(App([Agent("a")]), "").do.startswith("Give a a model")
    assert health.app(App([Agent("a")]), "openai:gpt-5").level == "ok"


def test_a_setting_that_does_not_exist_is_said() -> None:
    [line] = health.unknown_settings({"ORCHESTRATOR_API_KEY", "PATH"})
    assert (line.level, line.do) == ("warn", "Did you mean ORCHESTRATOR_API_KEYS?")


# On a real system ---------------------------------------------------------------------------------------------------------


def lines_of(answer: Answer) -> dict[str, dict[str, str]]:
    return {line["about"]: line for line in json.loads(answer.out)["lines"]}


@pytest.mark.usefixtures("server")
def test_a_system_without_workers_is_looked_at_and_left_as_it_is(told: Told, client: "redis.Redis") -> None:
    answer = told("doctor", APP, "--json", "--web", "")
    assert answer.code == 0, answer
    found = lines_of(answer)
    info = client.info("server")
    assert str(info.get("valkey_version", info["redis_version"])) in found["redis"]["says"]
    assert found["redis"]["says"].startswith("Valkey" if "valkey_version" in info else "Redis")
    assert found["workers"]["level"] == "warn"
    assert found["world"]["says"].startswith("not used yet")
    assert client.keys("*") == [], "doctor writes nothing"


def test_settings_are_told_with_where_they_are_from(told: Told, url: str) -> None:
    answer = told("doctor", APP, "--json", deployment="blue", api_keys="shop=sha256:" + "a" * 64)
    told_of = {one["name"]: one for one in json.loads(answer.out)["settings"]}
    assert told_of["ORCHESTRATOR_DEPLOYMENT"] == {
        "name": "ORCHESTRATOR_DEPLOYMENT",
        "value": "blue",
        "from": "environment",
    }
    assert told_of["ORCHESTRATOR_APP"]["from"] == "command line"
    assert told_of["ORCHESTRATOR_PREFIX"]["from"] == "default"
    assert "a" * 64 not in answer.out
    assert set(told_of) == {f"ORCHESTRATOR_{name.upper()}" for name in Settings.__dataclass_fields__}


def test_doctor_fails_where_something_cannot_work(told: Told, make_server: MakeServer) -> None:
    server = make_server("valkey", "--maxmemory-policy", "allkeys-lru")
    answer = told("doctor", APP, url=server.url)
    assert answer.code == 1
    assert "fail  eviction" in answer.out
    assert "Traceback" not in answer.out + answer.err
    down = told("doctor", "no.such:app", url="redis://:secret@127.0.0.1:1/0")
    assert down.code == 1
    assert "fail  app" in down.out
    assert "fail  redis" in down.out
    assert "secret" not in down.out


def test_a_broker_that_is_away_is_told_from_the_journal(told: Told) -> None:
    answer = told("doctor", APP, "--json", broker_url="redis://:secret@127.0.0.1:1/0")
    found = lines_of(answer)
    assert (answer.code, found["redis"]["level"], found["broker"]["level"]) == (1, "ok", "fail")
    assert found["broker"]["says"].startswith("The broker at redis://:***@127.0.0.1:1/0 does not answer")
    assert "ORCHESTRATOR_BROKER_URL" in found["broker"]["says"]
    other = lines_of(told("doctor", APP, "--json", broker_url="amqp://127.0.0.1:1//"))
    assert (other["queues"]["level"], "is not looked at" in other["queues"]["says"]) == ("warn", True)


def test_what_waits_for_a_worker_is_counted(told: Told, desk: Desk, client: "redis.Redis") -> None:
    desk.say("hello")
    found = lines_of(told("doctor", APP, "--json"))
    assert found["queue"]["says"].startswith("orc.default: 1 waiting, the oldest for")
    assert found["due"]["says"].startswith("1 to be looked at")
    assert found["world"]["says"] == "protocol 1, 1 session"
    looking = Looking(desk.engine.settings.url)
    later = looking.world("orc", desk.engine.journal.time() + 60_000)
    looking.close()
    assert later.due == 1
    assert later.oldest_due_ms is not None


def test_the_user_of_the_page_may_look(told: Told, make_server: MakeServer) -> None:
    server = make_server("valkey")
    [line] = re.findall(r"^ *(ACL SETUSER .*)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command(*line.replace("PASSWORD", "secret").split())
        answer = told("doctor", APP, url=server.url.replace("redis://", "redis://orchestrator:secret@"))
        assert answer.code == 0, answer
        assert admin.execute_command("ACL", "LOG") == []


@pytest.mark.acceptance
def test_a_system_that_works_is_well(told: Told, start: StartWorker, url: str) -> None:
    start("-c", "2")
    with Web(url) as web:
        web.ready()
        answer = told("doctor", APP, "--json", "--web", f"http://127.0.0.1:{web.port}", allow_anonymous="loopback")
    found = lines_of(answer)
    assert answer.code == 0
    assert {line["level"] for about, line in found.items() if about != "persistence"} == {"ok"}, answer.out
    assert found["workers"]["says"] == "default: 1 lives"
    assert "answers, 0 of" in found["web"]["says"]


def test_a_web_that_is_no_web_of_ours_is_a_failure_if_it_was_named() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert health.site(url, Settings(), {}).level == "fail"
        assert health.site("", Settings(), {"PORT": str(server.server_port)}).level == "warn"
    finally:
        server.shutdown()
        server.server_close()
    assert health.site(url, Settings(), {}).level == "fail"
    assert health.site("", Settings(), {"PORT": str(server.server_port)}).level == "ok"
    assert health.site("", Settings(), {"BIND": "unix:/tmp/x"}).level == "ok"
