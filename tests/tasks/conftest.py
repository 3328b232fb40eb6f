"""Workers of these tests: started for one test, gone after it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.config import Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import SessionId
from orchestrator.engine import Engine
from tests.servers import wait_for
from tests.tasks.shop import app
from tests.tasks.workers import Process, environment, worker

StartWorker = Callable[..., Process]


class Desk:
    """The engine as a web process has it."""

    def __init__(self, url: str) -> None:
        self.engine = Engine(app, Settings(url=url))

    def say(self, text: str) -> SessionId:
        """A session with this message."""
        return self.engine.create(Body((Part("text", text),))).session

    def events(self, session: SessionId) -> list[str]:
        """The types of its events."""
        return [line.split(b'"', 4)[3].decode() for line in self.engine.reads.events(session, 0)]

    def wait(self, session: SessionId, event: str = "turn.completed", timeout: float = 20.0) -> None:
        """Wait for an event."""
        wait_for(lambda: event in self.events(session), timeout, what=f"{event} of {session}")


@pytest.fixture
def desk(url: str) -> Desk:
    return Desk(url)


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[StartWorker]:
    """`start("-P", "solo", drain_seconds="1")`: a worker that is ready. `url=` and `app=` name others."""
    started: list[Process] = []

    def run(*arguments: str, url: str = url, app: str = "tests.tasks.shop:app", **settings: str) -> Process:
        env = environment(url, app, **settings)
        process = worker(tmp_path / f"worker-{len(started)}.log", env, *arguments)
        started.append(process)
        return process

    yield run
    for process in started:
        process.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where tools write down that they ran."""
    place = tmp_path / "ran"
    place.mkdir()
    return place


def ran(folder: Path) -> list[int]:
    """In which processes the tool was started so far, in order."""
    files = sorted(folder.glob("ran-*"), key=lambda file: int(file.name.rsplit("-", 1)[1]))
    return [int(file.name.split("-")[1]) for file in files]
