"""The door of a channel's own requests: verified first, read second, admitted once.

    wanted = read(channel, request)           the channel's own code, once
    admit(engine, channel, wanted)            may be repeated; a webhook that comes five times is one message

Whether a request is a repeat is decided by its id and its body, never by what it says of itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import orchestrator.ids as ids
from orchestrator.channels.channel import KINDS, Channel, Incoming, Reply, Request, address_of
from orchestrator.channels.desk import Desk
from orchestrator.core.delivery import Body
from orchestrator.core.names import DeliveryId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import BadRequest, SessionNotActive
from orchestrator.parts import body_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """A verified request, ready to be admitted."""

    incoming: Incoming
    body: Body | None
    principal: Principal
    request_key: str
    """The sender's id of the request, for the whole channel."""
    key: str
    """Under which it is admitted: that one, unless the channel says another."""
    identity: str
    digest: str
    """Of the request's body."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of it. Without a session there was none to control."""

    session: SessionId | None
    delivery: DeliveryId | None = None


def read(channel: Channel, request: Request) -> Wanted | Reply | None:
    """What a request wants. Raises what the channel's `verify` and `parse` raise; nothing was stored then."""
    channel.verify(request)
    found = channel.parse(request)
    if not isinstance(found, Incoming):
        return found
    if found.kind not in KINDS:
        raise BadRequest(problem=f"{found.kind!r} is no kind of request.")
    address_of(found.address)
    body = body_of(found.message) if found.kind == "message" else None
    return Wanted(
        incoming=found,
        body=body,
        principal=found.principal or Principal(authenticator="channel", type="service", id=channel.name),
        request_key=channel.key(request),
        key=found.delivery_key or channel.key(request),
        identity=channel.identity(found),
        digest=hashlib.sha256(request.body).hexdigest()[:32],
    )


def admit(desk: Desk, channel: Channel, wanted: Wanted, delivery: DeliveryId) -> Admitted:
    """Put it where it belongs. `delivery` names it where the sender did not: the same one for each try.

    Raises `DeliveryKeyReused`, `InboxFull`, `BadRequest`, `JournalFull`, `JournalAway`.
    """
    incoming = wanted.incoming
    if wanted.request_key:
        desk.reserve(channel.name, wanted.request_key, wanted.digest)
    if wanted.key:
        # Of the sender's own words, so that it is the same for each webhook with this id.
        delivery = ids.keyed_delivery(f"{channel.name}/{incoming.address}", wanted.principal, wanted.key)
    if wanted.body is None:
        return _control(desk, channel, wanted, delivery)
    arrived = desk.arrive(
        channel.name,
        incoming.address,
        wanted.body,
        principal=wanted.principal,
        agent=incoming.agent or None,
        policy=incoming.turn_policy,
        delivery=None if wanted.key else delivery,
        key=wanted.key,
        identity=wanted.identity,
        # A key that the channel has made is of the message; what else is in the request may differ.
        digest=wanted.digest if wanted.key == wanted.request_key else "",
    )
    return Admitted(arrived.session, arrived.delivery)


def _control(desk: Desk, channel: Channel, wanted: Wanted, delivery: DeliveryId) -> Admitted:
    incoming = wanted.incoming
    if incoming.kind == "message":
        raise BadRequest(problem="A message without a text.")
    try:
        arrived = desk.control_at(
            channel.name,
            incoming.address,
            incoming.kind,
            turn=incoming.turn,
            principal=wanted.principal,
            delivery=delivery,
        )
    except SessionNotActive:
        return Admitted(None)
    return Admitted(arrived.session)
