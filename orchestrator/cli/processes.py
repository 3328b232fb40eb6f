"""What a worker process and a web process are started as."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

import orchestrator.ids as ids
from orchestrator.cli.supervisor import Child, Supervisor
from orchestrator.config import Settings, from_environment
from orchestrator.loader import load_app

BEYOND_DRAIN_SECONDS = 10.0
WEB_SECONDS = 12.0


def prepare(app: str | None, environ: Mapping[str, str]) -> tuple[dict[str, str], Settings]:
    """The environment of our processes and their settings; the App is loaded once, so that a wrong name is told at once."""
    env = dict(environ)
    if app:
        env["ORCHESTRATOR_APP"] = app
    settings = from_environment(load_app(env.get("ORCHESTRATOR_APP", "")).settings, env)
    return env, settings


def workers(asked: argparse.Namespace, many: int, env: Mapping[str, str], settings: Settings) -> list[Child]:
    """Worker processes, each with a name and an id of its own."""
    pool = ["--pool", asked.pool]
    if asked.concurrency:
        pool += ["--concurrency", str(asked.concurrency)]
    if asked.events:
        pool += ["--task-events"]
    children = []
    for number in range(1, many + 1):
        worker = ids.ulid(0)[-8:]
        name = f"{settings.deployment}-{number}@%h"
        command = [sys.executable, "-m", "celery", "--quiet", "-A", "tasks", "worker", "-n", name, *pool]
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


def web_command() -> list[str]:
    """gunicorn with our settings."""
    return [sys.executable, "-m", "gunicorn", "-c", "python:web.gunicorn", "web:create_app()"]


def web_child(env: Mapping[str, str], port: int) -> Child:
    """The web process of `dev`. Told to quit and not killed when we die: its own children would keep the port."""
    here = {**env, "BIND": "127.0.0.1", "PORT": str(port)}
    return Child("web", web_command(), here, WEB_SECONDS, orphan_signal=signal.SIGQUIT, quiet=True)


def worker(asked: argparse.Namespace) -> int:
    """`orchestrator worker`."""
    env, settings = prepare(asked.app, os.environ)
    return Supervisor(workers(asked, asked.processes, env, settings)).run()


def web(asked: argparse.Namespace) -> NoReturn:
    """`orchestrator web`: this process becomes gunicorn's."""
    env, _ = prepare(asked.app, os.environ)
    env |= {"BIND": asked.host, "PORT": str(asked.port)}
    os.execve(sys.executable, web_command(), env)
