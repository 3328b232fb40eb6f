"""Imports point one way. The table below is the architecture; it changes only together with a design note.

    web, tasks, cli  ->  engine  ->  turn  ->  draft, perform | process, journal  ->  core

Counted are all imports: at the top, inside functions, for types only, and `import_module("a literal")`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("orchestrator", "tasks", "web", "celeryconfig")

LEAVES = {
    "orchestrator.agent",
    "orchestrator.apikeys",
    "orchestrator.approval",
    "orchestrator.asides",
    "orchestrator.auth",
    "orchestrator.channels",
    "orchestrator.clock",
    "orchestrator.config",
    "orchestrator.deliveries",
    "orchestrator.envelope",
    "orchestrator.errors",
    "orchestrator.ids",
    "orchestrator.loader",
    "orchestrator.notes",
    "orchestrator.noting",
    "orchestrator.parts",
    "orchestrator.ports",
    "orchestrator.records",
    "orchestrator.state",
    "orchestrator.tool",
    "orchestrator.wake",
}
BASE = LEAVES | {"orchestrator.core"}
ROAD = {
    *("orchestrator.journal", "orchestrator.process", "orchestrator.process.loops", "orchestrator.process.history"),
    *("orchestrator.perform", "orchestrator.draft"),
}
DESK = BASE | {"orchestrator.engine", "orchestrator.journal", "orchestrator.local", "orchestrator.world"}

# What each unit may import beside itself and the standard library. A unit is the longest name here that fits a module.
MAY_IMPORT: Mapping[str, set[str]] = {
    "orchestrator.core": {"msgpack"},
    **{leaf: BASE | {"pydantic"} for leaf in LEAVES},
    # Values and hooks. What an App offers reaches the engine by name, through `here`; the poster is the worker's.
    "orchestrator.channels": BASE | {"standardwebhooks"},
    "orchestrator.here": BASE | {"orchestrator.engine", "orchestrator.world", "tasks"},
    "orchestrator.channels.outbox": BASE | {"orchestrator.journal", "orchestrator.process"},
    "orchestrator.asides": {"orchestrator.errors", "jsonschema", "referencing", "pydantic_core"},
    "orchestrator.errors": set(),
    "orchestrator.auth": BASE | {"jwt", "cryptography"},
    "orchestrator.envelope": set(),
    "orchestrator.local": {"orchestrator.errors"},
    "orchestrator.journal": BASE | {"redis", "hiredis", "msgpack"},
    "orchestrator.world": BASE | {"orchestrator.journal", "orchestrator.local"},
    "orchestrator.models": BASE | {"pydantic_ai", "pydantic", "pydantic_core", "httpx2"},
    # Watchers are told values and give none back. What they read of the journal for a scrape is apart, so that `process` may know them.
    "orchestrator.watching": BASE | {"prometheus_client", "opentelemetry", "pydantic_core"},
    "orchestrator.seen": BASE | {"orchestrator.journal"},
    "orchestrator.watching.world": BASE
    | {"orchestrator.journal", "orchestrator.seen", "orchestrator.watching", "orchestrator.world"},
    # What a process shares. Loops and threads know nothing; the door to the models is opened when a session needs it.
    "orchestrator.process": BASE
    | {"orchestrator.journal", "orchestrator.models", "orchestrator.process.history", "orchestrator.process.loops"}
    | {"orchestrator.watching"},
    "orchestrator.process.loops": set(),
    "orchestrator.process.history": BASE,
    # Does, and does not know what is remembered; `process.loops` is all it has of the process.
    "orchestrator.perform": BASE | {"orchestrator.process.loops", "pydantic_core"},
    "orchestrator.draft": BASE | {"orchestrator.journal", "orchestrator.process.history"},
    "orchestrator.turn": BASE | ROAD | {"orchestrator.watching"},
    "orchestrator.engine": BASE
    | ROAD
    | {"orchestrator.channels.outbox", "orchestrator.turn", "orchestrator.local", "orchestrator.world"}
    | {"orchestrator.seen", "orchestrator.watching", "orchestrator.watching.world"},
    "orchestrator.keeper": BASE | {"orchestrator.journal"},
    "orchestrator.client": {"orchestrator.errors", "httpx2"},
    "orchestrator.cli": DESK
    | {
        "orchestrator.client",
        "orchestrator.cli.load",
        "orchestrator.seen",
        "orchestrator.watching",
        "typer",
        "rich",
        "prompt_toolkit",
    },
    "orchestrator.cli.load": {
        "orchestrator",
        "orchestrator.models",
        "orchestrator.tool",
    },  # an App like a user's, for `bench`
    "orchestrator": LEAVES | {"orchestrator.client", "orchestrator.engine", "orchestrator.models"},  # the front door
    "tasks": DESK
    | {"orchestrator.keeper", "orchestrator.process", "orchestrator.watching", "celery", "kombu", "billiard"},
    "web": BASE
    | {"orchestrator.engine", "orchestrator.here", "orchestrator.watching", "orchestrator.world"}
    | {"flask", "werkzeug", "gunicorn", "pydantic", "tasks"},  # tasks: to publish where the broker is another server
    "celeryconfig": set(),
}

# core is values in, values out: no clock, no dice, no network, no log, no threads, no files.
NOT_IN_CORE = {
    *("time", "random", "secrets", "uuid", "logging", "os", "io", "pathlib", "shutil", "tempfile", "signal"),
    *("socket", "ssl", "select", "selectors", "http", "urllib", "asyncio", "threading", "multiprocessing"),
    *("concurrent", "subprocess", "contextvars", "queue"),
}
A_VALUE_ALL_THE_SAME = {"uuid.UUID"}
NOT_CALLED_IN_CORE = {"open", "print", "input", "now", "utcnow", "today", "uuid4", "uuid1"}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """All modules of the product by name."""
    files = [file for package in OURS for file in [root / f"{package}.py", *(root / package).rglob("*.py")]]
    return {_name(file, root): file for file in files if file.exists()}


def imports(name: str, source: str, *, package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that this module imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = name.split(".") if package else name.split(".")[:-1]
                base = ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])]) if level else module
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(literal)), *_],
            ):
                yield node.lineno, literal


def unit(name: str) -> str | None:
    """The line of the table that this module falls under."""
    fits = [unit for unit in MAY_IMPORT if name == unit or name.startswith(unit + ".")]
    return max(fits, key=len, default=None)


def violations(name: str, source: str, known: Mapping[str, object], *, package: bool = False) -> list[str]:
    """What this module imports and may not, as sentences."""
    home = unit(name)
    if home is None or (home == "orchestrator" and name != "orchestrator"):
        return [f"{name} has no line in MAY_IMPORT: say where it belongs"]
    found = []
    for line, imported in imports(name, source, package=package):
        top = imported.split(".")[0]
        if top in OURS:
            # `from orchestrator import local` names a module, `from orchestrator.errors import X` a thing in one.
            module = imported if imported in known else imported.rpartition(".")[0] or imported
            target = unit(module)
            allowed = target == home or target in MAY_IMPORT[home]
        elif top in sys.stdlib_module_names:
            allowed = home != "orchestrator.core" or top not in NOT_IN_CORE or imported in A_VALUE_ALL_THE_SAME
        else:
            allowed = top in MAY_IMPORT[home]
        if not allowed:
            found.append(f"{name}:{line} may not import {imported}")
    return found


def impure_calls(name: str, source: str) -> list[str]:
    """Calls in core that ask the world: its clock, its dice, its files."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in NOT_CALLED_IN_CORE:
                found.append(f"{name}:{node.lineno} calls {called}()")
    return found


