"""A session as people see it: what the journal has of it, and its state in one word."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import READS
from orchestrator.core.status import Look, Status, status
from orchestrator.journal import View


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
        hold=fields.get("hold", ""),
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
