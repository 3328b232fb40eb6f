"""The routes as an OpenAPI 3.1 document: served at `/v1/openapi.json`, and written by  python -m web > docs/openapi.json

`OPERATIONS` is the one list of them. Tests compare it with the routes that there are, and with docs/http.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flask import Blueprint, Response, request

import orchestrator.errors as errors
from web.problems import CursorOfOtherSession, reply
from web.shapes import ANY_TEXT, SHAPES, Schema, shape

JSON = "application/json"
PATH = "/v1/openapi.json"
EVE, OURS = "/eve/v1", "/v1"
ABOUT = """\
Durable conversations with agents. `/v1` is what this page describes; `/eve/v1` has the same routes by the letter of the protocol of eve
clients. Which credentials are taken, and whether any is needed, is set where the server runs. Roles of a security requirement are the
scopes that a service needs (one of them, where there are two). Unknown query parameters and unknown fields are ignored."""

PARAMETERS: Mapping[str, Schema] = {
    "session": {
        "schema": ANY_TEXT,
        "description": "The `sessionId` of a create.",
        "example": "ses_01JQ2M8V6W3C4D5E6F7G8H9J0KA7",
    },
    "token": {
        "schema": ANY_TEXT,
        "description": "The token of a link: it lets its holder in without any other credential.",
    },
    "channel": {
        "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,47}$"},
        "description": "The name of a channel.",
    },
    "address": {
        "schema": {"type": "string", "minLength": 1, "maxLength": 1024},
        "description": "The channel's name of a conversation, percent-encoded: `%2F` is a slash in it. At most 1,024 bytes before that.",
    },
}
INDEX = {"type": "integer", "minimum": -(10**15) + 1, "maximum": 10**15 - 1}
SWITCH = {"enum": ["0", "1", "false", "true"]}
OF_A_STREAM: Sequence[Schema] = (
    {
        "name": "startIndex",
        "in": "query",
        "schema": INDEX,
        "description": "Begin with this event; a negative one counts from the end.",
    },
    {"name": "follow", "in": "query", "schema": SWITCH, "description": "`false`: end after what is there now."},
    {
        "name": "includeTailIndex",
        "in": "query",
        "schema": SWITCH,
        "description": "Say the index of the last event in a header.",
    },
    {
        "name": "streamControlVersion",
        "in": "query",
        "schema": {"const": "1"},
        "description": "End after 60 s, with a line that says so.",
    },
    {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": ANY_TEXT,
        "description": "`<session>:<index>`: go on behind that event. For server-sent events.",
    },
)
REFUSALS: Mapping[int, str] = {
    400: "Something is wrong with the request.",
    401: "No credential, or one that is not known.",
    403: "This caller lacks a scope.",
    404: "There is no such thing here.",
    409: "It cannot be done as things are.",
    413: "Too large.",
    415: "Files of this type are not taken.",
    429: "Too many messages wait for this session.",
    500: "A fault of the server. Nothing of the inside is told.",
    503: "It cannot be done now. Send the same again.",
}
HEADERS: Mapping[int, tuple[str, str]] = {
    401: ("www-authenticate", "Which credentials are taken."),
    429: ("retry-after", "In how many seconds to try again."),
    503: ("retry-after", "In how many seconds to try again."),
}
BODY, CONFLICT, FILES = (400, 413), (409,), (415, 429)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route. `on`: the prefixes that have it. Without `scopes` it needs no credential. `answers` names a shape for each
    status; `refuses` has the statuses beside those that every operation may answer."""

    id: str
    method: str
    path: str
    says: str
    tag: str
    answers: Mapping[int, Schema]
    scopes: tuple[str, ...] = ()
    on: tuple[str, ...] = (EVE, OURS)
    body: Schema | None = None
    required: bool = False
    parameters: Sequence[Schema] = ()
    refuses: tuple[int, ...] = ()
    leads_to: Mapping[str, Schema] = field(default_factory=dict)


def content(name: str, kind: str = JSON) -> Schema:
    """A body of that shape."""
    return {"content": {kind: {"schema": shape(name)}}}


