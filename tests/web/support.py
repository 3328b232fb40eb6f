"""A real web process, a reader of streams, and a hand that writes events as an owner would."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self

from flask import Flask
from flask.testing import FlaskClient

from orchestrator.agent import Agent, App
from orchestrator.config import Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import Millis, SessionId, Token
from orchestrator.engine import Engine
from orchestrator.ids import ulid
from orchestrator.journal import Appended, Granted
from tests.servers import free_port, wait_for

ROOT = Path(__file__).parent.parent.parent


def engine_on(url: str, **settings: Any) -> Engine:
    """The desk of a test."""
    return Engine(App(agents=[Agent("helper")]), Settings(url=url, **{"allow_anonymous": "all", **settings}))


class Http(FlaskClient):
    """Flask's client, whose answers may be looked into without asking first whether they are JSON."""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return super().open(*args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return super().get(*args, **kwargs)

    def head(self, *args: Any, **kwargs: Any) -> Any:
        return super().head(*args, **kwargs)

    def post(self, *args: Any, **kwargs: Any) -> Any:
        return super().post(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        return super().delete(*args, **kwargs)

    def options(self, *args: Any, **kwargs: Any) -> Any:
        return super().options(*args, **kwargs)


def http_of(flask: Flask) -> Http:
    """The routes without a server in between."""
    return Http(flask, flask.response_class)


class Hand:
    """Owns a session and writes into its stream, as a worker would."""

    def __init__(self, engine: Engine, session: SessionId | None = None) -> None:
        self.engine = engine
        self.session = session or engine.create(Body((Part("text", "hello"),))).session
        self.token = Token(f"test.{ulid(0)}")
        now = Millis(engine.journal.time())
        granted = engine.journal.own(self.session, self.token, now, deployment=engine.label)
        assert isinstance(granted, Granted), granted
        self.events = granted.position.events

    @classmethod
    def again(cls, other: Self, engine: Engine) -> Self:
        """The same owner, with connections of its own."""
        made = cls.__new__(cls)
        made.engine, made.session, made.token, made.events = engine, other.session, other.token, other.events
        return made

    def write(self, *types: str) -> None:
        """Events of these types, each with its index in it."""
        ids = [f"evt_{ulid(1)}" for _ in types]
        lines = [
            json.dumps(
                {"type": kind, "data": {"index": self.events + place}, "meta": {"id": name}}, separators=(",", ":")
            )
            for place, (kind, name) in enumerate(zip(types, ids, strict=True))
        ]
        done = self.engine.journal.append(self.session, self.token, self.events, ids[0], lines)
        assert isinstance(done, Appended), done
        self.events = done.events

    def said(self, count: int) -> None:
        """So many events that do not end anything."""
        self.write(*(["message.appended"] * count))


class Web:
    """gunicorn as the README starts it, on a port of its own."""

    def __init__(self, url: str, *arguments: str, target: str = "tests.web.wsgi:make()", **environ: str) -> None:
        self.port = free_port()
        given = {"ORCHESTRATOR_URL": url, "ORCHESTRATOR_ALLOW_ANONYMOUS": "1", "PORT": str(self.port), **environ}
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("ORCHESTRATOR_", "GUNICORN_"))}
        self._said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-c", "python:web.gunicorn", *arguments, target],
            env={**kept, **given, "PYTHONUNBUFFERED": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            for line in out:
                self._said.append(line)

    @property
    def log(self) -> str:
        return "".join(self._said)

    def ready(self) -> Self:
        def answers() -> bool:
            assert self.process.poll() is None, self.log
            try:
                return self.get("/eve/v1/health")[0] == 200
            except OSError:
                return False

        wait_for(answers, 20, what="gunicorn")
        return self

    def stop(self, number: int = signal.SIGTERM) -> float:
        """End it; how many seconds it took."""
        begun = time.monotonic()
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(5)
                raise
        return time.monotonic() - begun

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_: object) -> None:
        # How it ends when asked to is a test of its own.
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Status, JSON, headers."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            text = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, text, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw else {}, {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        return self.ask("POST", path, body, **headers)

    def follow(self, session: str, query: str = "", **headers: str) -> "Reader":
        return Reader(self.port, f"/eve/v1/session/{session}/stream{query}", headers)


class Reader:
    """One open stream, read by a thread."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        self._socket = self._connection.sock
        self._answer: HTTPResponse = self._connection.getresponse()
        self.status = self._answer.status
        self.headers = {name.lower(): value for name, value in self._answer.getheaders()}
        self.raw = b""
        self.arrived: list[float] = []
        self.ended = False
        self.broken: Exception | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while chunk := self._answer.read1(65536):
                self.raw += chunk
                self.arrived.append(time.monotonic())
            self.ended = True
        except Exception as broken:
            self.broken = broken

    @property
    def lines(self) -> list[str]:
        """Whole lines that are not blank."""
        whole, _, _ = self.raw.decode().rpartition("\n")
        return [line for line in whole.split("\n") if line]

    @property
    def indexes(self) -> list[int]:
        """The index that each event has in it."""
        return [json.loads(line)["data"]["index"] for line in self.lines if not line.startswith('{"$eve"')]

    @property
    def beats(self) -> int:
        """Blank lines."""
        return self.raw.decode().split("\n")[:-1].count("")

    def until(self, indexes: Sequence[int], timeout: float = 10.0) -> None:
        """Exactly these events have come."""
        wanted = list(indexes)
        wait_for(lambda: len(self.indexes) >= len(wanted), timeout, what=f"{len(wanted)} events")
        assert self.indexes == wanted

    def until_end(self, timeout: float = 10.0) -> None:
        """The response has ended in order, after a whole line."""
        wait_for(lambda: self.ended or self.broken, timeout, what="the end of the stream")
        assert self.broken is None, self.broken
        assert self.raw.endswith(b"\n")

    def close(self) -> None:
        """Go away as a closed browser does."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
