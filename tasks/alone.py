"""`ORCHESTRATOR_TOKEN=… python -m tasks.alone SESSION`: one session in a process of its own, because its last ones died."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import Any

from celery import platforms

from orchestrator.config import Settings
from orchestrator.core.names import SessionId
from orchestrator.process.shared import worker_id

EX_TEMPFAIL = 75
"""The session is not to blame: try again."""


def main(arguments: list[str]) -> int:
    """Carry the session on under the token it was given."""
    (session,) = arguments
    # Whoever waits for us keeps the session's lease; without it we would work for nobody.
    watched: Any = platforms
    watched.set_pdeathsig("SIGKILL")
    try:
        from tasks import app, engine

        watch_alone(app.here.settings)
        engine().carry_on(SessionId(session), alone=os.environ["ORCHESTRATOR_TOKEN"])
    except Exception:  # whatever it is, it was not a death: only that is the session's own fault
        logging.getLogger(__name__).exception("%s was not carried on", session)
        return EX_TEMPFAIL
    return 0


def watch_alone(settings: Settings) -> None:
    """Its lines are its worker's lines."""
    if settings.log == "json":
        logging.basicConfig()
        always = {"deployment": settings.deployment, "worker": worker_id()}
        import_module("orchestrator.watching.logs").dress(logging.getLogger(), always)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
