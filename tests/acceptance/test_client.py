"""The Python client under fire: whoever reads with it, over whatever connections, reads what is stored, once and in order."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from orchestrator.client import AsyncClient, Client, Outcome, Patience
from orchestrator.core.names import SessionId
from tests.acceptance.sites import below
from tests.acceptance.system import Every, System, nothing_happened_twice, running
from tests.client.both import AsyncCutting, Cuts, Cutting
from tests.conftest import MakeServer
from tests.servers import free_port, wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(120)]
CUTS = 40
PATIENCE = Patience(seconds=30, first_pause_seconds=0.02, longest_pause_seconds=0.2)
WAIT = 60.0
Told = list[tuple[int, str, str]]


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path) -> Iterator[System]:
    with running(System(make_server("valkey", appendonly=True), tmp_path)) as made:
        yield made


class Readers:
    """Reads in threads, and keeps what each has read."""

    def __init__(self) -> None:
        self.told: dict[str, Told] = {}
        self.broken: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def begin(self, name: str, read: Callable[[Told], None]) -> None:
        """Another one, with a list to write into."""
        told = self.told[name] = []

        def run() -> None:
            try:
                read(told)
            except BaseException as error:
                self.broken.append(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive(), thread
        assert not self.broken, self.broken


def test_forty_cuts_killed_workers_and_a_web_that_starts_again_leave_no_trace_in_what_is_read(system: System) -> None:
    system.start_model("--token-seconds", "0.01", "--call-seconds", "0.1")
    supervisor = system.start_workers(3, "-c", "16")
    port, killed, cuts = (
        free_port(),
        list[int](),
        {name: Cuts(CUTS, seed, (100, 900)) for seed, name in enumerate(("sync", "async"))},
    )
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()

    def web() -> Web:
        given = {"ORCHESTRATOR_APP": "tests.acceptance.load:app", "PORT": str(port)}
        pace = "heartbeat_seconds=1,lease_seconds=3"
        made = Web(system.server.url, target="tests.acceptance.paced:make()", TEST_PACE=pace, **given)
        made.port = port
        return made.ready()

    def kill() -> None:
        """The worker that has lived longest."""
        if found := sorted(set(below(supervisor.pid)[1:]) - set(killed)):
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    site, readers = web(), Readers()
    client = Client(url, patience=PATIENCE)
    try:
        session = client.create().id

        def read(told: Told) -> None:
            with httpx2.Client(transport=Cutting(cuts["sync"])) as http:
                mine = Client(url, http=http, patience=PATIENCE).session(session)
                for event in mine.events(timeout=WAIT):
                    told.append((event.index, event.id, event.type))

        async def read_async(told: Told) -> None:
            async with httpx2.AsyncClient(transport=AsyncCutting(cuts["async"])) as http:
                mine = AsyncClient(url, http=http, patience=PATIENCE).session(session)
                async for event in mine.events(timeout=WAIT):
                    told.append((event.index, event.id, event.type))

        readers.begin("sync", read)
        readers.begin("async", lambda told: asyncio.run(read_async(told)))
        turns = [
            client.session(session).send(f"steps=8 tool=work calls=2 tokens=80 #{number}", policy="queue")
            for number in range(2)
        ]
        outcomes: list[Outcome] = []
        readers.begin("turns", lambda _: outcomes.extend(turn.result(WAIT) for turn in turns))
        killer = Every(2.0, kill)
        wait_for(lambda: killed and len(readers.told["sync"]) > 20, 30, what="a killed worker and something read")
        site.__exit__()
        site = web()
        wait_for(lambda: len(killed) >= 2, 30, what="another killed worker")
        wait_for(lambda: len(killed) >= 4 or system.all_quiet([SessionId(session)]), 30, what="more kills")
        killer.stop()
        wait_for(lambda: len(outcomes) == 2, WAIT, what="both turns")
        client.session(session).reset()
        readers.join()
    finally:
        client.close()
        site.__exit__()
    took = time.monotonic() - began

    events = system.events(SessionId(session))
    truth = [(index, event["meta"]["id"], event["type"]) for index, event in enumerate(events)]
    assert readers.told["sync"] == truth
    assert readers.told["async"] == truth
    assert all(cut.connections > CUTS and cut.made > CUTS // 2 for cut in cuts.values())
    assert [outcome.state for outcome in outcomes] == ["completed", "completed"]
    for outcome, turn in zip(outcomes, ("turn_0", "turn_1"), strict=True):
        said = [
            event["data"]["message"]
            for event in events
            if event["type"] == "message.completed" and event["data"]["turnId"] == turn
        ]
        assert outcome.text == said[-1]
    nothing_happened_twice(system, [SessionId(session)])
    print(
        f"{len(truth)} events, {len(killed)} workers killed, the web once, {took:.0f} s;"
        f" connections: {', '.join(f'{name} {cut.connections}, {cut.made} cut' for name, cut in cuts.items())}"
    )
    assert took < 60
