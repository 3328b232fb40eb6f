"""The real web process: where it listens, what it logs, how it ends."""

import importlib
import signal
import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from gunicorn.config import Config

import web.gunicorn as settings
from orchestrator.engine import Engine
from tests.servers import Server, wait_for
from tests.web.support import Hand, Web
from web.logged import cut

SESSION = "/eve/v1/session"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_streams_do_not_hold_the_shutdown_and_end_after_a_whole_line(
    valkey: Server, hand: Hand, number: signal.Signals
) -> None:
    hand.said(3)
    site = Web(valkey.url).ready()
    readers = [site.follow(hand.session) for _ in range(10)]
    try:
        for reader in readers:
            reader.until(range(3))
        assert site.stop(number) < 4
        for reader in readers:
            reader.until_end()
            assert reader.indexes == [0, 1, 2]
        assert site.process.returncode == 0
    finally:
        for reader in readers:
            reader.close()
        site.stop()


def chunked(site: Web, path: str, pieces: list[bytes]) -> bytes:
    """The head of the answer to a body without a length."""
    with socket.create_connection(("127.0.0.1", site.port), 10) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        with suppress(OSError):  # it may have heard enough
            for piece in pieces:
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
        return connection.recv(65536)


def test_the_access_log_has_no_query(site: Web, engine: Engine) -> None:
    session = engine.create().session
    with site.follow(session, "?follow=0&token=hush-hush") as reader:
        reader.until_end()
    site.get("/eve/v1/health?token=hush-hush", referer="http://x/?token=hush-hush", authorization="Bearer hush-hush")
    wait_for(lambda: f"GET {SESSION}/{session}/stream HTTP/1.1" in site.log, what="the access log")
    wait_for(lambda: "/eve/v1/health" in site.log)
    assert "hush-hush" not in site.log


def test_the_access_log_shows_no_path_that_opens_a_door_and_no_credential(valkey: Server) -> None:
    every = '%(U)s "%(r)s" %({authorization}i)s %({cookie}i)s'
    with Web(valkey.url, "--access-logformat", every) as site:
        site.post("/eve/v1/callback/hush-hush", authorization="Bearer hush-hush", cookie="hush-hush")
        site.get("/eve/v1/connections/crm/callback/1/hush-hush/more?x=hush-hush")
        site.get("/.well-known/workflow/v1/webhook/hush-hush")
        for seen in ("/eve/v1/callback/…", "/eve/v1/connections/crm/callback/…", "/workflow/v1/webhook/…"):
            wait_for(lambda seen=seen: seen in site.log, what=seen)  # type: ignore[misc]  # mypy cannot infer defaults
        assert "hush-hush" not in site.log


def test_our_own_log_shows_no_path_that_opens_a_door() -> None:
    assert cut("/v1/callback/abc") == "/v1/callback/…"
    assert cut("/v1/requests/abc") == "/v1/requests/…"
    assert cut("/v1//requests//abc/d") == "/v1//requests/…"
    assert cut("/v1/session/ses_1/requests") == "/v1/session/ses_1/requests"
    assert cut("/v1/session/ses_1/callback") == "/v1/session/ses_1/callback"
    assert cut("/v1/webhooks/shop") == "/v1/webhooks/shop"  # what counts there is the signature


def test_a_body_without_a_length_has_the_same_limit(valkey: Server, engine: Engine) -> None:
    with Web(valkey.url, ORCHESTRATOR_BODY_LIMIT_BYTES="1000") as site:
        assert b" 202 " in chunked(site, SESSION, [b'{"mess', b'age":"a"}'])
        assert len(engine.sessions()) == 1
        whole = b'{"message":"a"}'
        for padding in (986, 2000, 500_000):  # also where what is cut off would be blank
            answer = chunked(site, SESSION, [whole, b" " * padding])
            assert b" 413 " in answer.split(b"\r\n")[0]
        assert site.post(SESSION, b"x" * 1001)[1]["code"] == "body_too_large"
        assert len(engine.sessions()) == 1


@pytest.mark.parametrize(
    ("environ", "bind"),
    [
        ({}, "127.0.0.1:8000"),
        ({"PORT": "9000"}, "127.0.0.1:9000"),
        ({"BIND": "0.0.0.0"}, "0.0.0.0:8000"),
        ({"BIND": "0.0.0.0", "PORT": "9000"}, "0.0.0.0:9000"),
        ({"BIND": "0.0.0.0:7000", "PORT": "9000"}, "0.0.0.0:7000"),
        ({"BIND": "[::1]"}, "[::1]:8000"),
        ({"BIND": "[::1]:7000"}, "[::1]:7000"),
        ({"BIND": "unix:/tmp/web"}, "unix:/tmp/web"),
    ],
)
def test_it_listens_where_the_environment_says_and_else_on_loopback(environ: dict[str, str], bind: str) -> None:
    assert settings.address(environ) == bind


def test_there_are_threads_for_all_readers_and_some_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings.worker_class, settings.threads) == ("gthread", 64)
    monkeypatch.setenv("ORCHESTRATOR_STREAMS", "200")
    assert importlib.reload(settings).threads > 200
    monkeypatch.setenv("ORCHESTRATOR_STREAMS", "2000")
    again = importlib.reload(settings)
    assert again.worker_connections > again.threads > 2000  # otherwise the last readers would wait to be accepted
    monkeypatch.undo()
    importlib.reload(settings)


def test_gunicorn_knows_every_setting_of_ours() -> None:
    ours = {name for name, value in vars(settings).items() if isinstance(value, str | int) and name[0] != "_"}
    assert "control_socket_disable" in ours
    # It ignores what it does not know, without a word.
    assert ours <= Config().settings.keys()


def test_it_does_not_start_on_a_redis_that_throws_sessions_away(make_server: Any) -> None:
    server = make_server("valkey", "--maxmemory-policy", "allkeys-lru")
    site = Web(server.url)
    begun = time.monotonic()
    site.process.wait(10)
    assert site.process.returncode != 0
    wait_for(lambda: "noeviction" in site.log)
    assert time.monotonic() - begun < 10


def test_it_does_not_start_without_an_app(valkey: Server) -> None:
    site = Web(valkey.url, target="web:create_app()")
    site.process.wait(10)
    wait_for(lambda: "ORCHESTRATOR_APP is not set" in site.log)


def test_with_one_thread_a_stream_ends_after_its_tail(valkey: Server, hand: Hand) -> None:
    hand.said(2)
    with Web(valkey.url, "-k", "sync", "--threads", "1") as site, site.follow(hand.session) as reader:
        reader.until_end()
        assert reader.indexes == [0, 1]
        wait_for(lambda: "one request at a time" in site.log)
