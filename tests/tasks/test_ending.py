"""SIGTERM: what can end in time ends, what cannot is given to another worker, and nothing hangs."""

import os
import signal
import time
from pathlib import Path

import pytest
import redis

from tests.servers import wait_for
from tests.tasks.conftest import Desk, StartWorker, ran

POOLS = [("-P", "threads"), ("-P", "prefork", "-c", "2"), ("-P", "solo")]


@pytest.mark.parametrize("pool", POOLS, ids=" ".join)
def test_a_call_that_ends_within_the_grace_is_not_repeated(
    pool: tuple[str, ...], start: StartWorker, desk: Desk, folder: Path, client: "redis.Redis"
) -> None:
    process = start(*pool, drain_seconds="20")
    session = desk.say(f"note {folder} 20")
    wait_for(lambda: ran(folder))
    process.signal()
    wait_for(lambda: "Warm shutdown" in process.log)
    (folder / "go").touch()
    assert process.ends(10) == 0
    assert client.hkeys("orc:workers") == []
    start(*pool)
    desk.wait(session, timeout=5)
    assert len(ran(folder)) == 1


@pytest.mark.parametrize("pool", POOLS, ids=" ".join)
def test_what_outlives_the_grace_is_carried_on_elsewhere_at_once(
    pool: tuple[str, ...], start: StartWorker, desk: Desk, folder: Path
) -> None:
    process = start(*pool, drain_seconds="1", lease_seconds="30")
    session = desk.say(f"note {folder} 30")
    wait_for(lambda: ran(folder))
    process.signal()
    told = time.monotonic()
    start(*pool)
    wait_for(lambda: len(ran(folder)) == 2, 6.0)  # well before the lease would have ended
    (folder / "go").touch()
    desk.wait(session, timeout=5)
    process.ends(1 + 5 - (time.monotonic() - told) + 1)


@pytest.mark.parametrize("pool", POOLS, ids=" ".join)
def test_a_tool_that_cannot_be_stopped_does_not_keep_the_worker(
    pool: tuple[str, ...], start: StartWorker, desk: Desk, folder: Path, client: "redis.Redis"
) -> None:
    process = start(*pool, drain_seconds="1")
    desk.say(f"stuck {folder}")
    wait_for(lambda: ran(folder))
    begun = time.monotonic()
    process.signal()
    process.ends(1 + 5)
    assert time.monotonic() - begun < 1 + 5
    wait_for(lambda: not Path(f"/proc/{ran(folder)[0]}").exists(), 2.0, what="the end of its children")
    assert client.hkeys("orc:workers") == []


@pytest.mark.parametrize("pool", POOLS, ids=" ".join)
@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGQUIT,)]
)
def test_a_second_signal_ends_it_at_once(
    signals: tuple[int, ...], pool: tuple[str, ...], start: StartWorker, desk: Desk, folder: Path
) -> None:
    process = start(*pool, drain_seconds="60")
    desk.say(f"note {folder} 60")
    wait_for(lambda: ran(folder))
    for number in signals:
        process.signal(number)
        time.sleep(0.2)  # two signals at the same moment are one
    process.ends(2.0)
    wait_for(lambda: not Path(f"/proc/{ran(folder)[0]}").exists(), 2.0, what="the end of its children")


def test_an_idle_worker_ends_at_once_and_says_goodbye(start: StartWorker, client: "redis.Redis") -> None:
    process = start()
    wait_for(lambda: client.hkeys("orc:workers"))
    process.signal()
    assert process.ends(3.0) == 0
    assert client.hkeys("orc:workers") == []


def test_a_signal_to_the_whole_group_is_as_gentle(start: StartWorker, desk: Desk, folder: Path) -> None:
    process = start("-P", "prefork", "-c", "2", drain_seconds="20")
    session = desk.say(f"note {folder} 20")
    wait_for(lambda: ran(folder))
    for pid in [*process.children(), process.pid]:
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: "Warm shutdown" in process.log)
    (folder / "go").touch()
    process.ends(10)
    start()
    desk.wait(session, timeout=5)
    assert len(ran(folder)) == 1


def test_a_killed_child_of_a_prefork_worker_is_replaced_within_a_second(
    start: StartWorker, desk: Desk, folder: Path
) -> None:
    process = start("-P", "prefork", "-c", "2", lease_seconds="30")
    session = desk.say(f"note {folder} 30")
    first = wait_for(lambda: ran(folder))[0]
    # Celery learns of a child's request a moment after it has begun.
    time.sleep(0.1)
    os.kill(first, signal.SIGKILL)
    killed = time.monotonic()
    wait_for(lambda: len(ran(folder)) == 2, 5.0)
    took = time.monotonic() - killed
    (folder / "go").touch()
    desk.wait(session)
    assert took < 1.5, f"{took:.2f} s"
    assert process.running
    assert ran(folder)[1] != first


def test_a_killed_worker_is_replaced_when_its_lease_is_over(start: StartWorker, desk: Desk, folder: Path) -> None:
    first = start(lease_seconds="2")
    start(lease_seconds="2")
    session = desk.say(f"note {folder} 30")
    owner = wait_for(lambda: ran(folder))[0]
    killed = time.monotonic()
    os.kill(owner, signal.SIGKILL)
    wait_for(lambda: len(ran(folder)) == 2, 10.0)
    took = time.monotonic() - killed
    (folder / "go").touch()
    desk.wait(session)
    assert took < 2 + 2, f"{took:.2f} s"
    first.stop()
