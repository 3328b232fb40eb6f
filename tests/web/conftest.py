from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

import web
from orchestrator.engine import Engine
from tests.servers import Server
from tests.web.support import Hand, Web, engine_on


@pytest.fixture
def engine(url: str) -> Engine:
    return engine_on(url)


@pytest.fixture
def http(engine: Engine) -> FlaskClient:
    """The routes without a server: anybody may call."""
    return web.create_app(engine=engine).test_client()


@pytest.fixture
def hand(engine: Engine) -> Hand:
    """A session with a message, owned by the test."""
    return Hand(engine)


@pytest.fixture(scope="module")
def site(valkey: Server) -> Iterator[Web]:
    """A real web process on the shared Valkey, with short times."""
    pace = "heartbeat_seconds=0.6,lease_seconds=0.8,look_seconds=0.3,lost_seconds=0.5"
    with Web(valkey.url, TEST_PACE=pace, ORCHESTRATOR_STREAMS="4") as web:
        yield web
