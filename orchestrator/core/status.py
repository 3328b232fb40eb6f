"""What people see of a session, by one function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal[
    "ended",
    "ending",
    "running",
    "interrupted",
    "waiting_for_input",
    "waiting_for_tasks",
    "waiting_for_timer",
    "needs_newer_worker",
    "queued",
    "idle",
]


@dataclass(frozen=True, slots=True)
class Look:
    """The plain fields a status depends on. `newest_reads` is the highest codec version any live worker reads (0: unknown)."""

    life: str
    owned: bool
    lease_ms: int
    now_ms: int
    work: bool
    head_above_judged: bool
    next_timer: int
    hold: str = ""
    reads: int = 0
    newest_reads: int = 0


def status(look: Look) -> Status:
    """One word for a session's state."""
    if look.life == "ended":
        return "ended"
    if look.life == "ending":
        return "ending"
    if look.owned:
        return "running" if look.lease_ms > look.now_ms else "interrupted"
    if look.newest_reads and look.reads > look.newest_reads:
        return "needs_newer_worker"
    if look.work or look.head_above_judged:
        return "queued"
    if look.hold == "input":
        return "waiting_for_input"
    if look.hold == "tasks":
        return "waiting_for_tasks"
    if look.next_timer:
        return "waiting_for_timer" if look.next_timer > look.now_ms else "queued"
    return "idle"
