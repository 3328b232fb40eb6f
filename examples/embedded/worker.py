"""What the workers start with: the team's Celery app, into which the agent moves. They do both kinds of work from now on."""

from __future__ import annotations

import tasks
from examples.embedded.desk import app
from examples.embedded.jobs import celery

__all__ = ["celery"]

tasks.install(celery, app)
