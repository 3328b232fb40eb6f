"""Servers and workers of a benchmark: started here, measured by the operating system, stopped by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from orchestrator import local

TICK = os.sysconf("SC_CLK_TCK")


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """A Valkey with AOF everysec: its URL and pid."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = local.resolve(f"local:{folder}")
        try:
            pid = int(redis.Redis.from_url(url).info("server")["process_id"])
            yield url, pid
        finally:
            local.stop(folder)


@contextmanager
def workers(app: str, count: int, url: str, environment: Mapping[str, str], *flags: str) -> Iterator[list[int]]:
    """So many worker processes of one Celery app, waiting for messages: their pids."""
    logs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115  # closed at the end
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                app,
                "worker",
                "--pool",
                "threads",
                "-n",
                f"{app}{place}@bench",
                *flags,
            ],
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).parent.parent,
        )
        for place, log in enumerate(logs)
    ]
    try:
        until = time.monotonic() + 60
        client = redis.Redis.from_url(url)
        while int(client.info("clients")["blocked_clients"]) < count:
            for process, log in zip(started, logs, strict=True):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(_text(log.fileno()).decode()[-2000:])
            time.sleep(0.05)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in logs:
            log.close()


def _text(handle: int) -> bytes:
    return os.pread(handle, 1 << 20, 0)


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


@dataclass(frozen=True, slots=True)
class Cost:
    """What `units` of something took: wall time, CPU of the workers, CPU of the server."""

    units: int
    wall: float
    workers: float
    server: float

    @property
    def per_second(self) -> float:
        """Units a second."""
        return self.units / self.wall

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of CPU a unit, workers and server."""
        return 1000 * (self.workers + self.server) / self.units


@contextmanager
def measured(units: int, worker_pids: Sequence[int], server_pid: int) -> Iterator[list[Cost]]:
    """Measure the body: one `Cost` is in the list afterwards."""
    costs: list[Cost] = []
    began, at_work, at_server = time.perf_counter(), cpu_seconds(worker_pids), cpu_seconds([server_pid])
    yield costs
    wall = time.perf_counter() - began
    costs.append(Cost(units, wall, cpu_seconds(worker_pids) - at_work, cpu_seconds([server_pid]) - at_server))
