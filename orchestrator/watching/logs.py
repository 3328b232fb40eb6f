"""Logs as lines of JSON: what is said while a session is worked on names the session, its turn and its step."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from orchestrator.watching import Drive, Watch, Watched

_here: ContextVar[Watched | None] = ContextVar("orchestrator_session", default=None)


class Lines(Watch):
    """Knows which session a line is about: on the driver's thread, and wherever models and tools run for it."""

    @contextmanager
    def drive(self, owned: Watched) -> Iterator[Drive]:
        """A session is worked on."""
        token = _here.set(owned)
        try:
            yield Drive()
        finally:
            _here.reset(token)


def about() -> dict[str, object]:
    """The session that is worked on here, with its turn, step and attempt; nothing where there is none."""
    owned = _here.get()
    if owned is None:
        return {}
    found: dict[str, object] = {"session": owned.session}
    turn = owned.snapshot.turn
    if turn is not None:
        found |= {"turn": turn.id, "step": turn.step}
    return {**found, "attempt": owned.attempt}


class JsonLines(logging.Formatter):
    """A record as one line. `always` is said in each: which deployment, which worker.

    It says what plain logs say and where it was said, and nothing else of the record: arguments that somebody has attached to one stay
    out.
    """

    def __init__(self, always: Mapping[str, object]) -> None:
        super().__init__()
        self._always = dict(always)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said: dict[str, object] = {
            "time": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            "pid": record.process,
            **about(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


def dress(logger: logging.Logger, always: Mapping[str, object]) -> None:
    """Let what this logger writes itself be such lines."""
    for handler in logger.handlers:
        handler.setFormatter(JsonLines(always))
