"""Processes that are kept running: workers under their supervisor, and all of `orchestrator dev`."""

import json
import os
import signal
import socket
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator import local
from orchestrator.cli.supervisor import Child, Supervisor
from tests.cli.conftest import APP, Run
from tests.servers import free_port, wait_for
from tests.tasks.conftest import Desk, ran
from tests.tasks.workers import Process, environment


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_dies_is_started_again(run: Run, url: str, desk: Desk) -> None:
    supervisor = run("worker", "--processes", "2", "-c", "4", env=environment(url))
    wait_for(lambda: beating(desk) == 2)
    workers = desk.engine.reads.workers("default")
    first, second = supervisor.children()
    os.kill(first, signal.SIGKILL)
    killed = time.monotonic()
    wait_for(lambda: len(supervisor.children()) == 2 and first not in supervisor.children())
    assert time.monotonic() - killed < 2.0
    assert second in supervisor.children()
    # The same workers by their ids, and both have beaten since.
    wait_for(lambda: all(at > workers[name] for name, at in desk.engine.reads.workers("default").items()))
    assert desk.engine.reads.workers("default").keys() == workers.keys()
    supervisor.signal()
    assert supervisor.ends(10) == 0
    assert not lives(second)
    assert beating(desk) == 0


def beating(desk: Desk) -> int:
    return len(desk.engine.reads.workers("default"))


def test_a_supervisor_that_is_killed_leaves_nobody_behind(run: Run, url: str, desk: Desk, folder: Path) -> None:
    supervisor = run("worker", "--processes", "2", "--pool", "prefork", "-c", "2", env=environment(url))
    wait_for(lambda: beating(desk) == 2)
    desk.say(f"note {folder} 60")
    grandchild = wait_for(lambda: ran(folder))[0]
    children = supervisor.children()
    supervisor.stop()
    wait_for(lambda: not any(lives(pid) for pid in [*children, grandchild]), 3.0)


def test_a_worker_that_cannot_be_started_at_all_is_not_started_again(run: Run, url: str) -> None:
    supervisor = run("worker", APP, env=environment(url, deployment="Not A Label"))
    assert supervisor.ends() == 2
    assert "is no label" in supervisor.log


