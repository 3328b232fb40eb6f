"""The door: JSON and query parameters become values here, and nobody checks them again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from orchestrator.asides import Context
from orchestrator.core.delivery import Body, Response
from orchestrator.core.names import RequestId, SessionId
from orchestrator.errors import BadRequest, NotSupportedYet, SessionNotFound
from orchestrator.ids import is_session
from orchestrator.parts import body_of, text_of
from web.problems import CursorOfOtherSession

Json = Mapping[str, Any]
Policy = Literal["", "steer", "queue"]
"""What is to become of a message while a turn runs; empty for what the App says."""
NOT_YET = ("callback", "stubs")
WITH_MESSAGE = ("clientContext", "outputSchema")
LONGEST_KEY = 256
MOST_OF_A_REASON = 200
"""Characters of it that are logged."""
RESPONSE_FIELDS = frozenset({"requestId", "optionId", "text"})
MOST_RESPONSES = 64
LONGEST_TEXT_BYTES = 16 * 1024
FORM = "application/x-www-form-urlencoded"
INTEGER = re.compile(r"-?[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Create:
    """A new session, with its first message if there is one. `agent` is empty for the App's first, `operation` for a create of its own.
    Without `may_ask` it has nobody who answers."""

    message: Body | None
    policy: Policy
    agent: str
    operation: str
    may_ask: bool = True
    context: Context | None = None
    output: Json | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a session. `key` is the caller's own name for this delivery, empty for none."""

    message: Body
    policy: Policy
    key: str
    context: Context | None = None
    output: Json | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers to requests of a session."""

    responses: tuple[Response, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Linked:
    """What is answered through a link: an option, a text, or both."""

    option: str
    text: str


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
    _need_a_message(body)
    _refuse_not_yet(body)
    message = body_of(body["message"]) if "message" in body else None
    agent = _text(body, "agent") if ours else ""
    operation = _key(body, "operationId")
    return Create(message, _policy(body), agent, operation, _may_ask(body), _context(body), _output(body))


def send(request: Request) -> Send | Answer:
    """The body of a follow-up. Raises `BadRequest`."""
    body = _of_a_session(request)
    if "capabilities" in body:
        raise NotSupportedYet(field="capabilities (of a session that is there already)")
    if "message" in body and "inputResponses" in body:
        raise BadRequest(problem="Send either message or inputResponses, not both.")
    key = _key(body, "deliveryKey")
    if "inputResponses" in body:
        _need_a_message(body)
        _refuse_not_yet(body)
        return Answer(_responses(body["inputResponses"]), key)
    if "message" not in body:
        raise BadRequest(problem="message is missing (or inputResponses).")
    _refuse_not_yet(body)
    return Send(body_of(body["message"]), _policy(body), key, _context(body), _output(body))


def link(request: Request) -> Linked:
    """The body of an answer through a link: JSON, or what a page's form sends. Raises `BadRequest`."""
    body = _form(request) if request.mimetype == FORM else _object(request)
    option, text = _answered("optionId", body.get("optionId", "")), _answered("text", body.get("text", ""))
    if not option and not text:
        raise BadRequest(problem="There is no answer: send optionId, text or both.")
    return Linked(option, text)


def only_open(request: Request) -> bool:
    """Whether a list shall have only the requests that wait for an answer."""
    return request.args.get("open", "").lower() in ("1", "true")


def cancel(request: Request) -> str:
    """The turn a cancel is meant for, or nothing for whichever runs. Raises `BadRequest`."""
    return _text(_of_a_session(request), "turnId")


def reset(request: Request) -> str:
    """Why a session is to end, for the log, or nothing. Raises `BadRequest`."""
    return _text(_of_a_session(request), "reason")[:MOST_OF_A_REASON]


def nothing(request: Request) -> None:
    """A body that says nothing: empty, or an object. Raises `BadRequest`."""
    _of_a_session(request)


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


def _raw(request: Request) -> bytes:
    raw, most = request.get_data(cache=False), request.max_content_length
    if most is not None and len(raw) >= most:
        raise RequestEntityTooLarge
    return raw


def _form(request: Request) -> Json:
    try:
        return dict(
            parse_qsl(_raw(request).decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=20)
        )
    except ValueError:
        raise BadRequest(problem="The body is no form (in UTF-8).") from None


