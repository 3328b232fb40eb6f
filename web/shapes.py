"""What bodies look like, as JSON Schemas.

They tell readers and generators of code what `schema` takes and what the views answer. Nothing is checked by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from orchestrator.core.snapshot import RequestKind, RequestState
from orchestrator.core.status import Status
from orchestrator.engine import CancelOutcome
from orchestrator.parts import LONGEST_NAME, MOST_FILES
from web.schema import LONGEST_KEY, LONGEST_TEXT_BYTES, MOST_RESPONSES

Schema = Mapping[str, Any]
TRUE: Schema = {"const": True}
TEXT: Schema = {"type": "string", "minLength": 1}
ANY_TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
KEY: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}
SESSION: Schema = {"type": "string", "pattern": "^ses_[0-9A-HJKMNP-TV-Z]{28}$"}
DELIVERY: Schema = {"type": "string", "pattern": "^dlv_[0-9A-HJKMNP-TV-Z]{26}$"}
OPTION: Schema = {
    "type": "string",
    "maxLength": LONGEST_TEXT_BYTES,
    "description": "One of the options that were shown.",
}
SAID: Schema = {"type": "string", "maxLength": LONGEST_TEXT_BYTES, "description": "What the person says."}


def shape(name: str) -> Schema:
    """A reference to one of `SHAPES`."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, **more: Any) -> Schema:
    """An object."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": [*required], **more}


def or_null(schema: Schema) -> Schema:
    """That, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def _accepted(status: str = "accepted", **more: Schema) -> Schema:
    return record({"ok": TRUE, "sessionId": SESSION, "status": {"const": status}, **more})


NOTHING_ELSE: Mapping[str, Any] = {"additionalProperties": False}
BESIDE_A_MESSAGE: Mapping[str, Schema] = {
    "turnPolicy": {
        "enum": ["steer", "queue"],
        "description": "What becomes of the message while a turn runs: it joins that turn, or waits for its end.",
    },
    "clientContext": {
        "anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "object"}],
        "description": "Told to the model in this turn only.",
    },
    "outputSchema": {"type": "object", "description": "A JSON Schema that the result of the turn must fit."},
}
MESSAGE: Mapping[str, Schema] = {"message": shape("Message"), **BESIDE_A_MESSAGE}
CREATE: Mapping[str, Schema] = {
    **MESSAGE,
    "operationId": {
        **KEY,
        "description": "The same caller with the same one gets the same session. Not for callers without a name.",
    },
    "capabilities": record(
        {}, {"requestInput": {"type": "boolean"}}, description="`requestInput: false`: nobody is asked."
    ),
}
NEEDS_A_MESSAGE: Mapping[str, Any] = {"dependentRequired": {"clientContext": ["message"], "outputSchema": ["message"]}}
DELIVERY_KEY: Schema = {**KEY, "description": "The same caller with the same one and the same message sends it once."}
REQUEST: Mapping[str, Schema] = {
    "requestId": TEXT,
    "kind": {"enum": [*get_args(RequestKind)]},
    "prompt": ANY_TEXT,
    "action": {"type": "object", "description": "The call, as it would run."},
}
REQUEST_MORE: Mapping[str, Schema] = {
    "display": ANY_TEXT,
    "allowFreeform": {"type": "boolean"},
    "options": {"type": "array", "items": record({"id": ANY_TEXT, "label": ANY_TEXT})},
}
STATE: Schema = {"enum": [*get_args(RequestState)]}

