"""The desk: everything that can be asked of the product goes through here, from the web, from Celery, from the command line.

create  deliver  cancel  control     something comes in for a session: it is stored, and a worker is told
arrive  control_at  resolve         the same for an address, the name under which a channel knows a session
erase                               nothing of a session is left
view  sessions  takes_part          something is looked at
carry_on                            a worker moves a session until there is nothing to do
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Literal

import orchestrator.ids as ids
from orchestrator import deliveries, world
from orchestrator.agent import Agent, App
from orchestrator.asides import Context
from orchestrator.clock import RedisClock, steady
from orchestrator.config import Settings, from_environment
from orchestrator.core.delivery import Body, Control, Delivery, Response
from orchestrator.core.names import DeliveryId, Millis, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import (
    BadRequest,
    LinkUnknown,
    LinkUsed,
    RequestUnknown,
    SessionNotActive,
    SessionNotFound,
)
from orchestrator.journal import AdmissionKey, Admitted, Arrived, Journal, Operation, Reads, connect
from orchestrator.journal.tails import Tails
from orchestrator.notes import Note, unpack_note
from orchestrator.parts import Message, body_of
from orchestrator.ports import Wake
from orchestrator.seen import Seen, seen
from orchestrator.watching import Watch, watch

if TYPE_CHECKING:
    from orchestrator.channels import Channel
    from orchestrator.process.shared import Process
    from orchestrator.turn import Carried

CancelOutcome = Literal["cancelling", "other_turn", "nothing_runs"]
DAY_MS = 24 * 3600 * 1000
LOOKED_THROUGH = 1000
"""Sessions among which those of one participant are looked for."""


@dataclass(frozen=True, slots=True)
class Created:
    """A session that was created: now, or by an earlier call with the same operation (`again`)."""

    session: SessionId
    delivery: DeliveryId | None
    again: bool


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

    @cached_property
    def watch(self) -> Watch:
        """Who watches this process. Raises `ConfigError`."""
        return watch(self.settings)

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
        message: Message | None = None,
        *,
        agent: str | None = None,
        principal: Principal | None = None,
        session: SessionId | None = None,
        delivery: DeliveryId | None = None,
        policy: str = "",
        context: Context | None = None,
        output: Mapping[str, object] | None = None,
        operation: str = "",
        may_ask: bool = True,
    ) -> Created:
        """Start a session, with its first message if there is one. When this returns, it is stored and will be worked on.
        Without `may_ask` it never waits for a person: approvals are refused, questions are told that nobody is there.

        `context` is told to the model beside the message, in its turn only. `output` is a JSON Schema: the turn ends with a result that
        fits it (`result.completed`), or fails. Neither is allowed without a message.

        Repeating the call with the ids of the first (`session`, `delivery`) changes nothing. Who says which `operation` it is
        gets the session of the first such call as long as that lives, and for a day at least. Raises `BadRequest`,
        `JournalFull`, `JournalAway`.
        """
        chosen = self.agent(agent)
        if operation and principal is None:
            raise BadRequest(problem="operationId needs a caller that is known: send a credential, or leave it out.")
        at = self.clock.now()
        door = Operation(operation, principal) if operation and principal else None
        session = session or ids.new_session(at, door.shard if door else None)
        if message is None and (context is not None or output is not None):
            raise BadRequest(problem="Context and an output schema need a message.")
        body = deliveries.with_asides(body_of(message), context, output) if message is not None else None
        first = self._message(at, body, principal, policy, delivery) if body is not None else None
        label = self.living_label()
        asked_at = steady()
        with deliveries.storable():
            made = self.journal.create(
                session,
                agent=chosen.name,
                deployment=label,
                first=first,
                who=deliveries.participant(principal),
                operation=door,
                life_ms=self._life_ms,
                may_ask=may_ask,
            )
        self.clock.heard(made.at, asked_at)
        delivery = first.id if first is not None and made.session == session else None
        return Created(made.session, delivery, made.again)

    def deliver(
        self,
        session: SessionId,
        message: Message,
        *,
        principal: Principal | None = None,
        policy: str = "",
        context: Context | None = None,
        output: Mapping[str, object] | None = None,
        delivery: DeliveryId | None = None,
        key: str = "",
    ) -> Admitted:
        """Put a message into a session's inbox. A `key` of the caller's makes it the same message each time it is said, for a day.

        `context`, `output`: as for `create`. Raises `BadRequest`, `SessionNotActive`, `InboxFull`, `DeliveryKeyReused`, `BodyTooLarge`,
        `JournalFull`, `JournalAway`.
        """
        body = deliveries.with_asides(body_of(message), context, output)
        name = ids.keyed_delivery(session, principal, key) if key else delivery
        given = self._message(self.clock.now(), body, principal, policy, name)
        with deliveries.under(key):
            return self._admit(session, given, digest=deliveries.digest_of(given) if key else "")

    def cancel(
        self,
        session: SessionId,
        *,
        turn: str = "",
        principal: Principal | None = None,
        delivery: DeliveryId | None = None,
    ) -> CancelOutcome:
        """Tell the open turn (or the one whose message waits first) to stop. The stream says what became of it."""
        admitted = self._admit(session, deliveries.order(self.clock.now(), "cancel", turn, principal, delivery))
        return "nothing_runs" if admitted.outcome == "taken" else admitted.outcome

    def control(
        self,
        session: SessionId,
        kind: Control,
        *,
        principal: Principal | None = None,
        delivery: DeliveryId | None = None,
    ) -> Admitted:
        """Clear or compact what the model knows, when no turn is open; or reset: end the session, from now on. The stream says what
        became of it. Raises `SessionNotActive`, `JournalFull`, `JournalAway`."""
        return self._admit(session, deliveries.order(self.clock.now(), kind, "", principal, delivery))

    def report_tail(self, session: SessionId, events: int) -> None:
        """A reader has seen `events` events and the store has fewer: let the owner name the loss."""
        at = self.clock.now()
        self._admit(session, deliveries.order(at, "tail_seen", str(events), None, None))

    def erase(self, session: SessionId) -> None:
        """Leave nothing of a session, whatever it is doing. When this returns, it never was. Raises `SessionNotFound`, `JournalAway`:
        what was begun is finished by the workers."""
        if not self.reads.exists(session):
            raise SessionNotFound(session=session)
        while not self.journal.erase(session):
            pass

    # Answers ----------------------------------------------------------------------------------------------------------

    def answer(
        self,
        session: SessionId,
        responses: Sequence[Response],
        *,
        principal: Principal | None = None,
        delivery: DeliveryId | None = None,
        key: str = "",
    ) -> Admitted:
        """Answer requests of a session. Whether an answer counts is decided when it is looked at; the stream says what became of it.

        Raises `RequestUnknown` for what the session has never asked, else as `deliver`.
        """
        if not responses:
            raise BadRequest(problem="There is no answer.")
        known = self.journal.notes(session, [one.request for one in responses])
        if (unknown := next((one.request for one in responses if one.request not in known), None)) is not None:
            if self.reads.life(session) != "live":
                raise SessionNotActive(session=session)
            raise RequestUnknown(session=session, request=unknown)
        name = ids.keyed_delivery(session, principal, key) if key else delivery
        given = deliveries.answers(self.clock.now(), responses, principal, name)
        with deliveries.under(key):
            return self._admit(session, given, digest=deliveries.digest(*responses) if key else "")

    def read_link(self, token: str) -> Note:
        """What a link asks and what has become of it, without using it. Raises `LinkUnknown`."""
        found = self.journal.look_at(token)
        packed = self.journal.notes(found.session, [found.request])
        if found.request not in packed:
            raise LinkUnknown()
        return unpack_note(packed[found.request])

    def answer_link(self, token: str, option: str = "", text: str = "") -> Admitted:
        """Answer the request that a link leads to, as whoever has the link. The same answer again is the same; another raises `LinkUsed`.

        Raises `LinkUnknown`, else as `deliver`.
        """
        name = ids.keyed_delivery(token, None, f"{option}\n{text}")
        claimed = self.journal.claim(token, name)
        if claimed.delivery != name:
            raise LinkUsed()
        by = Principal("link", "link", claimed.request)
        return self._admit(
            claimed.session, deliveries.answers(self.clock.now(), [Response(claimed.request, option, text)], by, name)
        )

    def requests(self, session: SessionId) -> list[Note]:
        """All that a session has asked people, oldest first: what was asked, of which call, who answered, when and what. Raises
        `SessionNotFound`."""
        if not self.reads.exists(session):
            raise SessionNotFound(session=session)
        return sorted(map(unpack_note, self.journal.all_notes(session)), key=lambda note: int(note["asked_ms"]))

    # By address -------------------------------------------------------------------------------------------------------

    def arrive(
        self,
        channel: str,
        address: str,
        message: Message,
        *,
        principal: Principal | None = None,
        agent: str | None = None,
        policy: str = "",
        context: Context | None = None,
        output: Mapping[str, object] | None = None,
        delivery: DeliveryId | None = None,
        key: str = "",
        identity: str = "",
        digest: str = "",
        only_own: bool = False,
    ) -> Arrived:
        """A message for the session at an address; where there is none, it begins one. `context`, `output`: as for `create`.

        What came with the same `key` (of this caller, and with the same `digest` of its body) or is the same message by
        `identity` gets the first answer, for a day. With `only_own` it raises `AddressTaken` where the principal takes no part in the
        session that is there. Raises as `deliver`, without `SessionNotActive`.
        """
        spec = self.app.channels_by_name.get(channel)
        chosen = self.agent(agent or (spec.agent if spec else None) or None)
        name = ids.keyed_delivery(f"{channel}/{address}", principal, key) if key else delivery
        policy, body = (
            policy or (spec.turn_policy if spec else ""),
            deliveries.with_asides(body_of(message), context, output),
        )
        given = self._message(self.clock.now(), body, principal, policy, name, spec)
        keys = [AdmissionKey(given.id, digest or deliveries.digest_of(given))] if key else []
        if identity:
            keys.append(AdmissionKey(f"message/{identity}"))
        only = deliveries.participant(principal) if only_own else ""
        with deliveries.under(key):
            return self._arrive(channel, address, given, chosen, keys, only)

    def control_at(
        self,
        channel: str,
        address: str,
        kind: Literal["cancel"] | Control,
        *,
        turn: str = "",
        principal: Principal | None = None,
        delivery: DeliveryId | None = None,
    ) -> Arrived:
        """A cancel or control for the session at an address. Raises `SessionNotActive` where there is none."""
        given = deliveries.order(self.clock.now(), kind, turn, principal, delivery)
        return self._arrive(channel, address, given, self.app.agents[0], ())

    def reserve(self, channel: str, key: str, digest: str) -> None:
        """A channel was given `key` with a body of this digest. Raises `DeliveryKeyReused` if it was given another body before, today."""
        self.journal.reserve(channel, key, digest)

    def resolve(self, channel: str, address: str) -> SessionId | None:
        """The live session at an address."""
        return self.journal.resolve(channel, address)

    def take_address(self, session: SessionId, channel: str, address: str) -> None:
        """Let an address lead to this session as well. Raises `AddressTaken`, `AddressesFull`, `SessionNotActive`, `BadRequest`."""
        self.journal.take_address(session, channel, address)

    def drop_address(self, session: SessionId, channel: str, address: str) -> None:
        """Let an address lead to this session no more; nothing happens if it does not."""
        self.journal.drop_address(session, channel, address)

    # Into the journal -------------------------------------------------------------------------------------------------

    def _message(
        self,
        at: Millis,
        body: Body,
        principal: Principal | None,
        policy: str,
        name: DeliveryId | None,
        channel: Channel | None = None,
    ) -> Delivery:
        (channel.uploads if channel and channel.uploads else self.app.uploads).check(body)
        if channel:
            body = deliveries.of_channel(body, channel.name)
        return deliveries.message(at, body, principal, policy or self.app.turn_policy, name, self.watch.trace())

    def _admit(self, session: SessionId, delivery: Delivery, digest: str = "") -> Admitted:
        asked_at = steady()
        with deliveries.storable():
            admitted = self.journal.deliver(session, delivery, digest=digest, who=deliveries.who_joins(delivery))
        self.clock.heard(admitted.at, asked_at)
        return admitted

    def _arrive(
        self, channel: str, address: str, given: Delivery, agent: Agent, keys: Sequence[AdmissionKey], only: str = ""
    ) -> Arrived:
        at = self.clock.now()
        shard = ids.address_shard(ids.address_key(channel, address))
        label, asked_at = self.living_label(), steady()
        with deliveries.storable():
            arrived = self.journal.arrive(
                channel,
                address,
                given,
                candidate=ids.new_session(at, shard),
                agent=agent.name,
                deployment=label,
                keys=keys,
                who=deliveries.who_joins(given),
                life_ms=self._life_ms,
                only=only,
            )
        self.clock.heard(arrived.at, asked_at)
        return arrived

    @property
    def _life_ms(self) -> int:
        return int(self.settings.session_days * DAY_MS)

    # Looking ----------------------------------------------------------------------------------------------------------

    def view(self, session: SessionId) -> Seen:
        """A session as people see it. Raises `SessionNotFound`."""
        found = self.reads.view(session)
        if found is None:
            raise SessionNotFound(session=session)
        return seen(found)

    def takes_part(self, session: SessionId, principal: Principal) -> bool:
        """Whether somebody has sent something to a session, or has begun it."""
        return self.reads.takes_part(session, ids.principal_key(principal))

    def sessions(self, most: int = 100, *, of: Principal | None = None) -> Sequence[tuple[SessionId, int]]:
        """The sessions used last, newest first, with the ms of their last activity; `of` a principal, those among the last 1,000."""
        if of is None:
            return self.reads.sessions(most)
        return self.reads.sessions_of(ids.principal_key(of), most, LOOKED_THROUGH)

    def figures(self) -> bytes:
        """What Prometheus is told: what this process counts, and what the journal knows. Says so itself when the journal is away."""
        from orchestrator.watching.world import scrape

        return scrape(self.settings, lambda: self.reads, self.label)

    # Working ----------------------------------------------------------------------------------------------------------

    @cached_property
    def process(self) -> Process:
        """What the sessions that are worked on in this process share. Made in the process that works, after any fork."""
        from orchestrator.process.shared import Process

        with self._lock:
            # Threads may come here together: one of them makes it.
            if self._process is None:
                entries = None
                if self.app.channels:
                    channels = import_module("orchestrator.channels")
                    entries = channels.entries if channels.listens(self.app) else None
                self._process = Process(
                    self.app,
                    self.settings,
                    self.journal,
                    self.reads,
                    self.clock,
                    entries=entries,
                    watch=self.watch,
                )
            return self._process

    def carry_on(self, session: SessionId, *, alone: str = "") -> Carried:
        """Move a session until there is nothing to do, or its task has done its share. A start and a restart are the same call."""
        from orchestrator.turn import carry_on

        carried = carry_on(self.process, session, alone=alone)
        if carried.out:
            import_module("orchestrator.channels.outbox").post_outbox(self.process, session)
        return carried

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the threads and close the connections. Whoever still works here is not waited for; the next use begins anew."""
        with self._lock:
            made = [self.__dict__.pop(name, None) for name in ("process", "tails")]
            self._process = None
        for part in (*made, self._journal):
            if part is not None:
                part.close()
