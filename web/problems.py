"""Errors as answers: one table says what a caller is told. What is not in it is ours to mend: a 500 with an id, and the log."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from flask import Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from orchestrator.errors import (
    BadRequest,
    BodyTooLarge,
    Forbidden,
    InboxFull,
    JournalAway,
    JournalFull,
    OrchestratorError,
    SessionNotActive,
    SessionNotFound,
    TooManyStreams,
    Unauthorized,
)

log = logging.getLogger(__name__)

STRICT = "eve_"
"""Endpoints whose names begin so answer what the protocol says and nothing more."""


class CursorOfOtherSession(BadRequest):
    """The Last-Event-ID {cursor} is not of this session. Open the stream without it, or with one of its own."""

    code = "cursor_of_other_session"


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller of a failed request is told. Status and code are the error's own."""

    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


NOTHING: Mapping[str, object] = {}
AGAIN = {"retry-after": "1"}
AWAY = "The journal does not answer. Send the same request again in a moment; the stream shows whether it had come in all the same."
TABLE: Mapping[type[OrchestratorError], Told] = {
    SessionNotFound: Told("Session not found."),
    SessionNotActive: Told(),
    InboxFull: Told(headers=AGAIN),
    BadRequest: Told(),
    BodyTooLarge: Told(),
    Unauthorized: Told(headers={"www-authenticate": 'Bearer realm="orchestrator"'}),
    Forbidden: Told(),
    TooManyStreams: Told(headers=AGAIN),
    # Its own text names our servers.
    JournalAway: Told(AWAY, AGAIN),
    JournalFull: Told(headers={"retry-after": "5"}),
}


def answer(error: Exception, more: Mapping[str, object] = NOTHING) -> Response:
    """The answer to a request that failed with `error`; `more` is said beside it."""
    if isinstance(error, RequestEntityTooLarge):
        error = BodyTooLarge(limit_bytes=(request.max_content_length or 1) - 1)
    if isinstance(error, HTTPException):
        return _http(error)
    if not isinstance(error, OrchestratorError):
        return _hidden(error)
    told = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if told is None and error.status == JournalAway.status:
        told = TABLE[JournalAway]
    if told is None:
        return _hidden(error)
    if told.text == AWAY:
        log.warning("%s %s: %s", request.method, request.path, error)
    body: dict[str, object] = {"ok": False, "error": told.text or str(error), "code": error.code, **more}
    if isinstance(error, SessionNotFound) and (request.endpoint or "").rpartition(".")[2].startswith(STRICT):
        del body["code"]
    return reply(body, error.status, told.headers)


def reply(body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer that nobody may keep."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    found = Response(text, status, content_type="application/json")
    found.headers["cache-control"] = "no-store"
    found.headers.update(headers or {})
    return found


def _http(error: HTTPException) -> Response:
    status = error.code or 500
    if status >= 500:
        return _hidden(error)
    code = error.name.lower().replace(" ", "_")
    # All but the content type, which is that of a page: 405 says what is allowed.
    headers = {name: value for name, value in error.get_headers() if name.lower() != "content-type"}
    return reply({"ok": False, "error": error.description or error.name, "code": code}, status, headers)


def _hidden(error: Exception) -> Response:
    error_id = f"err_{secrets.token_hex(8)}"
    log.error("%s: %s %s failed", error_id, request.method, request.path, exc_info=error)
    text = f"Something went wrong here. The server's log has it under {error_id}."
    return reply({"ok": False, "error": text, "code": "internal_error", "errorId": error_id}, 500)
