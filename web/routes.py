"""The routes. Each reads its request (`schema`), calls the engine (`front`) and says what came of it."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response, g, request

from orchestrator import world
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.engine import Engine
from orchestrator.errors import NotSupportedYet, OrchestratorError, SessionNotActive, SessionNotFound
from web import auth, problems, schema
from web.front import Front
from web.problems import reply
from web.stream import Ndjson, Sse, Stream, hung_up

View = Callable[..., Response]
STREAM_VERSION = "26"
LATER = ("clear", "compact", "reset")


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
        add("/session", views.create, "POST")
        add("/session/<session>", views.send, "POST")
        add("/session/<session>/cancel", views.cancel, "POST")
        add("/session/<session>/stream", views.stream, "GET")
        for control in LATER:
            add(f"/session/<session>/{control}", _later(f"The control {control}"), "POST", endpoint=control)
        add("/info", _later("The route /info"), "GET", endpoint="info")
        if not strict:
            add("/session/<session>", views.view, "GET")
            add("/sessions", views.sessions, "GET")
    blueprint.before_request(_open_the_door(front))
    blueprint.register_error_handler(Exception, problems.answer)


def _open_the_door(front: Front) -> Callable[[], None]:
    def check() -> None:
        schema.limit_body(request, front.settings.body_limit_bytes)
        if not (request.endpoint or "").endswith("_health"):
            g.orchestrator_principal = auth.principal(front.keys, front.settings.allow_anonymous, request.environ)

    return check


def _principal() -> Principal | None:
    found: Principal | None = g.orchestrator_principal
    return found


def _later(what: str) -> View:
    def refuse(**_: str) -> Response:
        raise NotSupportedYet(field=what)

    return refuse


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

    def create(self) -> Response:
        """202: the session is stored, and its first message if it has one."""
        wanted = schema.create(request, ours=not self.strict)
        session = self.front.create(wanted.message, _principal(), wanted.policy, wanted.agent or None)
        return _accepted(session)

    def send(self, session: str) -> Response:
        """202: it is in the inbox. The stream shows what becomes of it."""
        wanted = schema.send(request)
        try:
            name = schema.session_id(session)
        except SessionNotFound:
            raise SessionNotActive(session=session) from None
        delivery = self.front.deliver(name, wanted.message, _principal(), wanted.policy)
        return _accepted(name, deliveryId=delivery)

    def cancel(self, session: str) -> Response:
        """202: the session was told. 200: there is none to tell."""
        turn = schema.cancel(request)
        try:
            name = schema.session_id(session)
            outcome = self.front.cancel(name, turn, _principal())
        except (SessionNotFound, SessionNotActive):
            told = {} if self.strict else {"outcome": "nothing_runs"}
            return reply({"ok": True, "status": "no_active_turn", **told})
        return _accepted(name, **({} if self.strict else {"outcome": outcome}))

    def view(self, session: str) -> Response:
        """A session as people see it."""
        name = schema.session_id(session)
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
        """The sessions used last, newest first."""
        most = schema.limit(request)
        found = self.front.ask(lambda engine: engine.sessions(most))
        return reply({"ok": True, "sessions": [{"sessionId": name, "lastActivityMs": at} for name, at in found]})

    def stream(self, session: str) -> Response:
        """The events from an index on, and those that come."""
        name = schema.session_id(session)
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


def _accepted(session: SessionId, **more: str) -> Response:
    body = {"ok": True, "sessionId": session, "status": "accepted", **more}
    return reply(body, 202, {"x-eve-session-id": session})
