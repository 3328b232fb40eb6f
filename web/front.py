"""What the requests of one process share: the engine, who may come in, the readers, and the deadline of every call.

A caller gets an answer within six seconds whatever Redis does. So calls of the engine run on threads of their own, all calls of one
request have one deadline, and who waits too long gets `JournalAway`. A write that ended unclearly is repeated once, under the same
ids, if there is time for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from typing import TypeVar

from flask import g, has_request_context

import orchestrator.ids as ids
from orchestrator import auth
from orchestrator.agent import App
from orchestrator.config import Settings, from_environment
from orchestrator.core.delivery import Control
from orchestrator.core.names import DeliveryId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.engine import CancelOutcome, Created, Engine
from orchestrator.errors import JournalAway, OrchestratorError, SessionNotFound
from orchestrator.here import engine_of
from orchestrator.watching import watch
from web import access
from web.schema import Answer, Create, Send
from web.stream import Pace, Served, Slots

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_SECONDS = 5.5
AGAIN_SECONDS = 2.5
"""A write that failed later than this is not tried again: the second try could not end in time."""
PAUSE_SECONDS = 0.2
THREADS = 64


class Front:
    """One process's share of the web."""

    def __init__(self, app: App, engine: Engine | None, pace: Pace) -> None:
        self.app = app
        self.settings: Settings = engine.settings if engine else from_environment(app.settings)
        self.walk = auth.walk(app.auth, self.settings)
        self.pace = pace
        self.watch = watch(self.settings)
        self.slots = Slots(self.settings.streams, self.watch)
        self.served = Served(pace.lost_seconds)
        self._given = engine
        self._threads = ThreadPoolExecutor(THREADS, "web-call")

    @cached_property
    def engine(self) -> Engine:
        """The engine that was given, or one that is made when it is first needed."""
        return self._given if self._given is not None else engine_of(self.app)

    def check(self) -> None:
        """Open the journal. Raises what a restart will not mend (`ConfigError`, `WorldMismatch`); an absent one is only logged."""
        try:
            self.ask(lambda engine: engine.journal)
        except OrchestratorError as error:
            if error.status != JournalAway.status:
                raise
            log.warning("%s", error)

    def ask(self, call: Callable[[Engine], T]) -> T:
        """What `call` answers. Raises `JournalAway` when it takes too long; it may still come to its end."""
        future = self._threads.submit(copy_context().run, lambda: call(self.engine))
        try:
            return future.result(_left())
        except TimeoutError:
            if future.done():
                raise
            future.cancel()  # one that has not begun will not
            raise JournalAway(reason=f"no answer within {ANSWER_SECONDS} s") from None

    def write(self, call: Callable[[Engine], T]) -> T:
        """As `ask`, for a call that may be repeated: it uses the same ids each time."""

        def twice(engine: Engine) -> T:
            begun = time.monotonic()
            try:
                return call(engine)
            except JournalAway:
                if time.monotonic() - begun > AGAIN_SECONDS:
                    raise
            time.sleep(PAUSE_SECONDS)
            return call(engine)

        return self.ask(twice)

    # Who may ----------------------------------------------------------------------------------------------------------

    def allow(self, caller: auth.Caller, session: SessionId, scope: str) -> None:
        """Let a caller do this to a session. Raises `Forbidden`, or `SessionNotFound` where they may not even know that there is one."""
        access.check_session(
            caller,
            session,
            scope,
            lambda name, principal: self.ask(lambda engine: engine.takes_part(name, principal)),
            self.app.access,
        )

    # The writes -------------------------------------------------------------------------------------------------------

    def create(self, wanted: Create, principal: Principal | None) -> Created:
        """A new session, or the one that the same operation has made before."""
        names = Names()

        def call(engine: Engine) -> Created:
            return engine.create(
                wanted.message,
                agent=wanted.agent or None,
                principal=principal,
                policy=wanted.policy,
                context=wanted.context,
                output=wanted.output,
                # An operation says by itself which session it made, and where such a one lives.
                session=None if wanted.operation else names.session(engine),
                delivery=names.delivery(engine),
                operation=wanted.operation,
                may_ask=wanted.may_ask,
            )

        return self.write(call)

    def deliver(self, session: SessionId, wanted: Send, principal: Principal | None) -> DeliveryId:
        """A message into a session."""
        names = Names()

        def call(engine: Engine) -> DeliveryId:
            admitted = engine.deliver(
                session,
                wanted.message,
                principal=principal,
                policy=wanted.policy,
                context=wanted.context,
                output=wanted.output,
                delivery=names.delivery(engine),
                key=wanted.key,
            )
            return admitted.delivery

        return self.write(call)

    def answer(self, session: SessionId, wanted: Answer, principal: Principal | None) -> DeliveryId:
        """Answers into a session."""
        names = Names()

        def call(engine: Engine) -> DeliveryId:
            admitted = engine.answer(
                session, wanted.responses, principal=principal, delivery=names.delivery(engine), key=wanted.key
            )
            return admitted.delivery

        return self.write(call)

    def cancel(self, session: SessionId, turn: str, principal: Principal | None) -> CancelOutcome:
        """A cancel into a session."""
        names = Names()
        return self.write(
            lambda engine: engine.cancel(session, turn=turn, principal=principal, delivery=names.delivery(engine))
        )

    def control(self, session: SessionId, kind: Control, principal: Principal | None) -> None:
        """A clear, compact or reset into a session."""
        names = Names()

        def call(engine: Engine) -> None:
            engine.control(session, kind, principal=principal, delivery=names.delivery(engine))

        self.write(call)

    def erase(self, session: SessionId) -> None:
        """Leave nothing of a session."""
        begun = False

        def call(engine: Engine) -> None:
            nonlocal begun
            try:
                engine.erase(session)
            except SessionNotFound:
                if not begun:
                    raise
            finally:
                begun = True

        self.write(call)


def _left() -> float:
    """The seconds that are left for the request of this thread; its first call sets the time."""
    if not has_request_context():
        return ANSWER_SECONDS
    until: float = g.setdefault("answer_until", time.monotonic() + ANSWER_SECONDS)
    return max(until - time.monotonic(), 0.0)


class Names:
    """The ids of one request: made at its first try, the same at the second."""

    def __init__(self) -> None:
        self._session: SessionId | None = None
        self._delivery: DeliveryId | None = None

    def session(self, engine: Engine) -> SessionId:
        """The session's."""
        self._session = self._session or ids.new_session(engine.clock.now())
        return self._session

    def delivery(self, engine: Engine) -> DeliveryId:
        """The delivery's."""
        self._delivery = self._delivery or ids.new_delivery(engine.clock.now())
        return self._delivery
