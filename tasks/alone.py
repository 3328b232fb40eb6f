"""`python -m tasks.alone SESSION TOKEN`: one session in a process of its own, because its last ones died."""

from __future__ import annotations

import sys

from orchestrator.core.names import SessionId
from tasks import engine


def main(arguments: list[str]) -> int:
    """Carry the session on under the token it was given."""
    session, token = arguments
    engine().carry_on(SessionId(session), alone=token)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
