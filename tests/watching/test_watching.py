"""Watchers disturb nobody, whatever is wrong with them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest

import orchestrator.watching as watching
from orchestrator.core.event import Outcome
from orchestrator.core.fact import Fact
from orchestrator.core.snapshot import Call, Snapshot
from orchestrator.ports import ModelCall
from orchestrator.watching import Drive, Hearing, Several, Watch, Watched
from tests.engine.test_crash_table import shop, story
from tests.worlds import World


class BrokenDrive(Drive):
    def model_call(self, model: str, call: ModelCall) -> AbstractContextManager[Hearing]:
        raise RuntimeError("broken")

    @contextmanager
    def tool_call(self, call: Call, arguments: Mapping[str, object]) -> Iterator[object]:
        yield None
        raise RuntimeError("broken")

    def tool_ended(self, call: Call, outcome: Outcome | None) -> None:
        raise RuntimeError("broken")

    def committed(self, facts: Sequence[Fact], before: Snapshot, seconds: float) -> None:
        raise RuntimeError("broken")


class Broken(Watch):
    @contextmanager
    def drive(self, owned: Watched) -> Iterator[Drive]:
        yield BrokenDrive()
        raise RuntimeError("broken")

    def rung(self, sessions: int) -> None:
        raise RuntimeError("broken")

    def readers(self, more: int) -> None:
        raise RuntimeError("broken")

    def came_in(self, headers: Mapping[str, str]) -> Callable[[], None]:
        raise RuntimeError("broken")

    def trace(self) -> str:
        raise RuntimeError("broken")

    def flush(self) -> None:
        raise RuntimeError("broken")


def test_a_watcher_that_breaks_is_complained_of_and_disturbs_nobody(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_next_complaint", float("-inf"))
    shop(world)
    broken = Several([Broken()])
    world.worker.__dict__["watch"] = world.worker.process.watch = broken
    with caplog.at_level(logging.ERROR, "orchestrator.watching"):
        session = world.create("A book, please.")
        world.run(session)
    assert world.history(session) == story()[:6]
    world.check(session)
    broken.rung(1)
    broken.readers(1)
    broken.came_in({})()
    broken.flush()
    assert broken.trace() == ""
    said = [record for record in caplog.records if record.name == "orchestrator.watching"]
    assert len(said) == 1, "once a minute and not for each"
