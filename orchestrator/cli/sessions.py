"""`orchestrator sessions`: looking at sessions in the journal, and what an operator does to one."""

from __future__ import annotations

import argparse
import json
import sys
import time

from orchestrator import ids, world
from orchestrator.agent import Agent, App
from orchestrator.clock import iso
from orchestrator.config import from_environment
from orchestrator.core.delivery import Control
from orchestrator.core.names import Millis, SessionId
from orchestrator.engine import Engine
from orchestrator.errors import SessionNotFound
from orchestrator.loader import load_app
from orchestrator.records import is_open, record
from orchestrator.wake import OtherBroker

LOOK_SECONDS = 0.2


class _KeepersRing(OtherBroker):
    """A terminal publishes nothing to a broker of its own: a keeper rings within seconds."""

    def publish(self, task: str, label: str, session: SessionId, key: str) -> None:
        """Left to the keepers."""


def _engine() -> Engine:
    settings = from_environment()
    # Looking needs no App: what is there was written by one.
    app = load_app(settings.app) if settings.app else App([Agent("none")])
    settings = from_environment(app.settings)
    return Engine(app, settings, wake=None if world.announces_itself(settings) else _KeepersRing())


def _named(text: str) -> SessionId:
    if not ids.is_session(text):
        raise SessionNotFound(session=text)
    return SessionId(text)


def list_(asked: argparse.Namespace) -> int:
    """The sessions used last, newest first."""
    engine = _engine()
    for session, at in engine.sessions(asked.n):
        try:
            seen = engine.view(session)
        except SessionNotFound:
            continue
        print(f"{session}  {iso(Millis(at))}  {seen.status:<18} {seen.agent:<16} {seen.events} events")
    return 0


def show_(asked: argparse.Namespace) -> int:
    """One session, a field a line."""
    engine, session = _engine(), _named(asked.session)
    seen = engine.view(session)
    fields = {
        "session": seen.session,
        "agent": seen.agent,
        "status": seen.status,
        "turn": seen.turn or "-",
        "waiting": f"{seen.waiting} messages",
        "events": seen.events,
        "attempt": seen.attempt,
        "epoch": seen.epoch,
        "deployment": seen.deployment,
        "created": iso(Millis(seen.created_ms)),
    }
    for name, value in fields.items():
        print(f"{name:<11}{value}")
    if count := sum(map(is_open, engine.requests(session))):
        print(f"{'requests':<11}waits for an answer to {count} request{'' if count == 1 else 's'}")
    return 0


def requests_(asked: argparse.Namespace) -> int:
    """What a session has asked people and who has answered, one JSON object a line. Links are not in it: it is to be kept."""
    for note in _engine().requests(_named(asked.session)):
        print(json.dumps(record(note), ensure_ascii=False))
    return 0


def follow_(asked: argparse.Namespace) -> int:
    """The stream as it is stored, one JSON object a line. Ends with the session, or at the end of what is there."""
    engine, session, index = _engine(), _named(asked.session), max(0, asked.first)
    while True:
        life = engine.reads.life(session)
        if life is None:
            raise SessionNotFound(session=session)
        lines = engine.reads.events(session, index)
        for line in lines:
            sys.stdout.write(line.decode() + "\n")
        index += len(lines)
        if lines:
            sys.stdout.flush()
        elif asked.to_end or life == "ended":
            return 0
        else:
            time.sleep(LOOK_SECONDS)


def cancel_(asked: argparse.Namespace) -> int:
    """Tell the open turn to stop."""
    outcome = _engine().cancel(_named(asked.session))
    print(outcome.replace("_", " "))
    return 0


def clear_(asked: argparse.Namespace) -> int:
    """Let the model forget what was said."""
    return _control(asked, "clear")


def compact_(asked: argparse.Namespace) -> int:
    """Let the model sum up what was said long ago."""
    return _control(asked, "compact")


def reset_(asked: argparse.Namespace) -> int:
    """End a session for good."""
    return _control(asked, "reset")


def _control(asked: argparse.Namespace, kind: Control) -> int:
    session = _named(asked.session)
    _engine().control(session, kind)
    print(f"accepted; what becomes of it: orchestrator sessions follow {session}")
    return 0


def erase_(asked: argparse.Namespace) -> int:
    """Leave nothing of a session."""
    _engine().erase(_named(asked.session))
    print("erased")
    return 0
