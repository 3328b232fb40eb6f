"""`orchestrator bench`: figures within its time, and nothing left behind."""

import json
import time
from typing import cast

import pytest
import redis

from tests.cli.conftest import Say, Told
from tests.tasks.workers import environment


@pytest.mark.acceptance
def test_bench_measures_and_leaves_nothing(say: Say, url: str, client: "redis.Redis") -> None:
    client.set("orc:mine", "1")
    began = time.monotonic()
    # A model that the environment names must not be asked: it would cost somebody money.
    done = say(
        "bench",
        "--seconds",
        "1",
        "--workers",
        "1",
        "-c",
        "8",
        "--json",
        env=environment(url, "", model="no-such:model"),
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 25
    figures = json.loads(done.stdout)
    assert figures["stepsPerSecond"] > 1
    assert (figures["workers"], figures["concurrency"], figures["sessions"]) == (1, 8, 8)
    assert 0 < figures["answeredMs"]["p50"] <= figures["answeredMs"]["p95"]
    assert figures["begunMs"]["p50"] <= figures["answeredMs"]["p50"]
    left = {key for key in cast("list[bytes]", client.keys("*")) if not key.startswith(b"_kombu")}
    assert left == {b"orc:mine"}


def test_bench_wants_the_broker_on_the_journals_server(told: Told) -> None:
    answer = told("bench", broker_url="amqp://127.0.0.1:1//")
    assert answer.code == 2
    assert "ORCHESTRATOR_BROKER_URL" in answer.err