SHAPES: Mapping[str, Schema] = {
    "Message": {
        "description": "A text, or a list of texts and files.",
        "oneOf": [
            {**TEXT, "examples": ["My book never came: B-1006."]},
            {
                "type": "array",
                "minItems": 1,
                "items": {"oneOf": [shape("TextPart"), shape("FilePart")]},
                "description": f"With at most {MOST_FILES} files.",
            },
        ],
    },
    "TextPart": record({"type": {"const": "text"}, "text": TEXT}),
    "FilePart": record(
        {
            "type": {"const": "file"},
            "mediaType": {"type": "string", "examples": ["application/pdf"]},
            "data": {"type": "string", "description": "Base64, a data: URL in base64, or an https URL."},
        },
        {"filename": {"type": "string", "maxLength": LONGEST_NAME}},
    ),
    "Create": record(
        {},
        {**CREATE, "agent": {**TEXT, "description": "One of the App's agents; the first without it."}},
        **NEEDS_A_MESSAGE,
    ),
    "EveCreate": record({}, CREATE, **NEEDS_A_MESSAGE),
    "Send": {"oneOf": [shape("SendMessage"), shape("SendAnswers")]},
    "SendMessage": record({"message": shape("Message")}, {**BESIDE_A_MESSAGE, "deliveryKey": DELIVERY_KEY}),
    "SendAnswers": record(
        {
            "inputResponses": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_RESPONSES,
                "items": record({"requestId": TEXT}, {"optionId": OPTION, "text": SAID}, **NOTHING_ELSE),
            }
        },
        {"deliveryKey": DELIVERY_KEY},
    ),
    "LinkAnswer": record(
        {}, {"optionId": OPTION, "text": SAID}, anyOf=[{"required": ["optionId"]}, {"required": ["text"]}]
    ),
    "Webhook": record(
        {"address": {**TEXT, "examples": ["ticket-1007"]}, "message": shape("Message")},
        {"agent": TEXT, "turnPolicy": BESIDE_A_MESSAGE["turnPolicy"]},
        description="What a channel takes that does not say otherwise.",
    ),
    "Cancel": record({}, {"turnId": {**TEXT, "examples": ["turn_3"]}}),
    "Reset": record({}, {"reason": TEXT}),
    "Nothing": {"type": "object"},
    "Created": _accepted(),
    "Accepted": _accepted(deliveryId=DELIVERY),
    "Told": record({"ok": TRUE, "sessionId": SESSION, "status": {"const": "accepted"}}, **NOTHING_ELSE),
    "Cancelling": _accepted(outcome={"enum": [*get_args(CancelOutcome)]}),
    "NoActiveTurn": record({"ok": TRUE, "status": {"const": "no_active_turn"}}, {"outcome": {"const": "nothing_runs"}}),
    "NoActiveSession": record({"ok": TRUE, "status": {"const": "no_active_session"}}),
    "Reset200": {
        "oneOf": [
            record({"ok": TRUE, "previousSessionId": SESSION, "status": {"const": "reset"}}),
            shape("NoActiveSession"),
        ]
    },
    "Erased": _accepted("erased"),
    "EveHealth": record({"ok": TRUE, "status": {"const": "ready"}, "workflowId": TEXT}, **NOTHING_ELSE),
    "Health": record(
        {
            "ok": TRUE,
            "status": {"const": "ready"},
            "workflowId": TEXT,
            "journal": {"const": "ok"},
            "protocol": COUNT,
            "durability": TEXT,
            "deployment": TEXT,
            "streams": record({"open": COUNT, "limit": COUNT}),
            "newSessionsGoTo": TEXT,
            "deployments": {"type": "object", "additionalProperties": record({"rank": COUNT})},
        }
    ),
    "Info": record({"kind": {"const": "eve-agent-info"}, "version": COUNT, "agent": {"type": "object"}}),
    "Session": record(
        {
            "ok": TRUE,
            "sessionId": SESSION,
            "agent": TEXT,
            "status": {"enum": [*get_args(Status)]},
            "turnId": or_null(TEXT),
            "events": COUNT,
            "waiting": COUNT,
            "attempt": COUNT,
            "epoch": COUNT,
            "createdMs": COUNT,
            "deployment": TEXT,
        }
    ),
    "Sessions": record(
        {"ok": TRUE, "sessions": {"type": "array", "items": record({"sessionId": SESSION, "lastActivityMs": COUNT})}}
    ),
    "Resolved": record({"ok": TRUE, "sessionId": SESSION}),
    "Request": record(REQUEST, REQUEST_MORE),
    "RequestRecord": record(
        {
            **REQUEST,
            "turnId": TEXT,
            "digest": TEXT,
            "requester": or_null({"type": "object"}),
            "askedMs": COUNT,
            "expiresMs": or_null(COUNT),
            "state": STATE,
            "optionId": or_null(ANY_TEXT),
            "text": or_null(ANY_TEXT),
            "decidedBy": or_null({"type": "object"}),
            "endedMs": or_null(COUNT),
            "answers": {"type": "array", "items": record({"deliveryId": DELIVERY})},
        },
        {**REQUEST_MORE, "link": {**TEXT, "description": "While it is open, and for those who may answer."}},
    ),
    "Requests": record(
        {"ok": TRUE, "sessionId": SESSION, "requests": {"type": "array", "items": shape("RequestRecord")}}
    ),
    "Asked": record({"ok": TRUE, "request": shape("Request"), "state": STATE}),
    "Event": record(
        {
            "type": {**TEXT, "examples": ["turn.completed"]},
            "data": {"type": "object"},
            "meta": record(
                {"id": TEXT}, {"at": TEXT, "attempt": COUNT, "deliveryIds": {"type": "array", "items": TEXT}}
            ),
        },
        description="One line of a stream.",
    ),
    "Refusal": record(
        {"ok": {"const": False}, "error": {**TEXT, "description": "What to do, for people."}},
        {
            "code": {**TEXT, "description": "What it is, for programs."},
            "errorId": {**TEXT, "description": "Of a 500: under which the server's log has the rest."},
            "violations": {"type": "array", "items": {"type": "object"}, "description": "Files that are not taken."},
        },
    ),
}
