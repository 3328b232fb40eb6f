"""`python -m tasks.alone SESSION TOKEN`: one session in a process of its own, because its last ones died."""

from __future__ import annotations

import logging
import sys
from typing import Any

from celery import platforms

from orchestrator.core.names import SessionId
from orchestrator.errors import OrchestratorError
from tasks import engine

EX_TEMPFAIL = 75
"""The session is not to blame: try again."""


def main(arguments: list[str]) -> int:
    """Carry the session on under the token it was given."""
    session, token = arguments
    # Whoever waits for us keeps the session's lease; without it we would work for nobody.
    watched: Any = platforms
    watched.set_pdeathsig("SIGKILL")
    try:
        engine().carry_on(SessionId(session), alone=token)
    except OrchestratorError as away:
        logging.getLogger(__name__).warning("%s was not carried on: %s", session, away)
        return EX_TEMPFAIL
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
