"""docker-compose.yml says what is so: its processes work together, Flower shows the steps, and nothing is open that was not opened."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from orchestrator import apikeys
from orchestrator.config import Settings
from tests.acceptance.caller import Caller
from tests.acceptance.composed import Composed, read
from tests.servers import wait_for

pytest.importorskip("flower")
pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(240)]

KEY, ENTRY = apikeys.mint("website")
PASSWORD = "ops:swordfish"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """Everything that `docker compose up` starts, healthy by the checks of the file."""
    given = {"ORCHESTRATOR_API_KEYS": ENTRY, "FLOWER_BASIC_AUTH": PASSWORD}
    with Composed(tmp_path_factory.mktemp("compose"), given) as composed:
        composed.up()
        yield composed


def flower(system: Composed, path: str, credential: str | None = PASSWORD) -> tuple[int, Any]:
    """Status and JSON of an answer. `credential` is encoded as Basic has it, None is none."""
    asked = urllib.request.Request(f"http://127.0.0.1:{system.ports['flower']}{path}")
    if credential is not None:
        asked.add_header("authorization", f"Basic {base64.b64encode(credential.encode()).decode()}")
    return answer_to(asked)


def answer_to(asked: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text.startswith(b"{") else text
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_a_turn_goes_through_the_web_and_the_workers_and_flower_lists_its_steps(system: Composed) -> None:
    caller = Caller(system.ports["web"], KEY)
    assert caller.get("/health").body["deployments"]["default"]["workers"] == 2
    wait_for(lambda: len(flower(system, "/api/workers?refresh=1")[1]) == 2, 30, what="Flower to see both workers")
    session = caller.create("Where are B-1006 and B-1008? It is about the swordfish.")
    assert caller.ended(session) == ["turn.completed"]

    def of_the_turn() -> dict[str, str]:
        _, tasks = flower(system, "/api/tasks")
        return {task["args"]: task["name"] for task in tasks.values() if task["state"] == "SUCCESS"}

    steps = {f"{session}/turn_0/1": "orchestrator.step", f"{session}/turn_0/2": "orchestrator.step"}
    wait_for(lambda: steps.items() <= of_the_turn().items(), 20, what="Flower to list the steps of the turn")
    assert sum(shown.startswith(session) for shown in of_the_turn()) == 3  # and the one that took the message up
    assert "swordfish" not in str(flower(system, "/api/tasks"))


def test_strangers_get_nothing_from_the_web_and_nothing_from_flower(system: Composed) -> None:
    for stranger in (Caller(system.ports["web"]), Caller(system.ports["web"], "guessed")):
        assert stranger.post("/session", {"message": "hello"}).status == 401
    for path in ("/", "/api/tasks", "/api/workers", "/tasks", "/broker"):
        assert flower(system, path)[0] == 200, path
        for credential in (None, "", ":", "ops:", "ops:wrong", "nobody:"):
            assert flower(system, path, credential)[0] == 401, (path, credential)


def test_what_flower_shows_without_a_password_names_no_session(system: Composed) -> None:
    caller = Caller(system.ports["web"], KEY)
    session = caller.create("Where is B-1006? It is about the swordfish.")
    assert caller.ended(session) == ["turn.completed"]
    wait_for(lambda: "orchestrator.step" in str(flower(system, "/metrics", None)[1]), 20, what="Flower's figures")
    shown = str(flower(system, "/metrics", None)[1])
    assert "ses_" not in shown
    assert "swordfish" not in shown


def test_redis_keeps_what_was_accepted(system: Composed) -> None:
    with redis.Redis(port=system.ports["redis"], decode_responses=True) as client:
        found = client.config_get("appendonly", "maxmemory-policy", "appendfsync")
    assert found == {"appendonly": "yes", "maxmemory-policy": "noeviction", "appendfsync": "everysec"}
    assert list((system.folder / "appendonlydir").iterdir())
    assert read({})["services"]["redis"]["volumes"] == ["journal:/data"], "which is where the image keeps its data"


def test_a_worker_that_is_gone_is_not_healthy_and_the_other_goes_on(system: Composed) -> None:
    first, second = system.names("worker")
    system.running[first].signal()
    system.running[first].ends(40)
    assert not system.is_healthy("worker", first)
    assert system.is_healthy("worker", second)
    caller = Caller(system.ports["web"], KEY)
    assert caller.ended(caller.create("Where is B-1006?")) == ["turn.completed"]
    system.start_again("worker", first)


@pytest.mark.parametrize("given", [{}, {"FLOWER_BASIC_AUTH": ""}])
def test_flower_without_a_password_lets_nobody_in(given: dict[str, str], tmp_path: Path) -> None:
    with Composed(tmp_path, given) as composed:
        composed.up("redis", "flower")
        for credential in (None, "", ":", "nobody:", "nobody"):
            assert flower(composed, "/api/tasks", credential)[0] == 401, credential
            assert flower(composed, "/", credential)[0] == 401, credential
        # Padding alone decodes to nothing: what an empty password would be equal to.
        asked = urllib.request.Request(f"http://127.0.0.1:{composed.ports['flower']}/api/tasks")
        asked.add_header("authorization", "Basic ====")
        assert answer_to(asked)[0] == 401


def test_nothing_is_published_beyond_this_machine() -> None:
    services = read({})["services"]
    published = {name: spec["ports"] for name, spec in services.items() if "ports" in spec}
    assert published == {"web": ["127.0.0.1:8000:8000"], "flower": ["127.0.0.1:5555:5555"]}


def test_a_container_is_given_longer_to_stop_than_a_worker_takes() -> None:
    services = read({})["services"]
    for name in ("worker", "web"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > Settings().drain_seconds
    assert all("healthcheck" in spec and spec["restart"] == "unless-stopped" for spec in services.values())
