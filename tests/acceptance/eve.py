"""`eve/client` of the npm registry, unmodified: installed once by name, run by Node, spoken to from a test.

    with Node(installed()) as node:
        client = node.client("http://127.0.0.1:8000")
        session, response = client.create("Hello")
        assert response.result()["status"] == "waiting"

The methods here have the names of the package's own and pass on what they are given.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

from tests.servers import wait_for

PACKAGES = ("eve@0.80.1", "node@24")
DRIVER = Path(__file__).with_name("eve_driver.mjs")
Event = dict[str, Any]


def installed() -> Path:
    """The folder that has the packages. Shared by all processes that test on this machine, and by the next run.

    Skips the test on a machine that cannot have them, unless that machine is CI.
    """
    folder = Path(tempfile.gettempdir()) / f"celery-orchestrator-{os.getuid()}-{'-'.join(PACKAGES)}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} belongs to somebody else"
    ready = folder / "ready"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            _install(folder)
            ready.touch()
    return folder


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        _without("npm is missing on this machine (apt-get install npm): eve/client cannot be had")
    (folder / "package.json").write_text('{"private": true}\n')
    command = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error", *PACKAGES]
    try:
        subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=True
        )
    except subprocess.TimeoutExpired:
        _without("the npm registry did not give eve/client within four minutes")
    except subprocess.CalledProcessError as failed:
        _without(f"npm could not install {' and '.join(PACKAGES)}: {failed.stderr[-500:]}")


def _without(why: str) -> NoReturn:
    if os.environ.get("CI", "") in ("", "0", "false"):
        pytest.skip(why)
    pytest.fail(f"{why}, and CI must not skip it")


class ClientFailed(Exception):
    """What the package threw: the class's name, and what `ClientError` has."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.kind = str(told.get("kind"))
        self.message = str(told.get("message"))
        self.status: int | None = told.get("status")
        self.code: str | None = told.get("code")
        self.body: Any = json.loads(told["body"]) if told.get("body") else None
        super().__init__(f"{self.kind}: {self.message} ({self.status} {self.code})")


class Reading:
    """What one wish has said so far."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.events: list[Event] = []
        self._ended = threading.Event()
        self._value: Any = None
        self._error: dict[str, Any] | None = None

    def take(self, told: dict[str, Any]) -> None:
        """One more line."""
        if "event" in told:
            self.events.append(told["event"])
            return
        self._value, self._error = told.get("value"), told.get("error")
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return self._ended.is_set()

    @property
    def types(self) -> list[str]:
        """The types of the events."""
        return [event["type"] for event in self.events]

    def value(self, timeout: float = 60.0) -> Any:
        """The answer, once it is there. Raises `ClientFailed`."""
        assert self._ended.wait(timeout), f"{self.what} has not ended within {timeout:g} s; events: {self.types}"
        if self._error is not None:
            raise ClientFailed(self._error)
        return self._value

    def all(self, timeout: float = 60.0) -> list[Event]:
        """The events, once no more can come. Raises `ClientFailed`."""
        self.value(timeout)
        return self.events

    def until(self, kind: str, count: int = 1, timeout: float = 60.0) -> list[Event]:
        """Wait until so many events of this type have come; those events."""

        def found() -> list[Event]:
            if self.ended:
                self.value()
            return [event for event in self.events if event["type"] == kind]

        wait_for(lambda: len(found()) >= count, timeout, what=f"{count} {kind} in {self.types}")
        return found()


class Node:
    """A process of Node with the package."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [folder / "node_modules" / ".bin" / "node", DRIVER],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ids = itertools.count(1)
        self._open: dict[int, Reading] = {}
        self._lock = threading.Lock()
        self.unhandled: list[dict[str, Any]] = []
        """Promises that the package let fail unheard."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            for line in out:
                told = json.loads(line)
                if "unhandled" in told:
                    self.unhandled.append(told["unhandled"])
                else:
                    self._open[told["id"]].take(told)
        for reading in list(self._open.values()):
            if not reading.ended:
                reading.take({"error": {"kind": "Ended", "message": "Node has ended before it answered"}})

    def wish(self, **what: Any) -> Reading:
        """Say it, and do not wait."""
        name = next(self._ids)
        reading = self._open[name] = Reading(str(what))
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"id": name, **what}) + "\n")
            self._process.stdin.flush()
        return reading

    def client(self, host: str, **options: Any) -> Client:
        """A `Client`."""
        return Client(self, self.wish(new="Client", args=[{"host": host, **options}]).value()["$"])

    def store(self, **options: Any) -> Thing:
        """An `EveAgentStore`, which is what the hooks of `eve/react` and others stand on."""
        given = {"reducer": {"$reducer": "defaultMessageReducer"}, **options}
        return Thing(self, self.wish(new="EveAgentStore", args=[given]).value()["$"])

    @contextmanager
    def signal(self) -> Iterator[dict[str, str]]:
        """An `AbortSignal`, to be passed as an option. What was called with it ends with the block."""
        name = f"a{next(self._ids)}"
        try:
            yield {"$signal": name}
        finally:
            self.wish(abort=name).value()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Thing:
    """An object that lives in Node."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name

    @property
    def ref(self) -> dict[str, str]:
        """How it is passed to a call."""
        return {"$": self.name}

    def ask(self, *path: str, args: Sequence[Any] = ()) -> Reading:
        """Call a method, and do not wait for what it answers."""
        return self.node.wish(on=self.name, call=path, args=args)

    def call(self, *path: str, args: Sequence[Any] = (), timeout: float = 60.0) -> Any:
        """What a method answers. Raises `ClientFailed`."""
        return self.ask(*path, args=args).value(timeout)

    def get(self, *path: str) -> Any:
        """A property."""
        return self.node.wish(on=self.name, get=path).value()


