"""A wake: ask for the session, drive it while it is ours, and survive losing it."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import orchestrator.ids as ids
from orchestrator.clock import steady
from orchestrator.core import codec
from orchestrator.core.advance import key_of_next
from orchestrator.core.delivery import Delivery, Envelope
from orchestrator.core.names import SessionId, Token
from orchestrator.errors import JournalAway, JournalFull, OrchestratorError, UnreadableHistory
from orchestrator.journal import Behind, Granted, Refused
from orchestrator.process.owned import Owned
from orchestrator.process.shared import Process
from orchestrator.turn.alone import ALONE_FROM, FAULTS, carry_on_alone
from orchestrator.turn.driver import Driver, Left
from orchestrator.turn.hands import GiveBack, LostOwnership, Rewound
from orchestrator.watching import Drive

log = logging.getLogger(__name__)

OWN_PATIENCE = 10.0
PATIENCE = 5.0
How = Literal["gone", "ended", "not_yours", "too_new", "leased", "later", "idle", "stale"]


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of a wake: why the session was not ours, or how it was left, how many steps were closed, and whether its outbox
    has something to post."""

    how: How | Left | Literal["away", "draining", "alone", "given_back", "superseded", "unreadable"]
    steps: int = 0
    out: bool = False


def carry_on(process: Process, session: SessionId, *, alone: str = "") -> Carried:
    """Move the session until there is nothing to do, or its task has done its share.

    `alone` is a token that a parent process was granted for this session: it is carried on here because it has brought
    workers down before.
    """
    lost_events = 0
    instead = ""
    child = bool(alone)
    try:
        token = Token(alone) if child else process.new_token()
        while True:
            asked_at = steady()
            answer = _ask(process, session, token, instead=instead, child=child)
            if isinstance(answer, Refused):
                if answer.why == "stale":
                    # We asked just now, so it is the clock that was set: the next try must not be refused again.
                    process.clock.look()
                _report_loss(process, session, lost_events)
                return Carried(answer.why, out=answer.out > 0)
            process.clock.heard(answer.at, asked_at)
            owned = Owned(session, token, answer, process.settings.lease_seconds, asked_at, process.clock.now)
            left = _drive(process, owned, lost_events, child=child)
            if left is not None:
                return left
            lost_events, instead = max(lost_events, owned.position.events), token
            token = process.new_token()
    except codec.Unreadable as broken:
        log.error("%s: what is stored cannot be read: %s", session, broken)
        return Carried("unreadable")
    except JournalAway as away:
        log.warning("%s: left for later, the journal does not answer: %s", session, away)
        return Carried("away")


def _drive(process: Process, owned: Owned, lost_events: int, *, child: bool) -> Carried | None:
    """Drive a session that is ours. None: the store has lost its tail, and it has to be asked for again."""
    session = owned.session
    if process.draining.is_set():
        _give_back(process, owned, lost_events)
        return Carried("draining")
    if owned.granted.attempt >= ALONE_FROM and owned.granted.faults < FAULTS and not child:
        command = process.alone_command(session)
        if command is not None:
            carry_on_alone(process, owned, command)
            return Carried("alone")
    with process.watch.drive(owned) as watch:
        return _drive_watched(process, owned, lost_events, watch)


def _drive_watched(process: Process, owned: Owned, lost_events: int, watch: Drive) -> Carried | None:
    session = owned.session
    driver = Driver(process, owned, lost_events, watch)
    process.enter(owned)
    try:
        left = driver.run()
        return Carried(left, driver.steps, driver.has_posts)
    except Rewound as rewound:
        log.warning(
            "%s: the store has lost its tail: %d events are left of %d",
            session,
            rewound.behind.events,
            owned.position.events,
        )
        process.histories.clear()
        return None
    except LostOwnership:
        _report_loss(process, session, max(lost_events, _beyond_the_store(process, owned)))
        return Carried("superseded", driver.steps)
    except UnreadableHistory as broken:
        log.error("%s", broken)
        return Carried(driver.leave_for_newer(), driver.steps)
    except GiveBack:
        _give_back(process, owned, max(lost_events, _beyond_the_store(process, owned)))
        return Carried("given_back", driver.steps)
    except (JournalAway, JournalFull):
        raise
    except Exception:
        if owned.granted.attempt >= ALONE_FROM and not owned.lost:
            # No outage and no death, and it keeps coming back: the next try would end the same way.
            with suppress(JournalAway):
                what = key_of_next(owned.snapshot)
                process.journal.disown(session, owned.token, fault=True, what=what)
        raise
    finally:
        process.leave(owned)


def _beyond_the_store(process: Process, owned: Owned) -> int:
    """How many events we have seen, if the store has fewer: whoever owns the session next may not know that it lost some."""
    if isinstance(owned.lost, Behind):
        return owned.position.events
    with suppress(JournalAway):
        tail = process.reads.tail(owned.session)
        if tail is not None and tail < owned.position.events:
            return owned.position.events
    return 0


def _ask(process: Process, session: SessionId, token: Token, *, instead: str, child: bool) -> Granted | Refused:
    """`own`, until there is an answer: a repeat with the same token is the same question."""
    made = process.clock.now()
    alone = child or not process.one_alone.locked()
    deployment = process.settings.deployment

    def own() -> Granted | Refused:
        return process.journal.own(
            session, token, made, deployment=deployment, alone=alone, instead=instead, lost=bool(instead)
        )

    return process.repeat(own, patience=OWN_PATIENCE)


def _give_back(process: Process, owned: Owned, lost_events: int) -> None:
    _report_loss(process, owned.session, lost_events)
    what = key_of_next(owned.snapshot)
    with suppress(JournalAway):  # the lease runs out by itself
        process.repeat(lambda: process.journal.release(owned.session, owned.token, what), patience=PATIENCE)


def _report_loss(process: Process, session: SessionId, events: int) -> None:
    """Another goes on with a session whose stream we have seen `events` long: let it name what was lost."""
    if not events:
        return
    at = process.clock.now()
    seen = Delivery(ids.new_delivery(at), Envelope("tail_seen", guard=str(events), at=at))
    try:
        process.repeat(lambda: process.journal.deliver(session, seen), patience=OWN_PATIENCE)
    except OrchestratorError as refused:
        log.warning("%s: nobody could be told that it was %d events long: %s", session, events, refused)
