"""The two tasks. Both say "look at this session"; the names tell people why: a step goes on, or something came in."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery

from orchestrator.core.names import SessionId
from orchestrator.envelope import RESUME, STEP
from orchestrator.errors import JournalAway
from tasks.here import Here

log = logging.getLogger(__name__)

# Celery carries hints: no result, no retry of its own, and acknowledged late only so that a worker takes no more than it can run.
OPTIONS: dict[str, Any] = {
    "acks_late": True,
    "ignore_result": True,
    "max_retries": 0,
    "typing": True,
    "serializer": "json",
    "shared": False,
    "Request": "tasks.keeper:Sessions",
}


def register(celery: Celery, here: Here) -> tuple[Any, Any]:
    """Make the tasks known to a Celery app."""

    def step(session: str, key: str) -> None:  # noqa: ARG001  # for people
        """Go on with a session whose next step is known."""
        carry_on(here, session)

    def resume(session: str, key: str) -> None:  # noqa: ARG001  # for people
        """Look at a session to which something came in."""
        carry_on(here, session)

    make: Any = celery.task
    return make(step, name=STEP, **OPTIONS), make(resume, name=RESUME, **OPTIONS)


def carry_on(here: Here, session: str) -> None:
    """Move a session on. What breaks is told with its name; the keeper looks at it again."""
    try:
        here.engine().carry_on(SessionId(session))
    except JournalAway as away:
        log.warning("%s waits for the journal: %s", session, away)
    except Exception:
        log.exception("%s could not be carried on", session)
