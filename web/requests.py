"""What sessions ask people: the record of it, and links that answer one request without any other credential."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response, request

from orchestrator.auth import Caller
from orchestrator.core.names import SessionId
from orchestrator.notes import Note, who, wire
from orchestrator.records import is_open, record
from web import schema
from web.access import caller
from web.front import Front
from web.problems import reply

NOBODY_ELSE = {"referrer-policy": "no-referrer"}


def mount_requests(blueprint: Blueprint, front: Front, reached: Callable[[str, str], SessionId]) -> None:
    """Put the routes of requests on a blueprint, under `/v1`. `reached`: the session of a path, if a caller may do this to it."""
    views = Views(front, reached)
    blueprint.add_url_rule("/v1/session/<session>/requests", "v1_requests", views.of_session, methods=["GET"])
    # Whose name ends in _link needs no key: the path is one.
    blueprint.add_url_rule("/v1/requests/<token>", "v1_request_link", views.ask, methods=["GET"])
    blueprint.add_url_rule("/v1/requests/<token>", "v1_answer_link", views.answer, methods=["POST"])


class Views:
    """The views of requests."""

    def __init__(self, front: Front, reached: Callable[[str, str], SessionId]) -> None:
        self.front = front
        self.reached = reached

    def of_session(self, session: str) -> Response:
        """All that a session has asked, oldest first."""
        name = self.reached(session, "read")
        only_open = schema.only_open(request)
        found = self.front.ask(lambda engine: engine.requests(name))
        shown = [record(note, link=_may_answer(caller(), note)) for note in found if is_open(note) or not only_open]
        return reply({"ok": True, "sessionId": name, "requests": shown})

    def ask(self, token: str) -> Response:
        """What a link asks. It is not used up."""
        note = self.front.ask(lambda engine: engine.read_link(token))
        return reply({"ok": True, "request": wire(note), "state": note["state"]}, 200, NOBODY_ELSE)

    def answer(self, token: str) -> Response:
        """202: the answer is in the inbox of the session that has asked."""
        wanted = schema.link(request)
        told = self.front.write(lambda engine: engine.answer_link(token, wanted.option, wanted.text))
        body = {"ok": True, "sessionId": told.session, "deliveryId": told.delivery, "status": "accepted"}
        return reply(body, 202, {"x-eve-session-id": told.session, **NOBODY_ELSE})


def _may_answer(caller: Caller, note: Note) -> bool:
    """Whether a caller may have the link: a service that answers, and whoever the request is for. A link answers for anybody."""
    if "answer" not in caller.scopes:
        return False
    service = caller.principal is not None and not caller.is_user
    return service or note["requester"] in (None, who(caller.principal))