def _object(request: Request) -> Json:
    raw = _raw(request)
    if not raw.strip():
        return {}
    try:
        found = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadRequest(problem="The body is not JSON (in UTF-8).") from None
    if not isinstance(found, dict):
        raise BadRequest(problem="The body must be a JSON object.")
    return found


def _of_a_session(request: Request) -> Json:
    body = _object(request)
    if "continuationToken" in body:
        raise BadRequest(problem="A session is named by the path here, not by a continuationToken.")
    return body


def _refuse_not_yet(body: Json) -> None:
    for name in NOT_YET:
        if name in body:
            raise NotSupportedYet(field=name)


def _need_a_message(body: Json) -> None:
    for name in WITH_MESSAGE:
        if name in body and "message" not in body:
            raise BadRequest(problem=f"{name} needs a message.")


def _context(body: Json) -> Context | None:
    """What is told beside the message. Its size and its texts are looked at where it is stored."""
    given = body.get("clientContext", "")
    if not isinstance(given, str | list | dict):
        raise BadRequest(problem="clientContext must be a text, a list of texts that are not empty, or an object.")
    return given if "clientContext" in body else None


def _output(body: Json) -> Json | None:
    """The JSON Schema of the result. Whether it is one is looked at where it is stored."""
    given = body.get("outputSchema", {})
    if not isinstance(given, dict):
        raise BadRequest(problem="outputSchema must be an object: a JSON Schema.")
    return given if "outputSchema" in body else None


def _policy(body: Json) -> Policy:
    if "turnPolicy" not in body:
        return ""
    match body["turnPolicy"]:
        case "steer":
            return "steer"
        case "queue":
            return "queue"
        case _:
            raise BadRequest(problem="turnPolicy must be steer or queue.")


def _responses(given: object) -> tuple[Response, ...]:
    if not isinstance(given, list) or not given:
        raise BadRequest(problem="inputResponses must be a list with at least one answer in it.")
    if len(given) > MOST_RESPONSES:
        raise BadRequest(problem=f"inputResponses has more than {MOST_RESPONSES} answers.")
    return tuple(_response(f"inputResponses[{place}]", each) for place, each in enumerate(given))


def _response(where: str, given: object) -> Response:
    if not isinstance(given, dict) or "requestId" not in given:
        raise BadRequest(problem=f"{where} must be an object with a requestId.")
    if not RESPONSE_FIELDS.issuperset(given):
        raise BadRequest(problem=f"{where} may have requestId, optionId and text, and nothing more.")
    request = text_of(f"{where}.requestId", _answered(f"{where}.requestId", given["requestId"]))
    option = _answered(f"{where}.optionId", given.get("optionId", ""))
    return Response(RequestId(request), option, _answered(f"{where}.text", given.get("text", "")))


def _answered(where: str, given: object) -> str:
    """A text of an answer, which may be empty."""
    if not isinstance(given, str):
        raise BadRequest(problem=f"{where} must be a text.")
    if given and len(text_of(where, given).encode()) > LONGEST_TEXT_BYTES:
        raise BadRequest(problem=f"{where} has more than {LONGEST_TEXT_BYTES} bytes.")
    return given


def _may_ask(body: Json) -> bool:
    given = body.get("capabilities", {})
    if not isinstance(given, dict) or not isinstance(given.get("requestInput", True), bool):
        raise BadRequest(problem="capabilities must be an object; its requestInput is true or false.")
    return bool(given.get("requestInput", True))


def _key(body: Json, name: str) -> str:
    key = _text(body, name)
    if len(key) > LONGEST_KEY:
        raise BadRequest(problem=f"{name} has more than {LONGEST_KEY} characters.")
    return key


def _text(body: Json, name: str) -> str:
    if name not in body:
        return ""
    text = body[name]
    if not isinstance(text, str):
        raise BadRequest(problem=f"{name} must be a text.")
    return text_of(name, text)


def _integer(name: str, text: str, least: int | None = None) -> int:
    if not INTEGER.fullmatch(text) or (least is not None and int(text) < least):
        raise BadRequest(problem=f"{name} must be an integer{'' if least is None else f' from {least} on'}.")
    return int(text)
