"""In a Celery app that was there before us."""

import importlib
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from celery import Celery, current_app

from tests.servers import wait_for
from tests.tasks.conftest import Desk, ran
from tests.tasks.workers import ROOT, Process, environment

HOST = """\
from celery import Celery
import tasks
from tests.tasks.shop import app as shop

celery = Celery("host", broker="{url}")
celery.conf.task_default_queue = "theirs"
guest = tasks.install(celery, shop)

@celery.task
def own_task(place):
    with open(place, "a") as file:
        file.write("x")
"""


def test_installing_changes_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: Any = importlib.import_module("tasks")
    host, untouched = (Celery("host", broker="redis://127.0.0.1:1/0", set_as_current=False) for _ in range(2))
    tasks.install(host)
    assert not cast(Any, host).configured, "it may still be configured"
    assert dict(host.conf) == dict(untouched.conf)
    assert host.conf.changes == untouched.conf.changes
    assert {"orchestrator.step", "orchestrator.resume"} <= set(host.tasks)
    assert set(host.amqp.queues) == set(untouched.amqp.queues)


def test_importing_tasks_leaves_the_current_app_alone() -> None:
    before = current_app.main
    importlib.import_module("tasks")
    assert current_app.main == before != "tasks"


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_the_hosts_workers_do_both(
    pool: str, desk: Desk, url: str, tmp_path: Path, folder: Path, client: "redis.Redis"
) -> None:
    (tmp_path / "hostapp.py").write_text(HOST.format(url=url))
    env = {**environment(url, ""), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "celery", "-A", "hostapp:celery", "worker", "-l", "INFO", "-P", pool, "-c", "2"]
    process = Process(command, env, tmp_path / "log", cwd=tmp_path).says(" ready.")
    try:
        session = desk.say(f"note {folder} 0")
        desk.wait(session)
        assert len(ran(folder)) == 1
        host = Celery("host", broker=url, set_as_current=False)
        host.conf.task_default_queue = "theirs"
        host.send_task("hostapp.own_task", (str(tmp_path / "theirs"),))
        wait_for(lambda: (tmp_path / "theirs").exists() and (tmp_path / "theirs").read_text())
        # Ours is no second place where their tasks arrive.
        assert client.smembers("_kombu.binding.theirs") == {b"theirs\x06\x16\x06\x16theirs"}
        assert (tmp_path / "theirs").read_text() == "x"
        wait_for(lambda: client.hkeys("orc:workers"))
        process.signal()
        process.ends()
        assert client.hkeys("orc:workers") == []
        host.close()
    finally:
        process.stop()


def test_a_host_worker_that_listens_elsewhere_does_not_say_it_works_for_us(
    url: str, tmp_path: Path, client: "redis.Redis", desk: Desk
) -> None:
    (tmp_path / "hostapp.py").write_text(HOST.format(url=url))
    env = {**environment(url, ""), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "hostapp:celery",
        "worker",
        "-l",
        "INFO",
        "-P",
        "solo",
        "-Q",
        "theirs",
    ]
    process = Process(command, env, tmp_path / "log", cwd=tmp_path).says(" ready.")
    try:
        session = desk.say("hello")
        client.delete("orc.default")
        # It keeps all the same: it rings for those who listen.
        wait_for(lambda: client.llen("orc.default") == 1, what=f"the wake of {session}")
        assert not client.exists("orc:workers")
    finally:
        process.stop()
