"""The local world: one server a folder, whoever comes first, and the same data after every kind of end."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator import local
from orchestrator.errors import ConfigError
from orchestrator.local import LocalServerAway, resolve, stop
from tests.servers import wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "world"
    yield folder
    if folder.exists():
        if pid := pid_of(folder):
            signal_to(pid, signal.SIGCONT)
        stop(folder)


def at(folder: Path) -> "redis.Redis":
    return redis.Redis.from_url(resolve(f"local:{folder}"))


def pid_of(folder: Path) -> int:
    return int(json.loads((folder / "server").read_text())["pid"]) if (folder / "server").exists() else 0


def signal_to(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def crash(folder: Path) -> None:
    """Kill the server. What it has said yes to is in its log by then: a slow disk can hold that back for a second or two."""
    log = next((folder / "appendonlydir").glob("*.incr.aof"))
    with at(folder) as client:
        client.set("until", "here")
    wait_for(lambda: b"until" in log.read_bytes(), what="the log")
    os.kill(pid_of(folder), signal.SIGKILL)
    wait_for(lambda: not local._is_alive(folder), what="the end of the server")


def test_other_urls_pass_unchanged() -> None:
    assert resolve("redis://somewhere:6379/3") == "redis://somewhere:6379/3"
    assert resolve("sentinel://a,b/0") == "sentinel://a,b/0"


def test_the_first_call_starts_it_and_the_next_ones_find_it(folder: Path) -> None:
    first = resolve(f"local:{folder}")
    pid = pid_of(folder)
    assert resolve(f"local:{folder}") == first
    assert pid_of(folder) == pid
    assert first.startswith("redis://:")
    assert "@127.0.0.1:" in first


def test_it_is_append_only_and_evicts_nothing(folder: Path) -> None:
    with at(folder) as client:
        settings = client.config_get("append*", "maxmemory-policy", "aof-load-truncated", "bind")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["aof-load-truncated"] == "yes"
    assert settings["bind"] == "127.0.0.1"


def test_without_the_password_it_says_nothing(folder: Path) -> None:
    url = resolve(f"local:{folder}")
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_nobody_else_may_read_its_files(folder: Path) -> None:
    resolve(f"local:{folder}")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        if path.name != ".gitignore":
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_password_is_not_among_its_arguments(folder: Path) -> None:
    url = resolve(f"local:{folder}")
    password = url.removeprefix("redis://:").split("@")[0]
    arguments = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid_of(folder))], capture_output=True, check=True)
    assert password not in arguments.stdout.decode()


def test_many_at_once_get_the_same_server(folder: Path) -> None:
    code = f"from orchestrator.local import resolve; print(resolve('local:{folder}'))"
    starters = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    said = [starter.communicate(timeout=60) for starter in starters]
    assert {out for out, _ in said} == {resolve(f"local:{folder}") + "\n"}, said


def test_stop_keeps_the_data(folder: Path) -> None:
    with at(folder) as client:
        client.set("name", "Ada")
    stop(folder)
    assert not local._is_alive(folder)
    with at(folder) as client:
        assert client.get("name") == b"Ada"


def test_stop_twice_and_stop_of_nothing_are_fine(folder: Path) -> None:
    stop(folder)
    resolve(f"local:{folder}")
    stop(folder)
    stop(folder)


def test_after_a_crash_it_comes_back_at_the_same_address_with_the_same_data(folder: Path) -> None:
    url = resolve(f"local:{folder}")
    with redis.Redis.from_url(url) as client:
        client.set("name", "Ada")
        crash(folder)
        assert resolve(f"local:{folder}") == url
        assert client.get("name") == b"Ada"


def test_a_log_cut_by_a_crash_loses_its_last_write_and_nothing_else(folder: Path) -> None:
    with at(folder) as client:
        client.set("first", "kept")
    crash(folder)
    (log,) = (folder / "appendonlydir").glob("*.incr.aof")
    os.truncate(log, log.stat().st_size - 3)
    with at(folder) as client:
        assert client.get("first") == b"kept"
        assert client.get("until") is None


def test_a_damaged_log_is_an_error_that_says_where_to_look(folder: Path) -> None:
    with at(folder) as client:
        client.set("name", "Ada")
    crash(folder)
    (log,) = (folder / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"*3\r\n$rubbish" + log.read_bytes())
    with pytest.raises(LocalServerAway, match=r"Bad file format.*server\.log"):
        resolve(f"local:{folder}")


def test_a_stale_address_file_is_replaced(folder: Path) -> None:
    folder.mkdir()
    (folder / "server").write_text(json.dumps({"port": 1, "password": "old", "pid": os.getpid(), "version": "0"}))
    with at(folder) as client:
        assert client.ping()
    assert pid_of(folder) not in (0, os.getpid())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}'])
def test_an_address_file_that_cannot_be_read_is_replaced(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "server").write_text(text)
    with at(folder) as client:
        assert client.ping()


def test_a_port_that_somebody_took_meanwhile_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = resolve(f"local:{folder}")
    stop(folder)
    monkeypatch.setattr(local, "ANSWER_SECONDS", 0.1)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(url.rsplit(":", 1)[1].split("/")[0])))
        taken.listen()
        assert resolve(f"local:{folder}") != url


def test_a_server_that_hangs_is_named_and_never_doubled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(f"local:{folder}")
    pid = pid_of(folder)
    monkeypatch.setattr(local, "START_SECONDS", 0.2)
    monkeypatch.setattr(local, "ANSWER_SECONDS", 0.1)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LocalServerAway, match=f"kill -9 {pid}"):
        resolve(f"local:{folder}")


def test_ctrl_c_in_the_terminal_of_the_starter_does_not_reach_it(folder: Path) -> None:
    resolve(f"local:{folder}")
    assert os.getsid(pid_of(folder)) != os.getsid(0)


def test_a_folder_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="ORCHESTRATOR_URL=local:DIR"):
        resolve(f"local:{tmp_path / 'file' / 'world'}")


def test_a_folder_with_odd_letters_works(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" \\ wörld'
    try:
        with at(folder) as client:
            assert client.ping()
    finally:
        stop(folder)
