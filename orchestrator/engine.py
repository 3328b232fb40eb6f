"""The desk: everything that can be asked of the product goes through here, from the web, from Celery, from the command line.

create  deliver  cancel      something comes in: it is stored, and a worker is told
view  events  tail           something is looked at
carry_on                     a worker moves a session until there is nothing to do
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import orchestrator.ids as ids
from orchestrator import world
from orchestrator.agent import Agent, App
from orchestrator.clock import RedisClock, steady
from orchestrator.config import Settings, from_environment
from orchestrator.core import codec
from orchestrator.core.delivery import Body, Delivery, Envelope
from orchestrator.core.names import DeliveryId, SessionId
from orchestrator.core.snapshot import READS, Principal
from orchestrator.core.status import Look, Status, status
from orchestrator.errors import BadRequest, BodyTooLarge, SessionNotFound
from orchestrator.journal import Admitted, Journal, Reads, View, connect
from orchestrator.journal.tails import Tails
from orchestrator.ports import Wake

if TYPE_CHECKING:
    from orchestrator.process.shared import Process
    from orchestrator.turn import Carried

CancelOutcome = Literal["cancelling", "other_turn", "nothing_runs"]


@contextmanager
def storable() -> Iterator[None]:
    """Turn what no journal can hold into what the sender can do about it."""
    try:
        yield
    except codec.Unstorable as broken:
        raise BodyTooLarge(limit_bytes=codec.MAX_BYTES) from broken
    except UnicodeEncodeError as broken:
        raise BadRequest(problem="The text holds half a character (a lone surrogate). Send whole ones.") from broken


@dataclass(frozen=True, slots=True)
class Seen:
    """A session as people see it."""

    session: SessionId
    agent: str
    status: Status
    turn: str
    events: int
    waiting: int
    attempt: int
    epoch: int
    created_ms: int
    deployment: str


class Engine:
    """One world and one App. Thread-safe, cheap to make; connects when first used."""

    def __init__(
        self, app: App, settings: Settings | None = None, *, wake: Wake | None = None, journal: Journal | None = None
    ) -> None:
        self.app = app
        self.settings = settings or from_environment(app.settings)
        self._wake = wake
        self._journal = journal
        self._process: Process | None = None
        self._lock = threading.RLock()

    # The world --------------------------------------------------------------------------------------------------------

    @cached_property
    def journal(self) -> Journal:
        """The journal, made at the first use and checked against this version. Raises `WorldMismatch`, `JournalAway`."""
        with self._lock:
            if self._journal is None:
                self._journal = world.open_journal(self.settings, self._wake)
            return self._journal

    @cached_property
    def reads(self) -> Reads:
        """What can be asked of the journal."""
        return Reads(self.journal)

    @cached_property
    def clock(self) -> RedisClock:
        """The time of Redis."""
        return RedisClock(self.journal.time)

    @cached_property
    def tails(self) -> Tails:
        """Tells readers of this process that a stream has grown."""
        with self._lock:
            client = connect(world.journal_url(self.settings), timeout=5.0)
            return Tails(client, self.settings.prefix)

    @property
    def label(self) -> str:
        """The deployment this process belongs to."""
        return self.settings.deployment

    def agent(self, name: str | None = None) -> Agent:
        """An agent of the App. Raises `BadRequest` for a name it has not."""
        if not name:
            return self.app.agents[0]
        try:
            return self.app.by_name[name]
        except KeyError:
            known = ", ".join(self.app.by_name)
            raise BadRequest(problem=f"There is no agent {name!r}. This app has: {known}.") from None

    def living_label(self) -> str:
        """The deployment new sessions go to: ours, or the highest-ranked with workers if ours has none and another has."""
        known = self.reads.deployments()
        mine = known.get(self.label)
        if mine and mine["workers"]:
            return self.label
        alive = [(found["rank"], label) for label, found in known.items() if found["workers"]]
        return max(alive)[1] if alive else self.label

    # Coming in --------------------------------------------------------------------------------------------------------

    def create(
        self,
        message: Body | None = None,
        *,
        agent: str | None = None,
        principal: Principal | None = None,
        session: SessionId | None = None,
        delivery: DeliveryId | None = None,
        policy: str = "steer",
    ) -> tuple[SessionId, DeliveryId | None]:
        """Start a session, with its first message if there is one. When this returns, it is stored and will be worked on.

        Repeating the call with the ids of the first (`session`, `delivery`) changes nothing. Raises `BadRequest`,
        `JournalFull`, `JournalAway`.
        """
        chosen = self.agent(agent)
        at = self.clock.now()
        session = session or ids.new_session(at)
        first = None
        if message is not None:
            envelope = Envelope("message", principal, policy, at=at)
            first = Delivery(delivery or ids.new_delivery(at), envelope, message)
        label = self.living_label()
        asked_at = steady()
        with storable():
            made = self.journal.create(session, agent=chosen.name, deployment=label, first=first)
        self.clock.heard(made.at, asked_at)
        return session, first.id if first else None

    def deliver(
        self,
        session: SessionId,
        message: Body,
        *,
        principal: Principal | None = None,
        policy: str = "steer",
        delivery: DeliveryId | None = None,
    ) -> Admitted:
        """Put a message into a session's inbox. Raises `SessionNotActive`, `InboxFull`, `JournalFull`, `JournalAway`."""
        at = self.clock.now()
        envelope = Envelope("message", principal, policy, at=at)
        return self._admit(session, Delivery(delivery or ids.new_delivery(at), envelope, message))

    def cancel(
        self,
        session: SessionId,
        *,
        turn: str = "",
        principal: Principal | None = None,
        delivery: DeliveryId | None = None,
    ) -> CancelOutcome:
        """Tell the open turn (or the one whose message waits first) to stop. The stream says what became of it."""
        at = self.clock.now()
        envelope = Envelope("cancel", principal, guard=turn, at=at)
        admitted = self._admit(session, Delivery(delivery or ids.new_delivery(at), envelope))
        return "nothing_runs" if admitted.outcome == "taken" else admitted.outcome

    def report_tail(self, session: SessionId, events: int) -> None:
        """A reader has seen `events` events and the store has fewer: let the owner name the loss."""
        at = self.clock.now()
        self._admit(session, Delivery(ids.new_delivery(at), Envelope("tail_seen", guard=str(events), at=at)))

    def _admit(self, session: SessionId, delivery: Delivery) -> Admitted:
        asked_at = steady()
        with storable():
            admitted = self.journal.deliver(session, delivery)
        self.clock.heard(admitted.at, asked_at)
        return admitted

    # Looking ----------------------------------------------------------------------------------------------------------

    def view(self, session: SessionId) -> Seen:
        """A session as people see it. Raises `SessionNotFound`."""
        found = self.reads.view(session)
        if found is None:
            raise SessionNotFound(session=session)
        return seen(found)

    def sessions(self, most: int = 100) -> Sequence[tuple[SessionId, int]]:
        """The sessions used last, newest first, with the ms of their last activity."""
        return self.reads.sessions(most)

    # Working ----------------------------------------------------------------------------------------------------------

    @cached_property
    def process(self) -> Process:
        """What the sessions that are worked on in this process share. Made in the process that works, after any fork."""
        from orchestrator.process.shared import Process

        with self._lock:
            # Threads may come here together: one of them makes it.
            if self._process is None:
                self._process = Process(self.app, self.settings, self.journal, self.reads, self.clock)
            return self._process

    def carry_on(self, session: SessionId, *, alone: str = "") -> Carried:
        """Move a session until there is nothing to do, or its task has done its share. A start and a restart are the same call."""
        from orchestrator.turn import carry_on

        return carry_on(self.process, session, alone=alone)

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the threads and close the connections. Whoever still works here is not waited for; the next use begins anew."""
        with self._lock:
            made = [self.__dict__.pop(name, None) for name in ("process", "tails")]
            self._process = None
        for part in (*made, self._journal):
            if part is not None:
                part.close()


def seen(view: View) -> Seen:
    """A view as people see it."""
    fields = view.fields
    look = Look(
        life=fields["status"],
        owned=bool(fields["token"]),
        lease_ms=view.number("lease"),
        now_ms=view.now_ms,
        work=fields["work"] == "1",
        head_above_judged=view.head_above_judged,
        next_timer=view.number("next_timer"),
        reads=view.number("reads"),
        newest_reads=READS,
    )
    return Seen(
        session=view.id,
        agent=fields["agent"],
        status=status(look),
        turn=fields["turn"],
        events=view.number("events"),
        waiting=view.number("waiting"),
        attempt=view.number("attempt") + 1,
        epoch=view.number("epoch"),
        created_ms=view.number("created"),
        deployment=fields["deployment"],
    )
