"""Streams under fire: whoever reads, from wherever, over whatever connections, is told the same events under the same indexes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from orchestrator.core.names import SessionId
from orchestrator.errors import OrchestratorError
from orchestrator.journal.tidying import tidy
from tests.acceptance.caller import Caller, Follower
from tests.acceptance.readers import LEASE_ENDED, Crowd, CutReader, Form, Lines, Told
from tests.acceptance.sites import below
from tests.acceptance.system import Every, System, nothing_happened_twice, running
from tests.conftest import MakeServer
from tests.servers import wait_for
from tests.web.support import Hand, Reader, Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(240)]
APP = {"ORCHESTRATOR_APP": "tests.acceptance.load:app"}
PACED = "tests.acceptance.paced:make()"
TIDY_MS = 600_000
TURNS = 2


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path) -> Iterator[System]:
    with running(System(make_server("valkey", appendonly=True), tmp_path)) as made:
        yield made


def stored(system: System, session: str) -> list[Told]:
    """The stream as it is in the store."""
    events = system.events(SessionId(session))
    return [(index, event["meta"]["id"], event["type"]) for index, event in enumerate(events)]


def test_readers_who_are_cut_off_all_the_time_see_what_everybody_sees_while_everything_is_killed(
    system: System,
) -> None:
    system.start_model("--token-seconds", "0.01", "--call-seconds", "0.1")
    supervisor = system.start_workers(3, "-c", "16")
    killed: list[int] = []
    pruned: list[int] = []

    def kill() -> None:
        """The worker that has lived longest."""
        if found := sorted(set(below(supervisor.pid)[1:]) - set(killed)):
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    def ended(events: list[Told]) -> bool:
        return sum(kind == "session.waiting" for _, _, kind in events) >= TURNS

    def last_ended(events: list[Told]) -> bool:
        return bool(events) and events[-1][1] in lasts

    lasts: set[str] = set()
    with ExitStack() as stack:
        sites = [stack.enter_context(Web(system.server.url, target=PACED, **APP)) for _ in range(2)]
        ports = [site.port for site in sites]
        caller = Caller(ports[0])
        sessions = [caller.create(f"steps=10 tool=work calls=2 tokens=80 #{number}.0") for number in range(5)]
        for session in sessions:
            for turn in range(1, TURNS):
                caller.post(
                    f"/session/{session}",
                    {"message": f"steps=6 tool=work tokens=60 #{session}.{turn}", "turnPolicy": "queue"},
                )
        readers: list[CutReader] = []
        for number, session in enumerate(sessions):
            for form in ("ndjson", "sse"):
                cut: Form = "ndjson" if form == "ndjson" else "sse"
                readers.append(CutReader(ports, session, cut, ended, cuts=40, seed=number))
            readers.append(CutReader(ports, session, "ndjson", last_ended, start=-1, seed=number))
            readers.append(CutReader(ports, session, "sse", last_ended, start=25, cuts=10, seed=number))
            readers.append(CutReader(ports, session, "ndjson", last_ended, start=60, cuts=10, seed=number))

        def put_in_order() -> None:
            """As the keeper does it ten minutes later: deltas of closed steps become stubs, under the eyes of the readers."""
            for session in sessions:
                with suppress(OrchestratorError):
                    journal = system.engine.journal
                    pruned.append(tidy(journal, SessionId(session), journal.time() + TIDY_MS))

        killer, keeper = Every(2.0, kill), Every(0.7, put_in_order)
        began = time.monotonic()
        wait_for(lambda: len(killed) >= 1, 30, what="a worker to be killed")
        system.server.kill()
        system.server.start()
        wait_for(lambda: len(killed) >= 2, 30, what="another worker to be killed")
        assert not any(system.outcomes(SessionId(session)) == ["turn.completed"] * TURNS for session in sessions)
        system.server.restart()
        for pid in below(sites[1].process.pid)[1:]:
            os.kill(pid, signal.SIGKILL)  # gunicorn starts another one
        wait_for(lambda: len(killed) >= 6 or system.all_quiet([*map(SessionId, sessions)]), 30, what="more kills")
        killer.stop()
        wait_for(lambda: system.all_quiet([*map(SessionId, sessions)]), 90, what="all turns to end")
        keeper.stop()
        lasts |= {stored(system, session)[-1][1] for session in sessions}
        late = [
            CutReader(ports, session, "sse", last_ended, start=start) for session in sessions for start in (0, 50, -7)
        ]
        took = time.monotonic() - began
        wait_for(lambda: all(reader.ended for reader in [*readers, *late]), 60, what="all readers to have seen the end")
        for reader in [*readers, *late]:
            reader.stop()

    for reader in [*readers, *late]:
        truth = stored(system, reader.session)
        first = reader.events[0][0]
        assert reader.events == truth[first:]
        assert reader.start < 0 or first == reader.start
    connections = sum(reader.connections for reader in readers)
    assert min(reader.connections for reader in readers if reader.start == 0) >= 40
    for session in sessions:
        assert system.outcomes(SessionId(session)) == ["turn.completed"] * TURNS
    assert sum(pruned) > 20
    nothing_happened_twice(system, [*map(SessionId, sessions)])
    print(
        f"{len(killed)} workers killed, 2 restarts of Redis, {took:.0f} s, {len(readers)} readers over {connections}"
        f" connections, {sum(pruned)} deltas pruned meanwhile, {sum(len(stored(system, s)) for s in sessions)} events"
    )


@pytest.mark.parametrize("form", ["ndjson", "sse"])
def test_a_reader_whose_web_process_is_killed_goes_on_at_another_one(system: System, form: str) -> None:
    system.start_model("--token-seconds", "0.02", "--call-seconds", "0.1")
    system.start_workers(1, "-c", "16")
    with Web(system.server.url, target="web:create_app()", **APP) as other:
        with Web(system.server.url, target="web:create_app()", **APP) as site:
            session = Caller(site.port).create("steps=4 tool=work calls=2 tokens=60")
            follower = Follower(session, form)
            with Caller(site.port).following(follower):
                follower.until("action.result", 2)
                os.killpg(site.process.pid, signal.SIGKILL)
                wait_for(lambda: follower.broken, what="the connection to be gone")
        with Caller(other.port).following(follower):
            follower.until("session.waiting")
        assert len(follower.cursors) == 2
        assert follower.cursors[1] > 2
        assert follower.events == Caller(other.port).events(session)


def test_a_lease_ends_the_response_of_those_who_know_of_leases_and_of_nobody_else(system: System) -> None:
    hand = Hand(system.engine)
    hand.said(3)
    with Web(system.server.url, target=PACED, TEST_PACE="heartbeat_seconds=0.4,lease_seconds=1.5", **APP) as site:
        accept = {"accept": "text/event-stream"}
        with ExitStack() as stack:

            def open_reader(query: str, **headers: str) -> Reader:
                return stack.enter_context(site.follow(hand.session, query, **headers))

            knowing = [open_reader("?streamControlVersion=1"), open_reader("?streamControlVersion=1", **accept)]
            others = [open_reader(""), open_reader("", **accept), open_reader("?streamControlVersion=2")]
            began = time.monotonic()
            for reader in knowing:
                reader.until_end(10)
                assert reader.lines[-1].removeprefix("data: ") == LEASE_ENDED
                assert reader.raw.decode().count("$eve") == 1
            assert time.monotonic() - began >= 1.0
            wait_for(lambda: time.monotonic() - began > 2 * 1.5, what="the time of another lease")
            hand.said(2)
            for reader in others:
                wait_for(partial(has_events, reader, 5), 5, what="five events")
                assert not reader.ended
                assert "$eve" not in reader.raw.decode()
                assert beats_of(reader) >= 4
        goes_on = Follower(hand.session, "ndjson")
        with Caller(site.port).following(goes_on):
            goes_on.until("message.appended", 5)


def has_events(reader: Reader, count: int) -> bool:
    return sum('"meta"' in line for line in reader.lines) == count


def beats_of(reader: Reader) -> int:
    form: Form = "sse" if "event-stream" in reader.headers["content-type"] else "ndjson"
    lines = Lines(form, reader.headers["x-eve-session-id"], 0)
    lines.take(reader.raw)
    return lines.beats


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_five_hundred_idle_readers_cost_little_and_hear_at_once_what_happens(system: System) -> None:
    hands = [Hand(system.engine) for _ in range(20)]
    for hand in hands:
        hand.said(2)
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_STREAMS="500", **APP) as site:
        (web,) = map(int, Path(f"/proc/{site.process.pid}/task/{site.process.pid}/children").read_text().split())
        alone = resident_mb(web)
        with Crowd(site.port, [hand.session for hand in hands for _ in range(25)]) as crowd:
            opened = crowd.all_have(b'"index":1}', 60)
            status, body, _ = site.get(f"/eve/v1/session/{hands[0].session}/stream")
            assert (status, body["code"]) == (503, "too_many_streams")

            before, began = cpu_seconds(web), time.monotonic()
            time.sleep(10)  # idle is the time in which nothing happens
            idle = (cpu_seconds(web) - before) / (time.monotonic() - began) * 60
            memory = resident_mb(web)

            asked = time.monotonic()
            status, body, _ = site.post("/eve/v1/session", {"message": "hello"})
            answered = time.monotonic() - asked
            assert status == 202

            for hand in hands:
                hand.write("session.waiting")
            heard = crowd.all_have(b"session.waiting", 20)
            assert crowd.lost == 0
        wait_for(lambda: site.get("/v1/health")[1]["streams"]["open"] == 0, 30, what="all of them to be gone")
        with Crowd(site.port, [hands[0].session] * 200) as crowd:
            crowd.all_have(b'"index":1}', 30)
            stopped = site.stop()
            wait_for(lambda: crowd.lost == 200, 10, what="the end of all streams")
            assert crowd.ended_in_order == 200
    print(
        f"500 readers: open after {opened:.1f} s, idle {idle:.1f} CPU s a minute, {memory:.0f} MB (alone {alone:.0f}),"
        f" a request took {answered * 1000:.0f} ms, an event reached all of them within {heard:.2f} s;"
        f" a process with 200 readers ended within {stopped:.1f} s"
    )
    assert heard <= 10
    assert answered <= 5
    assert idle <= 30
    assert memory - alone <= 250


def test_nothing_is_lost_on_readers_who_come_and_go_while_a_turn_is_written(system: System) -> None:
    """Every place of the stream is a place to begin."""
    hand = Hand(system.engine)
    with Web(system.server.url, target="web:create_app()", **APP) as site:
        for _ in range(8):
            hand.said(5)
            with site.follow(hand.session, f"?startIndex={hand.events - 3}") as reader:
                hand.said(2)
                reader.until(range(hand.events - 5, hand.events))
        with site.follow(hand.session, "?follow=false") as reader:
            reader.until_end()
            assert reader.indexes == [*range(hand.events)]
