"""Channels over HTTP: messages and controls by address, for whoever has a key; webhooks, for whoever a channel itself lets in.

All of it is admission: the answer comes when the message is stored, whatever models do.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Literal
from urllib.parse import unquote

from flask import Blueprint, Response, request
from flask.blueprints import BlueprintSetupState
from werkzeug.exceptions import NotFound, RequestEntityTooLarge
from werkzeug.routing import BaseConverter

from orchestrator.channels import Channel, Reply, Request
from orchestrator.channels.channel import ORDERS, Headers, NotVerified, Order, address_of
from orchestrator.channels.door import Admitted, Wanted, admit, read
from orchestrator.core.names import SessionId
from orchestrator.engine import Engine
from orchestrator.errors import (
    AddressTaken,
    BadRequest,
    Forbidden,
    SessionNotActive,
    SessionNotFound,
    Unauthorized,
)
from orchestrator.tool import NAME
from web import access, schema
from web.access import caller
from web.front import Front, Names
from web.problems import reply

log = logging.getLogger(__name__)

CONVERTER = "orc_address"
PREFIX = "/v1/channels/"


class AddressConverter(BaseConverter):
    """The rest of a path, with whatever is in it. Servers decode `%2F` before a rule sees it, so an address may hold slashes."""

    regex = "(?s:.+?)"
    part_isolating = False
    weight = 200


def mount_channels(blueprint: Blueprint, front: Front) -> None:
    """Put the routes of channels on a blueprint, under `/v1`."""
    views = Views(front)

    def add(rule: str, name: str, view: Callable[..., Response], *methods: str) -> None:
        blueprint.add_url_rule(rule, f"v1_{name}", view, methods=methods)

    blueprint.record(_know_addresses)
    place = f"{PREFIX}<channel>/<{CONVERTER}:address>"
    add(place, "channel", views.resolve, "GET")
    add(place, "channel_send", partial(views.post, ""), "POST")
    for control in ORDERS:
        add(f"{place}/{control}", f"channel_{control}", partial(views.post, control), "POST")
    # Whose name ends in _webhook needs no key: the channel looks at the request itself.
    add("/v1/webhooks/<channel>", "channel_webhook", views.webhook, "GET", "POST")


def _know_addresses(state: BlueprintSetupState) -> None:
    state.app.url_map.converters[CONVERTER] = AddressConverter


class Views:
    """The views of channels."""

    def __init__(self, front: Front) -> None:
        self.front = front

    # By address -------------------------------------------------------------------------------------------------------

    def post(self, control: Order | Literal[""], channel: str, address: str) -> Response:
        """A message to a conversation, or a control of it."""
        channel, address, control = _place(channel, address, control)
        return self._control(channel, address, control) if control else self._send(channel, address)

    def resolve(self, channel: str, address: str) -> Response:
        """The live session that has this address."""
        access.check_scope(caller(), "read")
        channel, address, _ = _place(channel, address, "", post=False)
        session = self._reached(channel, address, "read")
        if session is None:
            raise SessionNotFound(session=f"{channel}/{address}")
        return reply({"ok": True, "sessionId": session}, 200, {"x-eve-session-id": session})

    def _send(self, channel: str, address: str) -> Response:
        """202: it is in the inbox of the session that has this address now, be it a new one."""
        wanted, who = schema.send(request), caller()
        if isinstance(wanted, schema.Answer):
            return self._answer(channel, address, wanted)
        access.check_scope(who, "send")
        only_own = False
        if who.is_user:
            # A name that anybody can guess is no invitation to a conversation of others.
            try:
                reached = self._reached(channel, address, "send")
            except SessionNotFound:
                raise AddressTaken(address=address, channel=channel) from None
            # Somebody else may begin it between this look and the message.
            only_own = reached is None or self.front.app.access is None
            known = self.front.app.channels_by_name.get(channel)
            if reached is None and known is not None and known.takes_webhooks:
                # Whoever begins it would read what others say there later.
                raise Forbidden(
                    problem=f"Conversations of {channel} begin with a webhook, users may join those they take part in."
                )
        names = Names()

        def call(engine: Engine) -> Admitted:
            found = engine.arrive(
                channel,
                address,
                wanted.message,
                principal=who.principal,
                policy=wanted.policy,
                context=wanted.context,
                output=wanted.output,
                delivery=names.delivery(engine),
                key=wanted.key,
                only_own=only_own,
            )
            return Admitted(found.session, found.delivery)

        return _accepted(self.front.write(call))

    def _answer(self, channel: str, address: str, wanted: schema.Answer) -> Response:
        """202: the answers are in the inbox of the session that has this address now."""
        access.check_scope(caller(), "answer")
        try:
            session = self._reached(channel, address, "answer")
        except SessionNotFound:
            session = None
        if session is None:
            raise SessionNotActive(session=f"{channel}/{address}")
        return _accepted(Admitted(session, self.front.answer(session, wanted, caller().principal)))

    def _control(self, channel: str, address: str, control: Order) -> Response:
        """202 (a reset: 200): the session was told. 200: there is none to tell."""
        turn = schema.cancel(request) if control == "cancel" else ""
        reason = schema.reset(request) if control == "reset" else ""
        if control in ("clear", "compact"):
            schema.nothing(request)
        who = caller()
        access.check_scope(who, "control")
        names = Names()
        # Of a user the session is looked up first, and that one is told, whoever has the address by then.
        told_by_id = self._reached_or_none(channel, address) if who.is_user else None

        def by_address(engine: Engine) -> Admitted:
            found = engine.control_at(
                channel,
                address,
                control,
                turn=turn,
                principal=who.principal,
                delivery=names.delivery(engine),
            )
            return Admitted(found.session, found.delivery)

        def by_id(engine: Engine) -> Admitted:
            if told_by_id is None:
                return Admitted(None)
            name = names.delivery(engine)
            if control == "cancel":
                engine.cancel(told_by_id, turn=turn, principal=who.principal, delivery=name)
            else:
                engine.control(told_by_id, control, principal=who.principal, delivery=name)
            return Admitted(told_by_id, name)

        try:
            told = self.front.write(by_id if who.is_user else by_address)
        except SessionNotActive:
            told = Admitted(None)
        if reason and told.session is not None:
            log.info("%s was reset: %r", told.session, reason)
        return _controlled(told, control)

    def _reached(self, channel: str, address: str, scope: str) -> SessionId | None:
        """The live session at an address, None if there is none. Raises `SessionNotFound` where this caller may not know of it."""
        session = self.front.ask(lambda engine: engine.resolve(channel, address))
        if session is not None:
            self.front.allow(caller(), session, scope)
        return session

    def _reached_or_none(self, channel: str, address: str) -> SessionId | None:
        try:
            return self._reached(channel, address, "control")
        except SessionNotFound:
            return None

    # Webhooks ---------------------------------------------------------------------------------------------------------

    def webhook(self, channel: str) -> Response:
        """Whatever a channel verifies itself: 202 for a message that is stored, 200 for what concerns nobody."""
        found = self.front.app.channels_by_name.get(channel)
        if found is None or not found.takes_webhooks:
            raise NotFound("There is no such channel, or it takes no webhooks.")
        wanted = _read(found)
        if wanted is None:
            return reply({"ok": True, "status": "ignored"})
        if isinstance(wanted, Reply):
            return _said(wanted)
        names = Names()
        told = self.front.write(lambda engine: admit(engine, found, wanted, names.delivery(engine)))
        kind = wanted.incoming.kind
        return _accepted(told) if kind == "message" else _controlled(told, kind)


def _read(channel: Channel) -> Wanted | Reply | None:
    raw, most = request.get_data(cache=False), request.max_content_length
    if most is not None and len(raw) >= most:
        raise RequestEntityTooLarge
    given = Request(request.method, Headers(list(request.headers.items())), raw, request.args.to_dict())
    try:
        return read(channel, given)
    except Unauthorized as refused:
        # Why is for the log: whoever forges requests learns nothing.
        log.info("a request to the channel %s was not verified: %s", channel.name, refused)
        raise NotVerified from None


# Answers ------------------------------------------------------------------------------------------------------------------


def _accepted(told: Admitted) -> Response:
    assert told.session is not None
    body = {"ok": True, "sessionId": told.session, "deliveryId": told.delivery, "status": "accepted"}
    return reply(body, 202, {"x-eve-session-id": told.session})


def _controlled(told: Admitted, control: str) -> Response:
    if told.session is None:
        return reply({"ok": True, "status": "no_active_turn" if control == "cancel" else "no_active_session"})
    headers = {"x-eve-session-id": told.session}
    if control == "reset":
        return reply({"ok": True, "previousSessionId": told.session, "status": "reset"}, 200, headers)
    return reply({"ok": True, "sessionId": told.session, "status": "accepted"}, 202, headers)


def _said(answer: Reply) -> Response:
    match answer.body:
        case None:
            made = Response(b"", answer.status)
        case bytes() | str():
            made = Response(answer.body, answer.status, content_type="text/plain; charset=utf-8")
        case _:
            made = Response(json.dumps(answer.body), answer.status, content_type="application/json")
    made.headers["cache-control"] = "no-store"
    made.headers.update(answer.headers)
    return made


# What a path says ---------------------------------------------------------------------------------------------------------


def _place(
    channel: str, address: str, control: Order | Literal[""], *, post: bool = True
) -> tuple[str, str, Order | Literal[""]]:
    """Channel, address and control that the path names. Raises `NotFound`, `BadRequest`.

    Rules see a decoded path: there `a%2Fcancel`, which is an address, looks like `a/cancel`, which is a control of `a`. So the path is
    looked at as it was sent, where the server passes it on.
    """
    path = request.path.partition(PREFIX)[2]
    sent = _as_sent().partition(PREFIX)[2]
    if sent and unquote(sent, errors="replace") == path:
        first, *rest = [_decoded(part) for part in sent.split("/")]
        last = sent.rpartition("/")[2]
        channel, address, control = first, "/".join(rest), ""
        if post and len(rest) > 1 and (named := next((one for one in ORDERS if one == last), None)):
            address, control = "/".join(rest[:-1]), named
    if not NAME.fullmatch(channel):
        raise NotFound("There is no such channel.")
    return channel, address_of(address), control


def _as_sent() -> str:
    """The path before it was decoded; empty where the server does not tell."""
    raw = str(request.environ.get("RAW_URI") or request.environ.get("REQUEST_URI") or "")
    return raw.partition("?")[0]


def _decoded(part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest(problem="The path is not UTF-8.") from None
