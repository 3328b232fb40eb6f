"""The door: JSON and query parameters become values here, and nobody checks them again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from orchestrator.core.delivery import Body, Part, TurnPolicy
from orchestrator.core.names import SessionId
from orchestrator.errors import BadRequest, NotSupportedYet, SessionNotFound
from orchestrator.ids import is_session
from web.problems import CursorOfOtherSession

Json = Mapping[str, Any]
NOT_YET = ("operationId", "deliveryKey", "clientContext", "outputSchema", "capabilities", "callback", "stubs")
WITH_MESSAGE = ("clientContext", "outputSchema")
INTEGER = re.compile(r"-?[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Create:
    """A new session, with its first message if there is one. `agent` is empty for the App's first."""

    message: Body | None
    policy: TurnPolicy
    agent: str


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a session."""

    message: Body
    policy: TurnPolicy


@dataclass(frozen=True, slots=True)
class Reading:
    """How a stream is to be read. `start` counts from the end when it is negative."""

    start: int
    bounded: bool
    tail: bool
    lease: bool
    sse: bool
    resumed: bool


def limit_body(request: Request, limit_bytes: int) -> None:
    """Say how long a body may be before it is read."""
    # One more than allowed: a chunked body is cut off there without a word, and has to be told from one that just fits.
    request.max_content_length = limit_bytes + 1


def session_id(text: str) -> SessionId:
    """A session's id. Raises `SessionNotFound` for what cannot be one."""
    if not is_session(text):
        raise SessionNotFound(session=text)
    return SessionId(text)


def create(request: Request, *, ours: bool) -> Create:
    """The body of a create. Which `agent` is a field of our own routes only. Raises `BadRequest`."""
    body = _object(request)
    for name in ("inputResponses", "continuationToken"):
        if name in body:
            raise BadRequest(problem=f"{name} is for a session that is there already; a create has none.")
    if "message" not in body:
        for name in WITH_MESSAGE:
            if name in body:
                raise BadRequest(problem=f"{name} needs a message.")
    _refuse_not_yet(body)
    message = _message(body["message"]) if "message" in body else None
    return Create(message, _policy(body), _text(body, "agent") if ours else "")


def send(request: Request) -> Send:
    """The body of a follow-up. Raises `BadRequest`."""
    body = _object(request)
    if "message" in body and "inputResponses" in body:
        raise BadRequest(problem="Send either message or inputResponses, not both.")
    if "inputResponses" in body:
        raise NotSupportedYet(field="inputResponses")
    if "message" not in body:
        raise BadRequest(problem="message is missing.")
    _refuse_not_yet(body)
    return Send(_message(body["message"]), _policy(body))


def cancel(request: Request) -> str:
    """The turn a cancel is meant for, or nothing for whichever runs. Raises `BadRequest`."""
    return _text(_object(request), "turnId")


def reading(request: Request, session: SessionId) -> Reading:
    """How the stream is to be read. Raises `BadRequest`."""
    query = request.args
    sse = "text/event-stream" in request.headers.get("accept", "").lower()
    start = _integer("startIndex", query.get("startIndex", "0"))
    last = request.headers.get("last-event-id", "") if sse else ""
    if last:
        # A browser that reconnects sends the first URL again: what it has seen counts, not where it began.
        whose, _, index = last.rpartition(":")
        if whose != session:
            raise CursorOfOtherSession(cursor=last)
        start = _integer("The index in Last-Event-ID", index, least=0) + 1
    bounded = query.get("follow", "").lower() in ("false", "0")
    return Reading(
        start=start,
        bounded=bounded,
        tail=bounded or query.get("includeTailIndex", "").lower() in ("1", "true"),
        lease=query.get("streamControlVersion") == "1",
        sse=sse,
        resumed=bool(last),
    )


def limit(request: Request) -> int:
    """How many sessions a list shall have. Raises `BadRequest`."""
    return min(_integer("limit", request.args.get("limit", "100"), least=1), 1000)


def _object(request: Request) -> Json:
    raw, most = request.get_data(cache=False), request.max_content_length
    if most is not None and len(raw) >= most:
        raise RequestEntityTooLarge
    if not raw.strip():
        return {}
    try:
        found = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadRequest(problem="The body is not JSON (in UTF-8).") from None
    if not isinstance(found, dict):
        raise BadRequest(problem="The body must be a JSON object.")
    return found


def _refuse_not_yet(body: Json) -> None:
    for name in NOT_YET:
        if name in body:
            raise NotSupportedYet(field=name)


def _message(given: object) -> Body:
    match given:
        case str():
            return Body((Part("text", _said("message", given)),))
        case [*parts] if parts:
            return Body(tuple(_part(f"message[{place}]", part) for place, part in enumerate(parts)))
        case _:
            raise BadRequest(problem="message must be a text, or a list of parts with at least one in it.")


def _part(where: str, given: object) -> Part:
    match given:
        case {"type": "text", "text": str(text)}:
            return Part("text", _said(f"{where}.text", text))
        case {"type": "text"}:
            raise BadRequest(problem=f"{where}.text must be a text.")
        case {"type": "file"}:
            raise NotSupportedYet(field=f"{where} (a part of type file)")
        case {"type": str(kind)}:
            raise BadRequest(problem=f"{where}.type is {kind[:40]!r}; there are text and file.")
        case _:
            raise BadRequest(problem=f"{where} must be an object with a type.")


def _said(where: str, text: str) -> str:
    if not text:
        raise BadRequest(problem=f"{where} is empty.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(problem=f"{where} has half of a surrogate pair, which is no character.") from None
    return text


def _policy(body: Json) -> TurnPolicy:
    match body.get("turnPolicy", "steer"):
        case "steer":
            return "steer"
        case "queue":
            return "queue"
        case _:
            raise BadRequest(problem="turnPolicy must be steer or queue.")


def _text(body: Json, name: str) -> str:
    if name not in body:
        return ""
    text = body[name]
    if not isinstance(text, str):
        raise BadRequest(problem=f"{name} must be a text.")
    return _said(name, text)


def _integer(name: str, text: str, least: int | None = None) -> int:
    if not INTEGER.fullmatch(text) or (least is not None and int(text) < least):
        raise BadRequest(problem=f"{name} must be an integer{'' if least is None else f' from {least} on'}.")
    return int(text)