def test_what_dies_at_once_is_started_less_and_less_often(tmp_path: Path) -> None:
    child = Child("short", ["sh", "-c", f"date +%s%N >> {tmp_path}/starts; exit 1"], os.environ, 1.0)
    child.start()
    starts: list[int] = []

    def five() -> bool:
        child.look()
        lines = (tmp_path / "starts").read_text().split() if (tmp_path / "starts").exists() else []
        starts[:] = [int(line) // 1_000_000 for line in lines]
        return len(starts) >= 5

    wait_for(five, 20.0)
    pauses = [after - before for before, after in pairwise(starts)]
    # The shell says when it runs, which is a little after it was started.
    assert pauses[0] >= 150
    assert all(later > 1.3 * earlier for earlier, later in pairwise(pauses)), pauses


def test_who_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    stubborn = Child(
        "stubborn", ["sh", "-c", f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"], os.environ, 0.5
    )

    def once_up() -> None:
        if (tmp_path / "up").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    assert Supervisor([stubborn]).run(once_up) == 0
    assert not stubborn.lives


class Dev:
    """`orchestrator dev`, from outside."""

    def __init__(self, process: Process, port: int) -> None:
        self.process, self.url = process, f"http://127.0.0.1:{port}"

    def ready(self) -> "Dev":
        self.process.says(f"ready {self.url}", 30.0)
        return self

    def say(self, text: str) -> str:
        body = json.dumps({"message": text}).encode()
        request = urllib.request.Request(
            f"{self.url}/eve/v1/session", data=body, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(json.load(answer)["sessionId"])

    def health(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/v1/health", timeout=5) as answer:
            return json.load(answer)


def dev(run: Run, data: Path, port: int, *arguments: str, **settings: str) -> Dev:
    env = environment("", "", **settings)
    del env["ORCHESTRATOR_URL"]
    process = run("dev", APP, "--port", str(port), "--data", str(data), "--no-chat", *arguments, env=env)
    return Dev(process, port)


@pytest.mark.acceptance
def test_dev_starts_everything_and_ends_everything(run: Run, data: Path) -> None:
    port = free_port()
    running = dev(run, data, port, "--workers", "2").ready()
    assert running.health()["deployments"]["default"]["workers"] == 2
    session = running.say("hello")
    desk = Desk(local.resolve(f"local:{data}"))
    desk.wait(session)  # type: ignore[arg-type]
    children = running.process.children()
    assert len(children) == 3
    assert running.process.log.count("ready http") == 1
    running.process.signal(signal.SIGINT)
    assert running.process.ends() == 0
    assert not any(lives(pid) for pid in children)
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port)):
        pass
    address = json.loads((data / "server").read_text())
    assert not lives(address["pid"])


@pytest.mark.acceptance
def test_dev_that_is_killed_leaves_no_orphans_and_goes_on_where_it_was(run: Run, data: Path, folder: Path) -> None:
    port = free_port()
    running = dev(run, data, port, lease_seconds="2").ready()
    session = running.say(f"note {folder} 60")
    wait_for(lambda: ran(folder))
    children = running.process.children()
    theirs = [pid for child in children for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
    assert theirs, "gunicorn has workers of its own"
    running.process.stop()
    every = [*children, *map(int, theirs)]
    wait_for(lambda: not any(lives(pid) for pid in every), 5.0, what="the end of its children")
    again = dev(run, data, port, lease_seconds="2").ready()
    wait_for(lambda: len(ran(folder)) == 2)
    (folder / "go").touch()
    desk = Desk(local.resolve(f"local:{data}"))
    desk.wait(session)  # type: ignore[arg-type]
    again.process.signal()
    assert again.process.ends() == 0


@pytest.mark.acceptance
def test_dev_says_that_it_does_not_use_the_redis_of_the_settings(run: Run, data: Path) -> None:
    port = free_port()
    env = environment("redis://:secret@redis.internal:6379/0", "", broker_url="amqp://broker//")
    process = run("dev", APP, "--port", str(port), "--data", str(data), "--no-chat", env=env)
    process.says(f"ready http://127.0.0.1:{port}", 30.0)
    [line] = [line for line in process.log.splitlines() if "not used" in line]
    assert line.startswith(
        "ORCHESTRATOR_URL=redis://:***@redis.internal:6379/0 and ORCHESTRATOR_BROKER_URL=amqp://broker// are"
    )
    assert str(data) in line
    process.signal()
    assert process.ends() == 0


@pytest.mark.acceptance
def test_dev_keeps_its_data_in_the_folder_that_the_settings_name(run: Run, data: Path) -> None:
    port = free_port()
    process = run("dev", APP, "--port", str(port), "--no-chat", env=environment(f"local:{data}", ""))
    process.says(f"ready http://127.0.0.1:{port}", 30.0)
    assert (data / "server").exists()
    assert "not used" not in process.log
    process.signal()
    assert process.ends() == 0


@pytest.mark.acceptance
def test_web_is_gunicorn_with_our_settings(run: Run, url: str) -> None:
    port = free_port()
    process = run("web", APP, "--processes", "2", env=environment(url, "", allow_anonymous="1") | {"PORT": str(port)})
    process.says(f"Listening at: http://127.0.0.1:{port}", 30.0)
    process.says("Using worker: gthread")
    wait_for(lambda: len(process.children()) == 2)
    process.signal()
    assert process.ends() == 0


@pytest.mark.acceptance
def test_a_worker_waits_for_a_redis_that_is_away_and_says_so(run: Run, tmp_path: Path) -> None:
    process = run("worker", APP, env=environment("redis://127.0.0.1:1/0", ""))
    process.says("The Redis at redis://127.0.0.1:1/0 does not answer")
    assert "Waiting for it." in process.log
    assert process.running
    process.signal()
    process.ends()


@pytest.mark.acceptance
def test_dev_prints_a_hint_where_nobody_chats(run: Run, data: Path) -> None:
    port = free_port()
    env = environment("", "")
    del env["ORCHESTRATOR_URL"]
    process = run("dev", APP, "--port", str(port), "--data", str(data), env=env)
    process.says("curl")
    process.signal()
    assert process.ends() == 0
