"""Fixtures for all tests. Servers are real and started once a run; every test gets an empty database.

`url` and `client` are on Valkey. A test that also asks for `server` (or marks `usefixtures("server")`) runs twice, and
they are on Valkey and on Redis 7 in turn. A test that stops, kills or pauses a server makes one: `make_server`.
"""

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from orchestrator.engine import Engine
from tests.servers import Kind, Server, binary

MakeServer = Callable[..., Server]


def pytest_configure() -> None:
    """The network is shut: a test that needs the internet is a test that fails on a train."""
    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, _only_here(getattr(socket.socket, name)))


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """The Valkey that `orchestrator dev` starts, shared by all tests of this process."""
    with _start("valkey") as server:
        yield server


@pytest.fixture(scope="session", params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Valkey, then Redis 7: for tests whose promise holds on both."""
    kind: Kind = request.param
    if kind == "valkey":
        yield cast(Server, request.getfixturevalue("valkey"))
        return
    with _start(kind) as server:
        yield server


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """`make_server("redis7", appendonly=True)`: a server of this test alone, which it may stop, kill and pause."""
    made: list[Server] = []

    def make(kind: Kind = "valkey", *extra: str, **options: Any) -> Server:
        _require(kind)
        server = Server(kind)
        made.append(server)
        return server.start(*extra, **options)

    yield make
    for server in made:
        server.close()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database: on each `server` if the test asks for it, else on `valkey`."""
    name = "server" if "server" in request.fixturenames else "valkey"
    server = cast(Server, request.getfixturevalue(name))
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


@pytest.fixture
def client(url: str) -> Iterator["redis.Redis"]:
    """A client of `url` that answers bytes."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture(autouse=True)
def engines_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine that a test made ends with it: a thousand tests in one process have descriptors for one each."""
    made: list[Engine] = []
    begin = Engine.__init__

    def begin_noted(engine: Engine, *given: Any, **named: Any) -> None:
        begin(engine, *given, **named)
        made.append(engine)

    monkeypatch.setattr(Engine, "__init__", begin_noted)
    yield
    for engine in made:
        engine.close()


def _start(kind: Kind) -> Server:
    _require(kind)
    return Server(kind).start()


def _require(kind: Kind) -> None:
    if binary(kind) is not None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{kind}: the server program is missing, and CI must not skip it (apt-get install redis-server)")
    pytest.skip(f"{kind}: the server program is missing on this machine (apt-get install redis-server)")


def _only_here(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(str(address[0])):
            raise RuntimeError(f"a test wanted to reach {address[0]}: the network is shut in tests")
        return connect(self, address)

    return guarded


def _is_local(host: str) -> bool:
    try:
        return host in ("", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