LINES: Schema = {
    "description": "Its events from that index on, one `Event` a line, or as server-sent events where `Accept` asks for them.",
    "content": {"application/x-ndjson": {"schema": ANY_TEXT}, "text/event-stream": {"schema": ANY_TEXT}},
    "headers": {
        "x-eve-stream-version": {"schema": ANY_TEXT},
        "x-eve-stream-tail-index": {
            "schema": ANY_TEXT,
            "description": "The index of the last event, `-1` for none, if it was asked for.",
        },
    },
}
TO_THE_SESSION: Mapping[str, Schema] = {
    "follow": {"operationId": "followSession", "parameters": {"session": "$response.body#/sessionId"}},
    "send": {"operationId": "send", "parameters": {"session": "$response.body#/sessionId"}},
}
OF_ANY_KIND: Schema = {"content": {"*/*": {"schema": {}}}}
WEBHOOK: Schema = {"content": {**content("Webhook")["content"], **OF_ANY_KIND["content"]}}
CREATE = Operation(
    "createSession", "POST", "/session", "Begin a session, with its first message if there is one.", "Sessions",
    {202: content("Created")}, ("send",), body=content("Create"), refuses=(*BODY, *CONFLICT, *FILES), leads_to=TO_THE_SESSION,
)  # fmt: skip
ONE, PLACE = "/session/{session}", "/channels/{channel}/{address}"
NO_TURN, NO_SESSION = content("NoActiveTurn"), content("NoActiveSession")
CONTROLS: Mapping[str, tuple[str, str, Mapping[int, Schema]]] = {
    "cancel": ("Stop the open turn.", "Cancel", {202: content("Told"), 200: NO_TURN}),
    "clear": (
        "Let the model forget what was said, when no turn is open.",
        "Nothing",
        {202: content("Told"), 200: NO_SESSION},
    ),
    "compact": (
        "Have what was said summed up, when no turn is open.",
        "Nothing",
        {202: content("Told"), 200: NO_SESSION},
    ),
    "reset": ("End it for good. Its stream can still be read.", "Reset", {200: content("Reset200")}),
}
OPERATIONS: tuple[Operation, ...] = (
    Operation("health", "GET", "/health", "Whether this process lives.", "Process", {200: content("EveHealth")}, on=(EVE,)),
    Operation("health", "GET", "/health", "Whether this process and its journal work.", "Process", {200: content("Health")}, on=(OURS,)),
    Operation("openapi", "GET", "/openapi.json", "This document.", "Process", {200: content("Nothing")}, on=(OURS,)),
    Operation("info", "GET", "/info", "What the App is: its first agent and all tools.", "Process", {200: content("Info")}, ("read",)),
    replace(CREATE, on=(OURS,)),
    replace(CREATE, on=(EVE,), body=content("EveCreate"), leads_to={}),
    Operation(
        "send", "POST", ONE, "Send a message, or answer what was asked.", "Sessions",
        {202: content("Accepted")}, ("send", "answer"), body=content("Send"), required=True, refuses=(*BODY, 404, *CONFLICT, *FILES),
    ),
    Operation(
        "followSession", "GET", f"{ONE}/stream", "Its events, and those that come.", "Sessions",
        {200: LINES, 204: {"description": "It has ended, and all of it was seen (server-sent events that go on)."}},
        ("read",), parameters=OF_A_STREAM, refuses=(400, 404),
    ),
    *(
        Operation(
            f"{name}Session", "POST", f"{ONE}/{name}", says, "Controls", answers, ("control",),
            on=(EVE,) if name == "cancel" else (EVE, OURS), body=content(body), refuses=(*BODY, 404),
        )
        for name, (says, body, answers) in CONTROLS.items()
    ),
    Operation(
        "cancelSession", "POST", f"{ONE}/cancel", "Stop the open turn.", "Controls",
        {202: content("Cancelling"), 200: NO_TURN}, ("control",), body=content("Cancel"), refuses=(*BODY, 404), on=(OURS,),
    ),
    Operation("getSession", "GET", ONE, "It as it is now.", "Sessions", {200: content("Session")}, ("read",), (OURS,), refuses=(404,)),
    Operation(
        "eraseSession", "DELETE", ONE, "Leave nothing of it.", "Controls",
        {200: content("Erased")}, ("erase",), (OURS,), refuses=(404,),
    ),
    Operation(
        "listSessions", "GET", "/sessions", "The sessions used last; of a user, those they take part in.", "Sessions",
        {200: content("Sessions")}, ("read",), (OURS,), refuses=(400,),
        parameters=({"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 10**15 - 1, "default": 100},
                     "description": "How many; 1,000 at most."},),
    ),
    Operation(
        "listRequests", "GET", f"{ONE}/requests", "What it has asked people, and who has answered.", "Requests",
        {200: content("Requests")}, ("read",), (OURS,), refuses=(404,),
        parameters=({"name": "open", "in": "query", "schema": SWITCH, "description": "`1`: those that wait for an answer."},),
    ),
    Operation("readLink", "GET", "/requests/{token}", "What a link asks.", "Requests", {200: content("Asked")}, on=(OURS,), refuses=(404,)),
    Operation(
        "answerLink", "POST", "/requests/{token}", "Answer through a link, once.", "Requests", {202: content("Accepted")}, on=(OURS,),
        body={"content": {JSON: {"schema": shape("LinkAnswer")}, "application/x-www-form-urlencoded": {"schema": shape("LinkAnswer")}}},
        required=True, refuses=(*BODY, 404, *CONFLICT, 429),
    ),
    Operation("resolveAddress", "GET", PLACE, "The session that has this address.", "Channels",
              {200: content("Resolved")}, ("read",), (OURS,), refuses=(400, 404)),
    Operation(
        "sendToAddress", "POST", PLACE, "Send a message to whoever has this address, be it a new session; or answer.", "Channels",
        {202: content("Accepted")}, ("send", "answer"), (OURS,), body=content("Send"), required=True,
        refuses=(*BODY, 404, *CONFLICT, *FILES),
    ),
    *(
        Operation(f"{name}Address", "POST", f"{PLACE}/{name}", says, "Channels", answers, ("control",), (OURS,), body=content(body),
                  refuses=(*BODY, 404))
        for name, (says, body, answers) in CONTROLS.items()
    ),
    *(
        Operation(
            f"{name}Webhook", method, "/webhooks/{channel}", says, "Channels",
            {200: {"description": "It concerns nobody, or what the channel replies.", **OF_ANY_KIND}, 202: content("Accepted")},
            on=(OURS,), body=WEBHOOK if method == "POST" else None, refuses=(*BODY, 401, 404, *CONFLICT, *FILES),
        )
        for name, method, says in (
            ("take", "POST", "A request that the channel itself verifies. Which headers and body it wants is the channel's."),
            ("verify", "GET", "As POST: some senders verify a URL this way."),
        )
    ),
)  # fmt: skip


