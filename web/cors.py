"""Pages of other hosts: which of them a browser may let read our answers. Nobody, unless ORCHESTRATOR_CORS_ORIGINS says so.

Whoever calls still has to show who they are, with each request but the browser's question before it. Cookies mean nothing here, so
credentials are never allowed for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flask import Request, Response, request

METHODS = "GET, HEAD, POST, DELETE"
HEADERS = ("authorization", "content-type", "last-event-id")
EXPOSED = "x-eve-stream-version, x-eve-stream-tail-index, x-eve-session-id, retry-after"
KEPT_SECONDS = "600"


def after(origins: Sequence[str]) -> Callable[[Response], Response]:
    """What to do with each answer."""

    def add(answer: Response) -> Response:
        if not origins:
            return answer
        everybody = tuple(origins) == ("*",)
        if not everybody:
            answer.vary.add("origin")
        origin = request.headers.get("origin", "")
        if not origin or not (everybody or origin.lower() in origins):
            return answer
        answer.headers["access-control-allow-origin"] = "*" if everybody else origin
        answer.headers["access-control-expose-headers"] = EXPOSED
        if is_question(request):
            asked = request.headers.get("access-control-request-headers", "")
            own = [name for name in map(str.strip, asked.lower().split(",")) if name.startswith("x-")]
            answer.headers["access-control-allow-methods"] = METHODS
            answer.headers["access-control-allow-headers"] = ", ".join([*HEADERS, *own])
            answer.headers["access-control-max-age"] = KEPT_SECONDS
        return answer

    return add


def is_question(asked: Request) -> bool:
    """Whether a browser only asks what it may send."""
    return asked.method == "OPTIONS" and "access-control-request-method" in asked.headers
