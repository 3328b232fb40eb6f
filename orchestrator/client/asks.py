"""Requests as values: what is asked, whether it may be asked again, and what its answer means. Nothing is sent here."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

from orchestrator.client.errors import Refused, refusal
from orchestrator.client.shapes import Misfit, read
from orchestrator.client.values import Answer, Health, RequestRecord, SessionRecord, SessionSeen

T = TypeVar("T")
Json = Mapping[str, Any]
Message = str | Sequence[Mapping[str, Any]]
"""A text, or a list of parts: {"type": "text", "text": "…"} and {"type": "file", "mediaType": "image/png", "filename": "a.png", "data": …},
where `data` is bytes, base64 or a URL."""


class Beside(TypedDict, total=False):
    """What may go with a message, for its turn only.

    context:  what the model is told beside it: a text, a list of texts, or an object
    output:   the JSON Schema of the result that the turn must end with
    policy:   what becomes of it while a turn runs: steer joins that turn, queue waits for its end
    key:      the caller's own name for this delivery; sent again with it, it is the same message. Made up if it is not given
    """

    context: str | Sequence[str] | Mapping[str, Any]
    output: Mapping[str, Any]
    policy: Literal["steer", "queue"]
    key: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Json:
        """Its JSON object; an empty one if there is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """A request. `again`: it may be repeated when nobody knows whether it came in. `retry`: it is worth repeating at all."""

    method: str
    path: str
    understand: Callable[[Reply], T]
    body: Json | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    again: bool = True
    retry: bool = True

    @property
    def content(self) -> bytes | None:
        """The body as it is sent."""
        return None if self.body is None else json.dumps(self.body).encode()

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that is stored: in which session, and under which id."""

    session: str
    delivery: str


def of_session(session: str) -> str:
    """The path of a session."""
    return f"/session/{_quoted(session)}"


def of_address(channel: str, address: str) -> str:
    """The path of a conversation."""
    return f"/channels/{_quoted(channel)}/{_quoted(address)}"


def _quoted(text: str) -> str:
    # A segment of dots alone would be taken for a way up.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


# Messages and answers -----------------------------------------------------------------------------------------------------


def create(
    message: Message | None, beside: Beside, *, agent: str, may_ask: bool, operation: str, again: bool = True
) -> Ask[str]:
    """A new session, with its first message if there is one. Understood as its id."""
    body = {
        **({} if message is None else _message(message, beside)),
        **({"agent": agent} if agent else {}),
        **({"operationId": operation} if operation else {}),
        **({} if may_ask else {"capabilities": {"requestInput": False}}),
    }
    return Ask("POST", "/session", _session, body, again=again)


def send(place: str, message: Message, beside: Beside, *, key: str) -> Ask[Sent]:
    """A message for the session or the conversation at `place`."""
    return Ask("POST", place, _sent, {**_message(message, beside), "deliveryKey": key})


def answer(place: str, answers: Sequence[Answer], *, key: str) -> Ask[Sent]:
    """Answers to requests."""
    responses = [
        {
            "requestId": one.request_id,
            **({"optionId": one.option} if one.option else {}),
            **({"text": one.text} if one.text else {}),
        }
        for one in answers
    ]
    return Ask("POST", place, _sent, {"inputResponses": responses, "deliveryKey": key})


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    data = part.get("data")
    return {**part, "data": b64encode(data).decode()} if isinstance(data, bytes) else part


def _message(message: Message, beside: Beside) -> dict[str, Any]:
    body: dict[str, Any] = {"message": message if isinstance(message, str) else list(map(_part, message))}
    for name, key in (("context", "clientContext"), ("output", "outputSchema"), ("policy", "turnPolicy")):
        if name in beside:
            body[key] = beside[name]  # type: ignore[literal-required]  # the names are above
    return body


# Controls -----------------------------------------------------------------------------------------------------------------


def cancel(place: str, turn: str = "") -> Ask[str]:
    """A cancel of one turn, or of whichever is open. Understood as what comes of it.

    Without a turn it is not repeated: the second one could stop the next turn.
    """
    return Ask("POST", f"{place}/cancel", _cancelled, {"turnId": turn} if turn else {}, again=bool(turn))


def clear(place: str) -> Ask[bool]:
    """The model forgets what was said. Not repeated: somebody may have said something in between. True: there was a session."""
    return Ask("POST", f"{place}/clear", _told, {}, again=False)


def compact(place: str) -> Ask[bool]:
    """What was said is summed up. True: there was a session."""
    return Ask("POST", f"{place}/compact", _told, {})


def reset(place: str, reason: str = "") -> Ask[bool]:
    """The session ends. By address it is not repeated: the next session of the address may have begun. True: there was one."""
    by_id = place.startswith("/session/")
    return Ask("POST", f"{place}/reset", _told, {"reason": reason} if reason else {}, again=by_id)


def erase(place: str) -> Ask[None]:
    """Nothing is left of a session."""
    return Ask("DELETE", place, _nothing)


# Reading ------------------------------------------------------------------------------------------------------------------


def show(place: str) -> Ask[SessionRecord]:
    """A session as it is now."""
    return Ask("GET", place, partial(_read, SessionRecord))


def requests(place: str, *, open_only: bool) -> Ask[tuple[RequestRecord, ...]]:
    """What a session has asked people, oldest first."""

    def understand(reply: Reply) -> tuple[RequestRecord, ...]:
        return tuple(_shaped(RequestRecord, reply, one) for one in _accepted(reply).get("requests", ()))

    return Ask("GET", f"{place}/requests", understand, query={"open": "1"} if open_only else {})


def sessions(limit: int) -> Ask[tuple[SessionSeen, ...]]:
    """The sessions used last."""

    def understand(reply: Reply) -> tuple[SessionSeen, ...]:
        return tuple(_shaped(SessionSeen, reply, one) for one in _accepted(reply).get("sessions", ()))

    return Ask("GET", "/sessions", understand, query={"limit": str(limit)})


def resolve(place: str) -> Ask[str]:
    """The session that an address leads to."""
    return Ask("GET", place, _session)


def info() -> Ask[Json]:
    """What the server offers: its agent and tools."""
    return Ask("GET", "/info", _accepted)


def health() -> Ask[Health]:
    """Whether the server can do its work. Asked once: a probe wants to know how it is now."""

    def understand(reply: Reply) -> Health:
        said = reply.json()
        if reply.status not in (200, 503) or "journal" not in said:
            raise refusal(reply.status, said)
        return Health(reply.status == 200, str(said["journal"]), said)

    return Ask("GET", "/health", understand, retry=False)


# Answers ------------------------------------------------------------------------------------------------------------------


def _accepted(reply: Reply) -> Json:
    body = reply.json()
    if not 200 <= reply.status < 300 or not body:
        raise refusal(reply.status, body)
    return body


def _session(reply: Reply) -> str:
    return _text(reply, "sessionId")


def _sent(reply: Reply) -> Sent:
    return Sent(_text(reply, "sessionId"), _text(reply, "deliveryId"))


def _cancelled(reply: Reply) -> str:
    body = _accepted(reply)
    return str(body.get("outcome", "nothing_runs" if body.get("status") == "no_active_turn" else "cancelling"))


def _told(reply: Reply) -> bool:
    return _accepted(reply).get("status") != "no_active_session"


def _nothing(reply: Reply) -> None:
    _accepted(reply)


def _read(kind: type[T], reply: Reply) -> T:
    return _shaped(kind, reply, _accepted(reply))


def _shaped(kind: type[T], reply: Reply, given: object) -> T:
    try:
        return read(kind, given)
    except Misfit as misfit:
        raise _strange(reply, str(misfit)) from None


def _text(reply: Reply, name: str) -> str:
    found = _accepted(reply).get(name)
    if not isinstance(found, str) or not found:
        raise _strange(reply, f"it has no {name}")
    return found


def _strange(reply: Reply, problem: str) -> Refused:
    told = f"The answer is none of this API: {problem}. Is the address of the server right?"
    return Refused(status=reply.status, code="", problem=told, body=reply.json())
