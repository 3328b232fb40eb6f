"""Notes: what is kept of each request, signed by who decided it: what was asked, of which exact call, who answered, when and what.

A note is JSON under the request's id, beside the session, for as long as the session is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from orchestrator.core.delivery import Body
from orchestrator.core.event import Outcome, encode, storable
from orchestrator.core.names import RequestId
from orchestrator.core.snapshot import Principal, Request
from orchestrator.ids import digest

Note = Mapping[str, Any]
DENIED = "TOOL_EXECUTION_DENIED"


def pack_note(note: Note) -> bytes:
    """A note as it is stored."""
    return storable(encode(note)).encode()


def unpack_note(packed: bytes) -> Note:
    """A note from what is stored."""
    return cast(Note, json.loads(packed))


def digest_of(given: object) -> str:
    """What a call's arguments are recognised by: 16 hex characters, the same however they are written."""
    return digest(json.dumps(given, sort_keys=True, default=repr).encode(errors="replace"))


def who(by: Principal | None) -> dict[str, str] | None:
    """Somebody, as a note names them."""
    return {"authenticator": by.authenticator, "issuer": by.issuer, "type": by.type, "id": by.id} if by else None


def answer_texts(body: Body | None) -> dict[RequestId, str]:
    """The texts of a delivery of answers: each part says which request it is for."""
    if body is None:
        return {}
    return {RequestId(str(part.extra["request"])): part.text for part in body.parts if "request" in part.extra}


def wire(note: Note) -> dict[str, object]:
    """A request as people see it, on the stream and elsewhere."""
    shown = ("requestId", "kind", "prompt", "action", "display", "allowFreeform", "options")
    return {name: note[name] for name in shown if name in note}


def refusal(request: Request, text: str) -> Outcome:
    """The result of a call that did not run, or that a person has answered."""
    if request.kind == "question":
        return _answer(request, text)
    said = {
        "denied": "A person refused this call.",
        "ignored": "This call was not run: the person said something else instead of approving it.",
        "invalid": "This call was not run: the answer to its request was not understood.",
        "expired": "This call was not run: nobody approved it in time.",
    }.get(request.state, "This call was not run: its request was withdrawn.")
    message = f"{said} They said: {text}" if text else said
    approval = {"requestId": request.id, "status": request.state}
    return Outcome(
        "rejected",
        {"code": DENIED, "message": message, "approval": approval},
        {"code": DENIED, "message": message},
    )


def _answer(request: Request, text: str) -> Outcome:
    if request.state != "answered":
        return Outcome("completed", {"status": "interrupted"})
    label = next((option.label for option in request.options if option.id == request.option), "")
    said = {"status": "answered", "answer": label or text}
    return Outcome("completed", {**said, "optionId": request.option} if request.option else said)
