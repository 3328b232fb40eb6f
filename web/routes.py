"""The routes. Each reads its request (`schema`), calls the engine (`front`) and says what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from flask import Blueprint, Response, g, request

from orchestrator import world
from orchestrator.core.names import SessionId
from orchestrator.engine import Engine
from orchestrator.errors import OrchestratorError, SessionNotActive, SessionNotFound
from web import access, cors, problems, schema
from web.access import caller
from web.channels import mount_channels
from web.front import Front
from web.info import info
from web.openapi import mount_openapi
from web.problems import reply
from web.requests import mount_requests
from web.stream import Ndjson, Sse, Stream, hung_up

View = Callable[..., Response]
log = logging.getLogger(__name__)

STREAM_VERSION = "26"
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
OPEN = ("_health", "_openapi", "_webhook", "_link", "metrics_open")
"""Endpoints whose names end so need no credential: health, what can be asked, and those that look at what was sent themselves; metrics
where a setting opens them."""


def mount(blueprint: Blueprint, front: Front) -> None:
    """Put all routes on a blueprint, under both prefixes."""
    for prefix, strict in (("/eve/v1", True), ("/v1", False)):
        name = problems.STRICT if strict else "v1_"
        views = Views(front, strict)

        def add(
            rule: str, view: View, *methods: str, prefix: str = prefix, name: str = name, endpoint: str = ""
        ) -> None:
            blueprint.add_url_rule(prefix + rule, name + (endpoint or view.__name__), view, methods=methods)

        add("/health", views.health, "GET")
        add("/info", views.info, "GET")
        add("/session", views.create, "POST")
        add("/session/<session>", views.send, "POST")
        add("/session/<session>/cancel", views.cancel, "POST")
        add("/session/<session>/clear", views.clear, "POST")
        add("/session/<session>/compact", views.compact, "POST")
        add("/session/<session>/reset", views.reset, "POST")
        add("/session/<session>/stream", views.stream, "GET")
        if not strict:
            add("/session/<session>", views.view, "GET")
            add("/session/<session>", views.erase, "DELETE")
            add("/sessions", views.sessions, "GET")
    mount_openapi(blueprint)
    if front.settings.metrics:
        name = "metrics_open" if front.settings.metrics == "open" else "metrics"
        blueprint.add_url_rule("/metrics", name, Views(front, strict=False).metrics, methods=["GET"])
    mount_channels(blueprint, front)
    mount_requests(blueprint, front, Views(front, strict=False).reached)
    blueprint.before_request(_open_the_door(front))
    blueprint.teardown_request(_close_the_door)
    blueprint.after_request(cors.after(front.settings.origins))
    blueprint.register_error_handler(Exception, problems.answer)


def _open_the_door(front: Front) -> Callable[[], None]:
    def check() -> None:
        g.orchestrator_leave = front.watch.came_in(dict(request.headers))
        schema.limit_body(request, front.settings.body_limit_bytes)
        # A question of a browser carries no credential, and its answer tells nothing.
        if request.method != "OPTIONS" and not (request.endpoint or "").endswith(OPEN):
            access.remember(front.walk.caller(access.shown(request)))

    return check


def _close_the_door(_error: BaseException | None) -> None:
    leave = g.pop("orchestrator_leave", None)
    if leave is not None:
        leave()


class Views:
    """The views of one prefix. A strict one adds nothing to what the protocol says."""

    def __init__(self, front: Front, strict: bool) -> None:
        self.front = front
        self.strict = strict

    def health(self) -> Response:
        """The strict one says that this process lives, and asks nobody for it. The other also looks at the journal."""
        label = self.front.settings.deployment
        alive = {"ok": True, "status": "ready", "workflowId": f"orc:{label}"}
        if self.strict:
            return reply(alive)
        more: dict[str, object] = {
            "protocol": world.PROTOCOL,
            "durability": self.front.settings.durability,
            "deployment": label,
            "streams": {"open": self.front.slots.used, "limit": self.front.slots.limit},
        }
        try:
            known, living = self.front.ask(lambda engine: (engine.reads.deployments(), engine.living_label()))
        except OrchestratorError as error:
            return problems.answer(error, {"journal": "away", **more})
        deployments = {
            name: {"rank": found["rank"], "workers": found["workers"]}
            for name, found in known.items()
            if found["workers"]
        }
        return reply({**alive, "journal": "ok", **more, "newSessionsGoTo": living, "deployments": deployments})

    def metrics(self) -> Response:
        """What Prometheus scrapes: what this process counts, and what the journal knows."""
        if self.front.settings.metrics != "open":
            access.check_metrics(caller())
        text = self.front.ask(lambda engine: engine.figures())
        return Response(text, headers={"cache-control": "no-store"}, content_type=METRICS_TYPE)

    def info(self) -> Response:
        """What the App is."""
        access.check_scope(caller(), "read")
        return reply(info(self.front.app, self.front.settings.model))

    def create(self) -> Response:
        """202: the session is stored, and its first message if it has one."""
        access.check_scope(caller(), "send")
        wanted = schema.create(request, ours=not self.strict)
        made = self.front.create(wanted, caller().principal)
        told = {} if self.strict or made.delivery is None else {"deliveryId": made.delivery}
        return _accepted(made.session, **told)

    def send(self, session: str) -> Response:
        """202: it is in the inbox. The stream shows what becomes of it."""
        wanted = schema.send(request)
        answers = isinstance(wanted, schema.Answer)
        try:
            name = self.reached(session, "answer" if answers else "send")
        except SessionNotFound:
            raise SessionNotActive(session=session) from None
        if isinstance(wanted, schema.Send):
            return _accepted(name, deliveryId=self.front.deliver(name, wanted, caller().principal))
        return _accepted(name, deliveryId=self.front.answer(name, wanted, caller().principal))

    def cancel(self, session: str) -> Response:
        """202: the session was told. 200: there is none to tell."""
        turn = schema.cancel(request)
        try:
            name = self.reached(session, "control")
            outcome = self.front.cancel(name, turn, caller().principal)
        except (SessionNotFound, SessionNotActive):
            told = {} if self.strict else {"outcome": "nothing_runs"}
            return reply({"ok": True, "status": "no_active_turn", **told})
        return _accepted(name, **({} if self.strict else {"outcome": outcome}))

    def clear(self, session: str) -> Response:
        """202: the model will know nothing of what was said, as soon as no turn is open."""
        return self._asked(session, "clear")

    def compact(self, session: str) -> Response:
        """202: what was said will be summed up, as soon as no turn is open."""
        return self._asked(session, "compact")

    def reset(self, session: str) -> Response:
        """200: the session has ended, from now on. Its stream says the rest."""
        reason = schema.reset(request)
        try:
            name = self.reached(session, "control")
            self.front.control(name, "reset", caller().principal)
        except (SessionNotFound, SessionNotActive):
            return _no_active_session()
        if reason:
            log.info("%s was reset: %r", name, reason)
        return reply({"ok": True, "previousSessionId": name, "status": "reset"}, 200, {"x-eve-session-id": name})

    def erase(self, session: str) -> Response:
        """200: nothing of it is left."""
        name = self.reached(session, "erase")
        self.front.erase(name)
        return reply({"ok": True, "sessionId": name, "status": "erased"})

    def _asked(self, session: str, control: Literal["clear", "compact"]) -> Response:
        schema.nothing(request)
        try:
            name = self.reached(session, "control")
            self.front.control(name, control, caller().principal)
        except (SessionNotFound, SessionNotActive):
            return _no_active_session()
        return _accepted(name)

    def reached(self, session: str, scope: str) -> SessionId:
        """The session, if this caller may do this to it. Raises `SessionNotFound`, `Forbidden`."""
        access.check_scope(caller(), scope)
        name = schema.session_id(session)
        self.front.allow(caller(), name, scope)
        return name

    def view(self, session: str) -> Response:
        """A session as people see it."""
        name = self.reached(session, "read")
        seen = self.front.ask(lambda engine: engine.view(name))
        return reply(
            {
                "ok": True,
                "sessionId": seen.session,
                "agent": seen.agent,
                "status": seen.status,
                "turnId": seen.turn or None,
                "events": seen.events,
                "waiting": seen.waiting,
                "attempt": seen.attempt,
                "epoch": seen.epoch,
                "createdMs": seen.created_ms,
                "deployment": seen.deployment,
            }
        )

    def sessions(self) -> Response:
        """The sessions used last, newest first; of a user those they take part in."""
        access.check_scope(caller(), "read")
        most, principal = schema.limit(request), caller().principal
        of = principal if caller().is_user else None
        found = self.front.ask(lambda engine: engine.sessions(most, of=of))
        return reply({"ok": True, "sessions": [{"sessionId": name, "lastActivityMs": at} for name, at in found]})

    def stream(self, session: str) -> Response:
        """The events from an index on, and those that come."""
        name = self.reached(session, "read")
        wanted = schema.reading(request, name)
        front = self.front
        tail, life = front.ask(lambda engine: _place(engine, name))
        start = wanted.start if wanted.start >= 0 else max(tail + wanted.start, 0)
        form = Sse(name) if wanted.sse else Ndjson()
        headers = {
            "x-eve-stream-version": STREAM_VERSION,
            "x-eve-stream-format": form.name,
            "x-eve-session-id": name,
            "cache-control": "no-store, no-transform",
            "x-accel-buffering": "no",
        }
        if wanted.tail:
            headers["x-eve-stream-tail-index"] = str(tail - 1)
        if wanted.resumed and life == "ended" and start >= tail:
            return Response(status=204, headers=headers)  # what makes a browser stop asking for more
        if request.method == "HEAD":
            return Response(headers=headers, content_type=form.content_type)
        end = tail if wanted.bounded else None
        if not request.environ["wsgi.multithread"]:
            end = tail
            if not wanted.bounded:
                front.slots.warn_once()
        body = Stream(
            front.engine,
            name,
            front.slots,
            front.served,
            front.pace,
            form,
            start=start,
            end=end,
            lease=wanted.lease,
            for_seconds=caller().until - time.time(),
            gone=hung_up(request.environ),
        )
        answer = Response(body, headers=headers, content_type=form.content_type)
        answer.call_on_close(body.close)
        return answer


def _place(engine: Engine, session: SessionId) -> tuple[int, str]:
    place = engine.reads.place(session)
    if place is None:
        raise SessionNotFound(session=session)
    _ = engine.tails  # made here, where waiting is bounded
    return place


def _no_active_session() -> Response:
    return reply({"ok": True, "status": "no_active_session"})


def _accepted(session: SessionId, **more: str) -> Response:
    body = {"ok": True, "sessionId": session, "status": "accepted", **more}
    return reply(body, 202, {"x-eve-session-id": session})
