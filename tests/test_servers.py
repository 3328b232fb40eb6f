"""The servers that all other tests stand on."""

import os
import socket
from pathlib import Path

import pytest
import redis

from tests.conftest import MakeServer
from tests.servers import Kind, Server, wait_for

both = pytest.mark.parametrize("kind", ["valkey", "redis7"])


def test_a_database_is_empty_at_first(client: "redis.Redis") -> None:
    assert client.dbsize() == 0
    client.set("left", "over")


def test_and_for_the_next_test_again(client: "redis.Redis") -> None:
    assert client.dbsize() == 0


def test_client_is_on_the_server_that_the_test_asks_for(server: Server, client: "redis.Redis") -> None:
    info = client.info("server")
    assert ("valkey_version" in info) == (server.kind == "valkey")
    assert info["process_id"] == server.pid


@both
def test_an_append_only_server_keeps_what_it_answered_for_through_a_crash(kind: Kind, make_server: MakeServer) -> None:
    server = make_server(kind, appendonly=True, appendfsync="always")
    with redis.Redis.from_url(server.url) as client:
        client.set("name", "Ada")
        server.kill()
        server.start()
        assert client.get("name") == b"Ada"


@both
def test_a_restart_keeps_the_data_and_a_crash_of_memory_does_not(kind: Kind, make_server: MakeServer) -> None:
    server = make_server(kind)
    with redis.Redis.from_url(server.url) as client:
        client.set("name", "Ada")
        server.restart()
        assert client.get("name") == b"Ada"
        client.set("name", "Grace")
        server.kill()
        server.start()
        assert client.get("name") == b"Ada"


@both
def test_a_paused_server_answers_nobody_and_then_everybody(kind: Kind, make_server: MakeServer) -> None:
    server = make_server(kind)
    server.pause()
    assert not server.ping(timeout=0.1)
    server.resume()
    wait_for(server.ping)


def test_extra_arguments_reach_the_server_and_stay(make_server: MakeServer) -> None:
    server = make_server("valkey", "--maxmemory", "7mb")
    server.restart()
    with redis.Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(7 * 1024 * 1024)}


def test_close_leaves_neither_process_nor_data(tmp_path: Path) -> None:
    with Server("valkey").start() as server:
        pid, folder = server.pid, server.dir
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()


def test_wait_for_says_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match="waited 0 s for the end of days; the last value was None"):
        wait_for(lambda: None, 0, what="the end of days")


def test_the_network_is_shut() -> None:
    with pytest.raises(RuntimeError, match="network is shut"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