def document(prefix: str = "") -> dict[str, Any]:
    """The document; `prefix` is where the routes are mounted."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        for where in one.on:
            paths.setdefault(where + one.path, {})[one.method.lower()] = _operation(one, where)
    return {
        "openapi": "3.1.0",
        "info": {"title": "celery-orchestrator", "version": _version(), "description": ABOUT.replace("\n", " "),
                 "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": prefix or "/"}],
        "tags": [{"name": name} for name in dict.fromkeys([*(one.tag for one in OPERATIONS), "eve"])],
        "paths": paths,
        "components": {
            "schemas": dict(SHAPES),
            "parameters": {name: {"name": name, "in": "path", "required": True, **about} for name, about in PARAMETERS.items()},
            "responses": {f"Refused{status}": _refusal(status) for status in REFUSALS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key of `orchestrator keys new`, or a signed token."},
                "basic": {"type": "http", "scheme": "basic", "description": "Where the App has users with passwords."},
            },
        },
    }  # fmt: skip


def mount_openapi(blueprint: Blueprint) -> None:
    """Serve it. No credential is needed: it says what anybody can read in our documentation, and nothing of the App."""

    def view() -> Response:
        return reply(document(request.script_root + request.path.removesuffix(PATH)))

    blueprint.add_url_rule(PATH, "v1_openapi", view, methods=["GET"])


def _operation(one: Operation, prefix: str) -> dict[str, Any]:
    names = [part[1:-1] for part in one.path.split("/") if part.startswith("{")]
    made: dict[str, Any] = {
        "operationId": one.id if prefix == OURS else f"eve{one.id[0].upper()}{one.id[1:]}",
        "summary": one.says,
        "tags": [one.tag if prefix == OURS else "eve"],
        "responses": {str(status): about for status, about in sorted(_answers(one))},
        "security": [{"bearer": [scope]} for scope in one.scopes] + [{"basic": []}] if one.scopes else [],
    }
    if names or one.parameters:
        made["parameters"] = [*({"$ref": f"#/components/parameters/{name}"} for name in names), *one.parameters]
    if one.body is not None:
        made["requestBody"] = {"required": one.required, **one.body}
    return made


def _answers(one: Operation) -> Iterator[tuple[int, Schema]]:
    for status, about in one.answers.items():
        links = {"links": one.leads_to} if one.leads_to else {}
        headers = {"headers": {"x-eve-session-id": {"schema": ANY_TEXT}}} if status == 202 else {}
        yield status, {"description": "It is stored." if status == 202 else "OK.", **headers, **about, **links}
    for status in sorted({*one.refuses, *((401, 403) if one.scopes else ()), 500, 503}):
        yield status, {"$ref": f"#/components/responses/Refused{status}"}


def _refusal(status: int) -> Schema:
    codes = sorted({kind.code for kind in _every_error() if kind.status == status})
    told = f"{REFUSALS[status]} `code`: {', '.join(codes)}." if codes and status != 500 else REFUSALS[status]
    made = {"description": told, **content("Refusal")}
    if status in HEADERS:
        name, says = HEADERS[status]
        made["headers"] = {name: {"schema": ANY_TEXT, "description": says}}
    return made


def _every_error() -> Iterator[type[errors.OrchestratorError]]:
    yield CursorOfOtherSession
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.OrchestratorError):
            yield kind


def _version() -> str:
    try:
        return version("celery-orchestrator")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0"