def _name(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _reach(start: str) -> set[str]:
    seen, ahead = set[str](), [start]
    while ahead:
        for target in MAY_IMPORT.get(ahead.pop(), set()) - seen:
            seen.add(target)
            ahead.append(target)
    return seen


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_imports_only_what_its_layer_may(name: str) -> None:
    known = modules()
    file = known[name]
    assert not violations(name, file.read_text(), known, package=file.name == "__init__.py")


@pytest.mark.parametrize("name", sorted(name for name in modules() if unit(name) == "orchestrator.core"))
def test_core_asks_nobody_for_the_time_or_for_luck(name: str) -> None:
    assert not impure_calls(name, modules()[name].read_text())


def test_celeryconfig_imports_nothing() -> None:
    file = modules().get("celeryconfig")
    assert file is None or not list(imports("celeryconfig", file.read_text()))


def test_the_table_has_no_circle() -> None:
    for start in MAY_IMPORT.keys() - LEAVES:
        assert start not in _reach(start)


def test_perform_and_journal_do_not_know_each_other() -> None:
    assert "orchestrator.journal" not in _reach("orchestrator.perform")
    assert not {"orchestrator.perform", "orchestrator.models"} & _reach("orchestrator.journal")


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("celery", "tasks"),
        ("flask", "web"),
        ("redis", "orchestrator.journal"),
        ("pydantic_ai", "orchestrator.models"),
        ("jwt", "orchestrator.auth"),
        ("typer", "orchestrator.cli"),
        ("prometheus_client", "orchestrator.watching"),
        ("opentelemetry", "orchestrator.watching"),
    ],
)
def test_each_big_library_has_one_home(library: str, home: str) -> None:
    assert [unit for unit, allowed in MAY_IMPORT.items() if library in allowed] == [home]


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("orchestrator.core.advance", "import time"),
        ("orchestrator.core.advance", "from random import random"),
        ("orchestrator.core.advance", "from uuid import uuid4"),
        ("orchestrator.core.advance", "def f():\n    from orchestrator.errors import InboxFull"),
        ("orchestrator.core.advance", "from ..errors import InboxFull"),
        ("orchestrator.core.advance", "import pydantic"),
        ("orchestrator.engine", "import redis"),
        ("orchestrator.engine", "import importlib\nimportlib.import_module('redis.asyncio')"),
        ("orchestrator.engine", "from orchestrator import cli"),
        ("orchestrator.perform", "from orchestrator.journal import keys"),
        ("orchestrator.perform", "from orchestrator import journal"),
        ("orchestrator.perform", "from . import journal"),
        ("orchestrator.journal.verbs", "from orchestrator import perform"),
        ("orchestrator.tool", "if TYPE_CHECKING:\n    from pydantic_ai import Tool"),
        ("orchestrator.client.http", "from orchestrator.config import Settings"),
        ("web.routes", "from celery import Celery"),
        ("web.routes", "from orchestrator.journal import Journal"),
        ("tasks.steps", "from flask import Flask"),
        ("tasks.steps", "import web"),
        ("celeryconfig", "import orchestrator"),
        ("orchestrator.helpers", ""),
    ],
)
def test_a_planted_import_is_found(name: str, planted: str) -> None:
    known = dict.fromkeys(["orchestrator", "orchestrator.journal", "orchestrator.perform", "orchestrator.cli", "web"])
    assert len(violations(name, planted, known)) == 1


