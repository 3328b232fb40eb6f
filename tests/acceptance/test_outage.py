"""Redis goes away or hangs under load: callers hear it within six seconds, nothing accepted is lost, all goes on by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from orchestrator.core.names import SessionId
from tests.acceptance.caller import Answer, Caller, Follower, is_whole
from tests.acceptance.system import System, nothing_happened_twice, running, streams_are_whole
from tests.conftest import MakeServer
from tests.servers import wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(240)]
CALLERS = 6


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path) -> Iterator[System]:
    with running(System(make_server("valkey", appendonly=True), tmp_path)) as made:
        yield made


class Load:
    """Callers that post all the time, a new session and a message for it in turn."""

    def __init__(self, port: int, pause: float = 0.15) -> None:
        self.pause = pause
        self.answers: list[Answer] = []
        self.broken: list[BaseException] = []
        self.sessions: dict[str, int] = {}
        """How many messages of a session were accepted."""
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(port, number)) for number in range(CALLERS)]

    def _call(self, port: int, number: int) -> None:
        caller, session, count = Caller(port), "", 0
        try:
            while not self._stop.wait(self.pause):
                path = f"/session/{session}" if session else "/session"
                body = {"message": f"steps=2 tool=work #{number}.{count}", "turnPolicy": "queue"}  # a turn for each
                answer = caller.post(path, body)
                self.answers.append(answer)
                count += 1
                if answer.status == 202:
                    name = answer.body["sessionId"]
                    self.sessions[name] = self.sessions.get(name, 0) + 1
                    session = "" if session else name
        except BaseException as broken:
            self.broken.append(broken)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        assert not self.broken, self.broken

    def between(self, begin: float, end: float) -> list[Answer]:
        """What was asked for and answered in this time."""
        return [answer for answer in self.answers if begin <= answer.asked_at and answer.came_at <= end]


@pytest.mark.parametrize(
    ("how", "seconds", "pool"), [("stopped", 5.0, "threads"), ("hanging", 8.0, "threads"), ("stopped", 5.0, "prefork")]
)
def test_without_redis_posts_are_503_and_afterwards_everything_goes_on_by_itself(
    system: System, how: str, seconds: float, pool: str
) -> None:
    system.start_model("--call-seconds", "0.1")
    supervisor = system.start_workers(2, "--pool", pool, "-c", "16" if pool == "threads" else "4")
    workers = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text()
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP="tests.acceptance.load:app") as site:
        caller, load = Caller(site.port), Load(site.port, 0.15 if pool == "threads" else 1.0)
        with load.running():
            wait_for(lambda: len(load.sessions) > 2 * CALLERS, 30, what="load")
            long = [caller.create(f"steps=12 tool=work tokens=40 #long{number}") for number in range(10)]
            follower = Follower(long[0], "ndjson")
            with caller.following(follower):
                follower.until("action.result", 2)

                if how == "stopped":
                    system.server.stop()
                else:
                    system.server.pause()
                down = time.time()
                time.sleep(seconds)  # the outage itself
                up = time.time()
                if how == "stopped":
                    system.server.start()
                else:
                    system.server.resume()

                again = wait_for(lambda: [a for a in load.answers if a.asked_at > up and a.status == 202], 20)[0]
                follower.until("session.waiting", timeout=60)
                assert follower.cursors == [0], "one connection through all of it"
        inside = load.between(down, up)
        assert len(inside) >= CALLERS // 2, "it was asked meanwhile"
        assert {answer.status for answer in inside} == {503}
        assert {answer.body["code"] for answer in inside} == {"journal_away"}
        assert {answer.status for answer in load.answers} == {202, 503}
        slowest = max(answer.came_at - answer.asked_at for answer in load.answers)
        assert slowest <= 6

        sessions = [*map(SessionId, [*load.sessions, *long])]
        wait_for(lambda: system.all_quiet(sessions), 90, what="all turns to end")
        after = caller.create("steps=2 tool=work #after")
        assert caller.ended(after) == ["turn.completed"]
        assert follower.events == caller.events(long[0])
        is_whole(follower.events)
        for session in sessions:
            outcomes = system.outcomes(session)
            assert set(outcomes) == {"turn.completed"}
            # A 503 may have come in all the same.
            assert len(outcomes) >= load.sessions.get(session, 1)
        streams_are_whole(system, sessions)
        nothing_happened_twice(system, sessions)
        assert site.log.count("Booting worker") == 1, "a web process was replaced"
    assert Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text() == workers, (
        "a worker was replaced"
    )
    longest = median(answer.came_at - answer.asked_at for answer in inside)
    print(
        f"{how}: {len(inside)} refused (median {longest:.2f} s, slowest {slowest:.2f} s), first 202 again after"
        f" {again.came_at - up:.2f} s, {len(sessions)} sessions whole"
    )


def test_a_broker_of_its_own_may_go_away_while_every_message_is_taken_and_none_is_lost(
    make_server: MakeServer, tmp_path: Path
) -> None:
    broker = make_server("redis7")
    env = {"ORCHESTRATOR_BROKER_URL": broker.url}
    with running(System(make_server("valkey", appendonly=True), tmp_path, env=env)) as system:
        system.start_model("--call-seconds", "0.1")
        system.start_workers(2, "-c", "16")
        app = {"ORCHESTRATOR_APP": "tests.acceptance.load:app", **env}
        with Web(system.server.url, target="web:create_app()", **app) as site:
            load = Load(site.port)
            with load.running():
                wait_for(lambda: len(load.sessions) > 2 * CALLERS, 30, what="load")
                broker.stop()
                down = time.time()
                time.sleep(5)  # the outage itself
                up = time.time()
                broker.start()
                wait_for(lambda: len(load.between(up, time.time())) > 2 * CALLERS, 20, what="load afterwards")
            assert {answer.status for answer in load.answers} == {202}
            slowest = max(answer.came_at - answer.asked_at for answer in load.answers)
            assert slowest <= 2.5
            sessions = [*map(SessionId, load.sessions)]
            began = time.monotonic()
            wait_for(lambda: system.all_quiet(sessions), 90, what="all turns to end")
        for session in sessions:
            assert system.outcomes(session) == ["turn.completed"] * load.sessions[session]
        streams_are_whole(system, sessions)
        nothing_happened_twice(system, sessions)
    print(
        f"{len(load.between(down, up))} taken without a broker (slowest {slowest:.2f} s), all {len(sessions)} sessions"
        f" done {time.monotonic() - began:.1f} s after the load"
    )