class Client(Thing):
    """A `Client`."""

    def health(self) -> Any:
        return self.call("health")

    def info(self) -> Any:
        return self.call("info")

    def prewarm(self) -> Session:
        """A session without a message."""
        return Session(self.node, self.call("sessions", "create")["session"]["$"])

    def create(self, message: Any, **options: Any) -> tuple[Session, Response]:
        """A session with a message."""
        made = self.call("sessions", "create", args=[{"message": message, **options}])
        return Session(self.node, made["session"]["$"]), Response(self.node, made["response"]["$"])

    def attach(self, session: str, index: int = 0) -> Session:
        """A session that is there already, to be read from an index on."""
        made = self.call("sessions", "attach", args=[session, {"streamIndex": index}])
        return Session(self.node, made["$"])


class Session(Thing):
    """A `ClientSession`."""

    @property
    def id(self) -> str:
        return str(self.state["sessionId"])

    @property
    def index(self) -> int:
        """Its cursor."""
        return int(self.state["streamIndex"])

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("state")
        return found

    def send(self, message: Any, **options: Any) -> Response:
        return Response(self.node, self.call("send", args=[message, options])["$"])

    def respond(self, *answers: dict[str, str]) -> Response:
        return Response(self.node, self.call("respond", args=[list(answers)])["$"])

    def cancel(self, **options: Any) -> Any:
        return self.call("cancel", args=[options])

    def clear(self) -> Any:
        return self.call("clear")

    def compact(self) -> Any:
        return self.call("compact")

    def reset(self, **options: Any) -> Any:
        return self.call("reset", args=[options])

    def snapshot(self) -> Any:
        return self.call("snapshot")

    def stream(self, **options: Any) -> Reading:
        """Read its stream; the events gather in what is returned."""
        return self.node.wish(read=self.call("stream", args=[options])["$"])

    @contextmanager
    def following(self, **options: Any) -> Iterator[Reading]:
        """Read its stream until the block ends."""
        with self.node.signal() as signal:
            yield self.stream(signal=signal, **options)


class Response(Thing):
    """A `MessageResponse`."""

    def read(self) -> Reading:
        """Its events, as they come."""
        return self.node.wish(read=self.name)

    def result(self, timeout: float = 60.0) -> dict[str, Any]:
        found: dict[str, Any] = self.call("result", timeout=timeout)
        return found

    def cancel(self) -> Any:
        return self.call("cancel")
