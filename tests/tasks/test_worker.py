"""Workers by the plain command line: lean, on every pool, through a broker's restart, with a broker elsewhere."""

import signal
from pathlib import Path
from typing import cast

import pytest
import redis

from orchestrator.config import Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.engine import Engine
from tests.conftest import MakeServer
from tests.servers import free_port, wait_for
from tests.tasks.conftest import Desk, StartWorker, ran
from tests.tasks.shop import app
from tests.tasks.workers import Process, celery, environment

POOLS = [(), ("--pool", "threads", "-c", "2"), ("-P", "prefork", "-c", "2"), ("--pool=solo",)]


@pytest.mark.parametrize("pool", POOLS, ids=" ".join)
def test_every_pool_carries_a_session_on(pool: tuple[str, ...], start: StartWorker, desk: Desk, folder: Path) -> None:
    process = start(*pool)
    session = desk.say(f"note {folder} 0")
    desk.wait(session)
    assert len(ran(folder)) == 1
    assert (ran(folder)[0] == process.pid) == ("prefork" not in pool)
    assert "Traceback" not in process.log


def test_the_pool_is_threads_unless_another_is_asked_for(start: StartWorker) -> None:
    assert "concurrency: 32 (thread)" in start().log
    assert "(prefork)" in start("-P", "prefork", "-c", "1").log
    assert "concurrency: 1 (solo)" in start("--pool", "solo", "-c", "8").log


def test_the_plain_command_starts_a_lean_worker(start: StartWorker) -> None:
    process = start("-l", "DEBUG")
    begun = [line for line in process.log.splitlines() if "| Consumer: Starting" in line]
    started = {line.rpartition("Starting ")[2] for line in begun}
    assert {"Connection", "Tasks"} <= started
    assert not {"Gossip", "Mingle", "Heart"} & started


def test_with_events_it_also_tells_that_it_is_alive(start: StartWorker) -> None:
    process = start("-l", "DEBUG", "-E")
    assert "| Consumer: Starting Heart" in process.log
    assert "Starting Gossip" not in process.log
    assert "Starting Mingle" not in process.log


def test_a_queue_leaves_no_binding_behind(start: StartWorker, desk: Desk, client: "redis.Redis") -> None:
    start("-Q", "orc.default,orc.blue")
    desk.wait(desk.say("hello"))
    keys = {key.decode() for key in client.scan_iter("_kombu.binding*")}
    # How `celery inspect` reaches workers; the same few keys for any number of queues.
    assert keys <= {"_kombu.binding.celery.pidbox", "_kombu.binding_deadlines"}


def test_workers_of_a_deployment_listen_to_its_queue_only(start: StartWorker, client: "redis.Redis") -> None:
    process = start(deployment="blue")
    assert "orc.blue" in process.log
    assert "orc.default" not in process.log
    wait_for(lambda: client.hkeys("orc:workers"))
    assert [key.split(b"|")[0] for key in cast("list[bytes]", client.hkeys("orc:workers"))] == [b"blue"]


def test_what_the_environment_says_about_other_celery_apps_does_not_reach_us(
    url: str, tmp_path: Path, desk: Desk
) -> None:
    env = {**environment(url), "CELERY_BROKER_URL": f"redis://127.0.0.1:{free_port()}/0"}
    process = Process(celery("worker"), env, tmp_path / "log")
    try:
        desk.wait(desk.say("hello"))
    finally:
        process.stop()


def test_a_task_that_raises_is_told_with_its_session_and_ends_nothing(
    start: StartWorker, desk: Desk, client: "redis.Redis"
) -> None:
    process = start()
    broken, sound = desk.say("hello"), ""
    desk.wait(broken)
    client.set(desk.engine.journal.keys(broken).snapshot, b"\xff\xff no snapshot")
    desk.engine.deliver(broken, Body((Part("text", "again"),)))
    process.says(f"{broken}")
    sound = desk.say("hello")
    desk.wait(sound)
    assert process.running


