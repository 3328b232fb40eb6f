"""Celery's side: `celery -A tasks worker` carries sessions on, `celery -A tasks flower` shows it.

Importing this connects to nothing and makes no app the current one.
"""

from __future__ import annotations

from orchestrator.agent import App
from orchestrator.config import Settings
from orchestrator.engine import Engine
from tasks.here import Here
from tasks.host import install
from tasks.steps import register
from tasks.worker import Orchestrator

__all__ = ["app", "engine", "engine_for", "install", "resume", "step"]

app = Orchestrator("tasks", set_as_current=False)
app.config_from_object("celeryconfig")
step, resume = register(app, app.here)


def engine_for(app: App, settings: Settings) -> Engine:
    """The engine of an App in a process that only asks. Its wakes are published to the broker that `settings` name."""
    publisher = Orchestrator("tasks", set_as_current=False)
    publisher.config_from_object("celeryconfig")
    publisher.here = Here(publisher, app, settings)
    register(publisher, publisher.here)
    return publisher.here.engine()


def engine() -> Engine:
    """The engine of this process. Raises `ConfigError`, `JournalAway`."""
    return app.here.engine()