def test_what_the_table_allows_is_not_found() -> None:
    known = dict.fromkeys(["orchestrator", "orchestrator.core", "orchestrator.core.fact"])
    for allowed in (
        "import msgpack",
        "from uuid import UUID",
        "from orchestrator.core import fact",
        "from . import fact",
    ):
        assert not violations("orchestrator.core.codec", allowed, known)
    assert not impure_calls("orchestrator.core.codec", "x = datetime(2026, 1, 1)")
    assert impure_calls("orchestrator.core.codec", "x = datetime.now()")


WATCHERS = {"prometheus_client", "opentelemetry"}
WORKER_ONLY = WATCHERS | {"celery", "kombu", "billiard", "pydantic_ai"}
UNWANTED = {
    "orchestrator": WORKER_ONLY | {"flask", "redis", "jwt", "cryptography"},
    "orchestrator.auth": WORKER_ONLY | {"flask", "redis", "jwt", "cryptography"},
    "orchestrator.client": WORKER_ONLY | {"flask", "redis"},
    "orchestrator.local": WORKER_ONLY | {"flask", "redis"},
    # The client of Redis looks whether there is an OpenTelemetry SDK, and imports it.
    "web": WORKER_ONLY - {"opentelemetry"} | {"jwt"},
}


@pytest.mark.parametrize("module", sorted(UNWANTED.keys() & modules().keys()))
def test_importing_it_is_cheap(module: str) -> None:
    code = f"import {module}, sys; print(*(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not UNWANTED[module] & set(loaded.split())
