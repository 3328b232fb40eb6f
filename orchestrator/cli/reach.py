"""Finding what a command works on: the App, its settings, and the journal, which a command that only looks never starts."""

from __future__ import annotations

import os
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from orchestrator import ids, local, world
from orchestrator.agent import Agent, App
from orchestrator.config import Settings, from_environment
from orchestrator.core.names import SessionId
from orchestrator.engine import Engine
from orchestrator.errors import BadRequest, ConfigError, JournalAway, OrchestratorError
from orchestrator.loader import load_app
from orchestrator.wake import OtherBroker

PROJECT = "pyproject.toml"


class Unreachable(OrchestratorError):
    """{where} does not answer: {reason}. {remedy}"""

    code, status = "journal_away", 503


class KeepersRing(OtherBroker):
    """A terminal publishes nothing to a broker of its own: a keeper rings within seconds."""

    def publish(self, task: str, label: str, session: SessionId, key: str) -> None:
        """Left to the keepers."""


# The App and its settings -----------------------------------------------------------------------------------------------


def surroundings(name: str = "", environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment with the App that was named: on the command line, in ORCHESTRATOR_APP, or in the project's file."""
    env = dict(os.environ if environ is None else environ)
    if found := name or env.get("ORCHESTRATOR_APP") or _of_project():
        env["ORCHESTRATOR_APP"] = found
    return env


def _of_project() -> str:
    """What `[tool.orchestrator] app` of the pyproject.toml in this folder says, or nothing."""
    file = Path(PROJECT)
    if not file.is_file():
        return ""
    try:
        found = tomllib.loads(file.read_text()).get("tool", {}).get("orchestrator", {}).get("app", "")
    except (OSError, ValueError, AttributeError) as broken:
        raise ConfigError(
            problem=f"{file.absolute()} cannot be read: {broken}.", remedy="Mend it, or set ORCHESTRATOR_APP."
        ) from broken
    if not isinstance(found, str):
        raise ConfigError(
            problem=f"{file.absolute()}: tool.orchestrator.app is no text.", remedy='Write app = "module:name".'
        )
    return found


def find_app(name: str) -> App:
    """The App behind `module:name`. Raises `ConfigError`, also for a module that breaks while it is imported: it says where."""
    if not name:
        raise ConfigError(
            problem="No App is named: there is no argument, ORCHESTRATOR_APP is not set,"
            f" and no {PROJECT} here has app under [tool.orchestrator].",
            remedy="Say module:name in one of them, such as support:app.",
        )
    try:
        return load_app(name)
    except OrchestratorError:
        raise
    except (Exception, SystemExit) as broken:
        raise ConfigError(
            problem=f"ORCHESTRATOR_APP={name}: its module breaks while it is imported. {_where(broken)}",
            remedy=f"Mend that; `python -c 'import {name.partition(':')[0]}'` shows all of it.",
        ) from broken


def _where(broken: BaseException) -> str:
    said = f"{type(broken).__name__}: {str(broken) or 'without a word'}"
    if isinstance(broken, SyntaxError):
        return f"{said.rstrip('.')}."
    frames = [frame for frame in traceback.extract_tb(broken.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {said.rstrip('.')}."


def configured(name: str = "") -> tuple[App | None, Settings]:
    """The App, if one is named anywhere, and the settings with which it runs here. Raises `ConfigError`."""
    env = surroundings(name)
    app = find_app(env["ORCHESTRATOR_APP"]) if env.get("ORCHESTRATOR_APP") else None
    return app, from_environment(app.settings if app else None, env)


# The journal --------------------------------------------------------------------------------------------------------------


def shown(url: str) -> str:
    """A URL without its password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    user = parts.username or ""
    return urlunsplit(parts._replace(netloc=f"{user}:***@{parts.netloc.rpartition('@')[2]}", query=""))


def running(settings: Settings) -> Settings:
    """The settings with the addresses of local servers, which must run. Raises `LocalServerAway`."""
    broker = local.running(settings.broker_url) if settings.broker_url else ""
    return replace(settings, url=local.running(settings.url), broker_url=broker)


def reach(name: str = "") -> Engine:
    """The engine of the world that is configured, open. Raises `ConfigError`, `WorldMismatch`, `LocalServerAway`, `Unreachable`."""
    app, settings = configured(name)
    settings = running(settings)
    # Looking needs no App: what is there was written by one.
    engine = Engine(app or App([Agent("none")]), settings, wake=wake_of(settings))
    open_journal(engine)
    return engine


def wake_of(settings: Settings) -> KeepersRing | None:
    """What an engine of a terminal rings with: the scripts do it, else the keepers."""
    with in_words(settings, "either"):
        return None if world.announces_itself(settings) else KeepersRing()


def open_journal(engine: Engine) -> None:
    """Connect, and refuse what cannot work, in words for a terminal."""
    with in_words(engine.settings):
        _ = engine.journal


@contextmanager
def in_words(settings: Settings, what: Literal["journal", "broker", "either"] = "journal") -> Iterator[None]:
    """A server that does not answer, or whose address is none, is told to somebody at a terminal."""
    journal = (f"the Redis at {shown(settings.url)}", "ORCHESTRATOR_URL")
    broker = (f"the broker at {shown(settings.broker_url)}", "ORCHESTRATOR_BROKER_URL")
    named = {
        "journal": [journal],
        "broker": [broker],
        "either": [journal, broker] if settings.broker_url else [journal],
    }[what]
    where, setting = (" or ".join(texts) for texts in zip(*named, strict=True))
    try:
        yield
    except JournalAway as away:
        reason = str(away.facts.get("reason", "")).rstrip(".")
        # By their names: only the journal may import the client.
        match type(away.__cause__).__name__:
            case "AuthenticationError" | "AuthorizationError":
                remedy = f"Set the right user and password in {setting}."
            case "BusyLoadingError":
                remedy = "Wait until it has loaded its data."
            case "ReadOnlyError":
                remedy = f"Name the primary in {setting}: this one is a replica."
            case _:
                remedy = f"Start it, or name another one with {setting}."
        raise Unreachable(where=f"{where[0].upper()}{where[1:]}", reason=reason, remedy=remedy) from away
    except ValueError as broken:
        raise ConfigError(
            problem=f"{setting}={shown(settings.broker_url if what == 'broker' else settings.url)} is no address of a Redis.",
            remedy="Use redis://HOST:PORT/0, rediss://, valkey://, or local:DIR.",
        ) from broken


def named(text: str) -> SessionId:
    """A session by its id. Raises `BadRequest` for what cannot be one."""
    if not ids.is_session(text):
        raise BadRequest(problem=f"{text} is no session id: `orchestrator sessions list` shows what they look like.")
    return SessionId(text)
