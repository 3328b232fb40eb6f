"""Errors as answers. What is the caller's to mend is told in the error's own words, or in those of the table; what is ours is a 500 with
an id, and the log has the rest."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from flask import Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from orchestrator.auth import ApiKeys
from orchestrator.errors import (
    BadRequest,
    BodyTooLarge,
    InboxFull,
    IssuerAway,
    JournalAway,
    JournalFull,
    OrchestratorError,
    SessionNotFound,
    TooManyStreams,
    Unauthorized,
)
from web.logged import cut

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
    InboxFull: Told(headers=AGAIN),
    TooManyStreams: Told(headers=AGAIN),
    # Their own texts name servers and what happened there.
    JournalAway: Told(AWAY, AGAIN),
    IssuerAway: Told("Your token cannot be checked now: who issued it does not answer. Try again shortly.", AGAIN),
    JournalFull: Told(headers={"retry-after": "5"}),
}
OWN_WORDS = Told()


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
    if told is None and error.status < 500:
        told = OWN_WORDS
    if told is None:
        return _hidden(error)
    if error.status == JournalAway.status and told.text:
        log.warning("%s %s: %s", request.method, cut(request.path), error)
    body: dict[str, object] = {"ok": False, "error": told.text or str(error), "code": error.code, **more}
    if violations := error.facts.get("violations"):
        body["violations"] = violations
    if isinstance(error, SessionNotFound) and (request.endpoint or "").rpartition(".")[2].startswith(STRICT):
        del body["code"]
    answer = reply(body, error.status, told.headers)
    if isinstance(error, Unauthorized):
        challenges = error.facts.get("challenges", (ApiKeys.challenge,))
        answer.headers["www-authenticate"] = ", ".join(map(str, challenges)) if isinstance(challenges, tuple) else ""
    return answer


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
    log.error("%s: %s %s failed", error_id, request.method, cut(request.path), exc_info=error)
    text = f"Something went wrong here. The server's log has it under {error_id}."
    return reply({"ok": False, "error": text, "code": "internal_error", "errorId": error_id}, 500)
