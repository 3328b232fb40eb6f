"""What a worker process and a web process are started as."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import orchestrator.ids as ids
from orchestrator import auth
from orchestrator.cli.reach import KeepersRing, Unreachable, find_app, open_journal, surroundings
from orchestrator.cli.supervisor import Child, Supervisor
from orchestrator.config import Settings, from_environment
from orchestrator.engine import Engine
from orchestrator.errors import ConfigError
from orchestrator.watching.serving import together

BEYOND_DRAIN_SECONDS = 10.0
WEB_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Of which kind a worker's pool is, how many sessions it takes at a time (None: its own number), and whether it tells Flower."""

    kind: str = "threads"
    concurrency: int | None = None
    events: bool = False


def prepare(app: str, environ: Mapping[str, str]) -> tuple[dict[str, str], Settings]:
    """The environment of our processes and their settings; the App is loaded once, so that a wrong name is told at once."""
    env = surroundings(app, environ)
    settings = from_environment(find_app(env.get("ORCHESTRATOR_APP", "")).settings, env)
    return env, settings


def check_access(app: str, settings: Settings) -> None:
    """Refuse credentials that are none before a web process does it, again and again. Raises `ConfigError`."""
    auth.walk(find_app(app).auth, settings)


def check_journal(app: str, settings: Settings) -> None:
    """Refuse a journal that cannot work before anything is started. One that is away is waited for by whoever needs it."""
    engine = Engine(find_app(app), settings, wake=KeepersRing())
    try:
        open_journal(engine)
    except Unreachable as away:
        print(f"{away} Waiting for it.", file=sys.stderr, flush=True)
    finally:
        engine.close()


def workers(pool: Pool, many: int, env: Mapping[str, str], settings: Settings) -> list[Child]:
    """Worker processes, each with a name and an id of its own."""
    flags = ["--pool", pool.kind]
    if pool.concurrency:
        flags += ["--concurrency", str(pool.concurrency)]
    if pool.events:
        flags += ["--task-events"]
    children = []
    for number in range(1, many + 1):
        worker = ids.ulid(0)[-8:]
        name = f"{settings.deployment}-{number}@%h"
        command = [sys.executable, "-m", "celery", "--quiet", "-A", "tasks", "worker", "-n", name, *flags]
        children.append(
            Child(
                f"worker {number}",
                command,
                {**env, "ORCHESTRATOR_WORKER": worker},
                settings.drain_seconds + BEYOND_DRAIN_SECONDS,
                quiet=True,
            )
        )
    return children


def free_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises `ConfigError` where it cannot be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as taken:
        raise ConfigError(
            problem=f"Port {port} of {host} cannot be had: {taken.strerror}.", remedy="Name another one with --port."
        ) from taken


def web_command() -> list[str]:
    """gunicorn with our settings."""
    return [sys.executable, "-m", "gunicorn", "-c", "python:web.gunicorn", "web:create_app()"]


def web_child(env: Mapping[str, str], port: int) -> Child:
    """The web process of `dev`. Told to quit and not killed when we die: its own children would keep the port."""
    here = {**env, "BIND": "127.0.0.1", "PORT": str(port)}
    return Child("web", web_command(), here, WEB_SECONDS, orphan_signal=signal.SIGQUIT, quiet=True)


def worker(app: str, processes: int, pool: Pool) -> int:
    """`orchestrator worker`."""
    env, settings = prepare(app, os.environ)
    check_journal(env["ORCHESTRATOR_APP"], settings)
    with together(settings, env, many=processes > 1):
        return Supervisor(workers(pool, processes, env, settings)).run()


def web(app: str, *, host: str, port: int, processes: int) -> NoReturn:
    """`orchestrator web`: this process becomes gunicorn's."""
    env, settings = prepare(app, os.environ)
    if not host.startswith("unix:") and (":" not in host or host.endswith("]")):
        port = free_port(host, port)
    check_access(env["ORCHESTRATOR_APP"], settings)
    check_journal(env["ORCHESTRATOR_APP"], settings)
    env |= {"BIND": host, "PORT": str(port)}
    os.execve(sys.executable, [*web_command(), "--workers", str(processes)], env)
