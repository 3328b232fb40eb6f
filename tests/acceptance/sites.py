"""A whole product behind one port, started in both ways that the README gives: `orchestrator dev`, or gunicorn and workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator import apikeys, local
from tests.acceptance.caller import Caller
from tests.acceptance.dev import Dev, FolderServer
from tests.acceptance.system import System, running
from tests.servers import Server, wait_for
from tests.web.support import Web

MODEL = ("--token-seconds", "0.02", "--call-seconds", "0.05")
PACE = "heartbeat_seconds=1,lease_seconds=3"
"""Times of the web that `with_gunicorn` starts: some turns of the tests are longer than a lease."""


class Site:
    """Where it is, who may come in, and how to hurt it."""

    def __init__(self, system: System, port: int, top: int, log: Callable[[], str], key: str = "") -> None:
        self.system = system
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.key = key
        self.caller = Caller(port, key, "/eve/v1")
        self.log = log
        self._top = top

    @property
    def options(self) -> dict[str, Any]:
        """With what a `Client` of `eve/client` comes in."""
        return {"auth": {"bearer": self.key}} if self.key else {}

    def web(self) -> set[int]:
        """The processes that answer requests."""
        gunicorns = {pid for pid in below(self._top) if " -m gunicorn " in _command(pid).replace("\0", " ")}
        return {pid for pid in gunicorns if _parent(pid) in gunicorns}

    def kill_web(self) -> None:
        """SIGKILL them, and wait until gunicorn has others."""
        before = self.web()
        assert before
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(self.web() - before) == len(before), 20, what="other web processes")

    def reads(self, session: str) -> int:
        """How many responses to readers of this session have ended, by the access log."""
        return self.log().count(f'"GET /eve/v1/session/{session}/stream ')


@contextmanager
def with_dev(folder: Path) -> Iterator[Site]:
    """`orchestrator dev`: anybody on this machine may come in, and the times are those of the product."""
    data = folder / "data"
    data.mkdir()
    with running(System(FolderServer("valkey", data), folder)) as system:
        system.start_model(*MODEL)
        dev = Dev(system, data)
        try:
            process = dev.start()
            yield Site(system, dev.port, process.pid, lambda: process.log)
        finally:
            if dev.process is not None:
                dev.process.stop()
            local.stop(data)


@contextmanager
def with_gunicorn(folder: Path) -> Iterator[Site]:
    """gunicorn with two processes, workers beside it; whoever comes in needs a key."""
    key, entry = apikeys.mint("eve")
    with Server("valkey").start(appendonly=True) as server, running(System(server, folder)) as system:
        system.start_model(*MODEL)
        system.start_workers(2, "-c", "16")
        given = {"ORCHESTRATOR_API_KEYS": entry, "ORCHESTRATOR_ALLOW_ANONYMOUS": "", "TEST_PACE": PACE}
        given["ORCHESTRATOR_APP"] = system.environment["ORCHESTRATOR_APP"]
        with Web(server.url, "-w", "2", target="tests.acceptance.paced:make()", **given) as web:
            yield Site(system, web.port, web.process.pid, lambda: web.log, key)


def below(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for known in found:
        for children in Path(f"/proc/{known}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