def test_a_wake_for_no_session_is_harmless(start: StartWorker, desk: Desk, client: "redis.Redis") -> None:
    from orchestrator.envelope import STEP, fill, template

    process = start()
    for number in range(3):
        text = fill(
            template(STEP),
            session="ses_01M8PDT0000000000000000000AB",
            key="x",
            queue="orc.default",
            number=number,
            at_ms=1,
        )
        client.lpush("orc.default", text)
    desk.wait(desk.say("hello"))
    assert process.running
    assert "Traceback" not in process.log


@pytest.mark.parametrize("pool", [(), ("-P", "prefork", "-c", "2"), ("-P", "solo")], ids=" ".join)
def test_a_worker_survives_a_restart_of_redis(
    pool: tuple[str, ...], start: StartWorker, make_server: MakeServer, folder: Path
) -> None:
    server = make_server(appendonly=True)
    process = start(*pool, url=server.url)
    desk = Desk(server.url)
    desk.wait(desk.say("hello"))
    held = desk.say(f"note {folder} 2")
    wait_for(lambda: ran(folder))
    server.restart()
    desk.wait(held, timeout=40)
    desk.wait(desk.say("hello"), timeout=40)
    assert process.running
    # The call of the time of the restart is the same call after it.
    assert len(ran(folder)) == 1


def test_with_a_broker_elsewhere_steps_and_messages_are_published(
    start: StartWorker, make_server: MakeServer, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_server()
    start(broker_url=broker.url)
    desk = elsewhere(url, broker.url)
    session = desk.say(f"note {folder} 0")
    desk.wait(session)
    with redis.Redis.from_url(broker.url) as client:
        assert not list(client.scan_iter("_kombu.binding.orc*"))
    with redis.Redis.from_url(url) as client:
        assert client.llen("orc.default") == 0


def test_what_nobody_could_publish_is_rung_by_the_keeper(start: StartWorker, make_server: MakeServer, url: str) -> None:
    broker = make_server()
    desk = elsewhere(url, broker.url)
    broker.kill()
    session = desk.say("hello")
    broker.start()
    start(broker_url=broker.url)
    desk.wait(session)


def elsewhere(url: str, broker_url: str) -> Desk:
    """A desk of a process that publishes to a broker of its own."""
    from tasks.steps import register
    from tasks.wake import PublishedWake
    from tasks.worker import Orchestrator

    celery_app = Orchestrator("web", set_as_current=False)
    celery_app.config_from_object("celeryconfig")
    celery_app.here._given = Settings(url=url, broker_url=broker_url)
    register(celery_app, celery_app.here)
    desk = Desk(url)
    desk.engine = Engine(app, Settings(url=url, broker_url=broker_url), wake=PublishedWake(celery_app))
    return desk


def test_a_broker_that_hangs_holds_nobody_up_for_two_seconds(make_server: MakeServer, url: str) -> None:
    import time

    broker = make_server()
    desk = elsewhere(url, broker.url)
    desk.say("hello")
    broker.pause()
    try:
        begun = time.monotonic()
        desk.say("hello")
        assert time.monotonic() - begun < 2.0
    finally:
        broker.resume()


@pytest.mark.parametrize(
    ("app_name", "said"),
    [
        ("", "ORCHESTRATOR_APP is not set"),
        ("no.such:app", "there is no module"),
        ("tests.tasks.shop:nothing", "has no 'nothing'"),
    ],
)
def test_a_worker_without_its_app_says_so_in_one_line(app_name: str, said: str, url: str, tmp_path: Path) -> None:
    process = Process(celery("worker"), environment(url, app_name), tmp_path / "log")
    assert process.ends() == 2
    assert said in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("pool", [(), ("-P", "prefork", "-c", "2"), ("-P", "solo")], ids=" ".join)
def test_a_consumer_can_be_connected_anew_and_a_worker_given_up(
    pool: tuple[str, ...], start: StartWorker, desk: Desk, client: "redis.Redis"
) -> None:
    process = start(*pool, app="tests.tasks.deaf:app")
    desk.wait(desk.say("hello"))
    process.signal(signal.SIGUSR2)
    process.says("nothing was heard on this connection")
    desk.wait(desk.say("hello"))
    process.signal(signal.SIGUSR2)
    assert process.ends(10) == 75
    assert client.hkeys("orc:workers") == []
