"""Celery's side: `celery -A tasks worker` carries sessions on, `celery -A tasks flower` shows it.

Importing this connects to nothing and makes no app the current one.
"""

from __future__ import annotations

from orchestrator.engine import Engine
from tasks.host import install
from tasks.steps import register
from tasks.worker import Orchestrator

__all__ = ["app", "engine", "install", "resume", "step"]

app = Orchestrator("tasks", set_as_current=False)
app.config_from_object("celeryconfig")
step, resume = register(app, app.here)


def engine() -> Engine:
    """The engine of this process. Raises `ConfigError`, `JournalAway`."""
    return app.here.engine()
