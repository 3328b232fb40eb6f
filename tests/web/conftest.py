from collections.abc import Iterator

import pytest

import web
from orchestrator.engine import Engine
from tests.servers import Server
from tests.web.support import Hand, Http, Web, engine_on, http_of


@pytest.fixture
def engine(url: str) -> Engine:
    return engine_on(url)


@pytest.fixture
def http(engine: Engine) -> Http:
    """The routes without a server: anybody may call."""
    return http_of(web.create_app(engine=engine))


@pytest.fixture
def hand(engine: Engine) -> Hand:
    """A session with a message, owned by the test."""
    return Hand(engine)


@pytest.fixture(scope="module")
def site(valkey: Server) -> Iterator[Web]:
    """A real web process on the shared Valkey, with short times."""
    pace = "heartbeat_seconds=0.3,lease_seconds=0.45,look_seconds=0.15,lost_seconds=0.3"
    with Web(valkey.url, TEST_PACE=pace) as web:
        yield web
