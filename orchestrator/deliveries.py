"""What callers say, as the deliveries that a journal stores: messages, answers, cancels and controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import orchestrator.ids as ids
from orchestrator import asides
from orchestrator.asides import Context
from orchestrator.core import codec
from orchestrator.core.delivery import Answered, Body, Delivery, Envelope, Part, Response
from orchestrator.core.names import DeliveryId, Millis
from orchestrator.core.snapshot import MOST_OF_A_PRINCIPAL, Principal
from orchestrator.errors import BadRequest, BodyTooLarge, DeliveryKeyReused

MOST_WORDS = 100
"""Bytes of a message that may be the words of an option."""


@contextmanager
def storable() -> Iterator[None]:
    """Turn what no journal can hold into what the sender can do about it."""
    try:
        yield
    except codec.Unstorable as broken:
        raise BodyTooLarge(limit_bytes=codec.MAX_BYTES) from broken
    except UnicodeEncodeError as broken:
        raise BadRequest(problem="The text holds half a character (a lone surrogate). Send whole ones.") from broken


@contextmanager
def under(key: str) -> Iterator[None]:
    """Name the key as its caller does, and not what the journal made of it."""
    try:
        yield
    except DeliveryKeyReused as reused:
        raise DeliveryKeyReused(key=key or reused.facts["key"]) from reused


def with_asides(message: Body, context: Context | None, output: Mapping[str, object] | None) -> Body:
    """A message with what comes beside it. Raises `BadRequest`."""
    if context is not None:
        message = replace(message, context=asides.texts(context))
    return replace(message, output=asides.schema(output)) if output is not None else message


def message(
    at: Millis, body: Body, by: Principal | None, policy: str, name: DeliveryId | None, trace: str = ""
) -> Delivery:
    """A message, perhaps in a trace. Without a name it gets one."""
    name = name or ids.new_delivery(at)
    body, blobs = _without_bytes(body, name)
    files = sum(part.file is not None for part in body.parts)
    size = sum(len(part.text.encode("utf-8", "replace")) for part in body.parts)
    words = body.text.strip().casefold() if len(body.parts) == 1 and not files and size <= MOST_WORDS else ""
    size += sum(len(text.encode()) for text in (*body.context, body.output))
    envelope = Envelope("message", by, policy, trace=trace, at=at, size=size, words=words, files=files)
    return Delivery(name, envelope, body, blobs)


def _without_bytes(body: Body, delivery: DeliveryId) -> tuple[Body, dict[str, bytes]]:
    """A message as it is stored, and the bytes of its files by the names it has for them. The same message has the same names."""
    blobs: dict[str, bytes] = {}
    parts: list[Part] = []
    for place, part in enumerate(body.parts):
        if (file := part.file) is not None:
            name = ids.digest(b"%b/%d/%b" % (delivery.encode(), place, file.url.encode() or file.data))
            if not file.url:
                blobs[name] = file.data
            part = replace(part, file=replace(file, blob=name, data=b""))
        parts.append(part)
    return replace(body, parts=tuple(parts)), blobs


def answers(at: Millis, responses: Sequence[Response], by: Principal | None, name: DeliveryId | None) -> Delivery:
    """Answers to requests; each text is a part of the body."""
    answered = tuple(Answered(one.request, one.option, bool(one.text)) for one in responses)
    parts = tuple(Part("text", one.text, extra={"request": one.request}) for one in responses if one.text)
    return Delivery(name or ids.new_delivery(at), Envelope("answers", by, at=at, answers=answered), Body(parts))


def order(at: Millis, kind: str, guard: str, by: Principal | None, name: DeliveryId | None) -> Delivery:
    """A cancel (`guard` is the turn it is meant for), a control, or a report of how much of the stream was seen."""
    return Delivery(name or ids.new_delivery(at), Envelope(kind, by, guard=guard, at=at))


def digest(*said: Body | Response) -> str:
    """What is compared when something comes again under the same key."""
    with storable():
        return ids.digest(b"".join(map(codec.pack, said)))


def digest_of(delivery: Delivery) -> str:
    """The same of a message: of what is stored, where the names of its files say which they are."""
    return digest(delivery.body) if delivery.body else ""


def of_channel(body: Body, channel: str) -> Body:
    """A message whose files this channel may fetch itself."""
    parts = (replace(part, file=replace(part.file, channel=channel)) if part.file else part for part in body.parts)
    return replace(body, parts=tuple(parts))


def participant(by: Principal | None) -> str:
    """What somebody is remembered by. Raises `BadRequest` where more is said of them than a snapshot can hold."""
    if by is None:
        return ""
    if len(codec.pack(by)) > MOST_OF_A_PRINCIPAL:
        problem = f"More is said of the caller than fits: {MOST_OF_A_PRINCIPAL} bytes of id and attributes."
        raise BadRequest(problem=f"{problem} Put less into the credential.")
    return ids.principal_key(by)


def who_joins(delivery: Delivery) -> str:
    """Who takes part in a session from this delivery on: whoever says something to it. Orders and answers make nobody a participant."""
    who = participant(delivery.envelope.principal)
    return who if delivery.envelope.kind == "message" else ""
