"""`orchestrator dev` on a folder of a test."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.acceptance.caller import Caller
from tests.acceptance.system import System
from tests.servers import Server, free_port
from tests.tasks.workers import Process

DRAIN = 2.0


class FolderServer(Server):
    """The server that `dev` starts by itself."""

    @property
    def url(self) -> str:
        return f"local:{self.dir}"


class Dev:
    """`orchestrator dev` on a folder, again and again."""

    def __init__(self, system: System, data: Path) -> None:
        self.system, self.data = system, data
        self.port = free_port()
        self.caller = Caller(self.port)
        self.process: Process | None = None

    def start(self) -> Process:
        """Start it, and wait until it says that it is ready."""
        flags = ["--port", str(self.port), "--data", str(self.data), "--workers", "2", "--no-chat"]
        command = [sys.executable, "-m", "orchestrator.cli", "dev", "tests.acceptance.load:app", *flags]
        log = self.system.folder / f"dev-{time.monotonic_ns()}.log"
        env = {**self.system.environment, "ORCHESTRATOR_DRAIN_SECONDS": str(DRAIN)}
        self.process = Process(command, env, log).says(f"ready http://127.0.0.1:{self.port}", 40.0)
        return self.process

    def tree(self) -> list[int]:
        """Every process of it: itself, all below it, and the server, which is nobody's child."""
        assert self.process is not None
        found = [self.process.pid]
        for pid in found:
            tasks = Path(f"/proc/{pid}/task").glob("*/children")
            found += [int(child) for children in tasks for child in children.read_text().split()]
        assert len(found) >= 5, "itself, two workers, gunicorn and its worker"
        return [*found, int((self.data / "valkey.pid").read_text())]
