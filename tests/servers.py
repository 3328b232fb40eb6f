"""Real servers for tests: Valkey from its wheel, Redis from Debian. Each has a port, a folder and a pid of its own.

They are stopped by that pid. A watchdog ends them if the tests are killed before they can.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

from orchestrator.local import valkey_binary

Kind = Literal["valkey", "redis7"]
Appendfsync = Literal["always", "everysec", "no"]
T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout: float = 10.0, *, what: str = "") -> T:
    """The first true value of `condition`. Fails the test if there is none within `timeout` seconds.

    It waits for something to become true, never for time to pass. An exception in `condition` is not caught.
    """
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            waited_for = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"waited {timeout:g} s for {waited_for}; the last value was {value!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def binary(kind: Kind) -> str | None:
    """Where the server program of this kind is, or None if this machine has none."""
    return str(valkey_binary()) if kind == "valkey" else shutil.which("redis-server")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server process and its data. The data stay until `close`, over any number of starts.

    with Server("valkey").start(appendonly=True) as server:
        server.kill()      # a crash
        server.start()     # the same options, port and data
    """

    def __init__(self, kind: Kind = "valkey", dir: Path | None = None) -> None:
        self.kind: Kind = kind
        self.port = free_port()
        self._temporary = dir is None
        self.dir = dir or Path(tempfile.mkdtemp(prefix=f"{kind}-"))
        self._options: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.kind} is not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that the server has said since it was made."""
        path = self.dir / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(
        self, *extra: str, appendonly: bool | None = None, appendfsync: Appendfsync = "everysec", timeout: float = 10.0
    ) -> Self:
        """Start and wait until it answers. `extra` are arguments of the server: `"--maxmemory", "10mb"`.

        Without arguments after an earlier start: the options of that start.
        """
        assert not self.running, f"{self.kind} runs already as {self.pid}"
        if extra or appendonly is not None or not self._options:
            self._options = _options(appendonly=bool(appendonly), appendfsync=appendfsync, extra=extra)
        program = binary(self.kind)
        assert program is not None, f"this machine has no {self.kind}"
        for attempt in range(5):
            if attempt:
                self.port = free_port()  # somebody else took it between our look and the start
            self._spawn(program)
            if self._answers(timeout):
                return self
        raise AssertionError(f"{self.kind} did not start:\n{self.log}")

    def stop(self, *, save: bool = False) -> None:
        """End it as an operator would. `save` writes the data down first, also when it is not append-only."""
        if not self.running:
            return
        self.resume()
        if save:
            self._say(b"SHUTDOWN SAVE\r\n")
        else:
            os.kill(self.pid, signal.SIGTERM)
        self._wait(10)

    def kill(self) -> None:
        """SIGKILL: what a crash leaves is what it had handed to the kernel."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(10)

    def restart(self) -> None:
        """Stop and start with the same port, options and data."""
        self.stop(save=True)
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it accepts connections (the kernel does) and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: all that was sent during the pause is answered now."""
        os.kill(self.pid, signal.SIGCONT)

    def ping(self, timeout: float = 1.0) -> bool:
        """Whether it answers and has its data in memory."""
        return self._say(b"PING\r\n", timeout).startswith(b"+PONG")

    def close(self) -> None:
        """Kill it and remove its data."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.kind}, {self.url}, pid={self.pid if self.running else None}, dir={self.dir})"

    def _spawn(self, program: str) -> None:
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.dir)]
        with open(self.dir / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [program, *place, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.dir,
                start_new_session=True,
            )
        # Its input is a pipe that only we hold: it ends when we do, however we end.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _answers(self, timeout: float) -> bool:
        wait_for(lambda: not self.running or self.ping(), timeout, what=f"{self.kind} on port {self.port}")
        if self.running:
            return True
        self._wait(1)
        return False

    def _wait(self, timeout: float) -> None:
        assert self._process is not None
        self._process.wait(timeout)
        if self._watchdog is not None:  # before the pid can belong to somebody else
            self._watchdog.kill()
            self._watchdog.wait(timeout)
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog = None

    def _say(self, line: bytes, timeout: float = 10.0) -> bytes:
        """Raw socket and not the client library: a server that loads or hangs is an answer here, not an exception."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
                connection.settimeout(timeout)
                connection.sendall(line)
                return connection.recv(1024)
        except OSError:
            return b""


def _options(*, appendonly: bool, appendfsync: Appendfsync, extra: Sequence[str]) -> list[str]:
    given = {
        "--appendonly": "yes" if appendonly else "no",
        "--appendfsync": appendfsync,
        "--save": "",
        "--maxmemory-policy": "noeviction",
        "--loglevel": "notice",
    }
    return [*(word for pair in given.items() for word in pair), *extra]
