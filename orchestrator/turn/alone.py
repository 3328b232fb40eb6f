"""A session that has brought workers down is carried on in a process of its own: only a death there is its own fault."""

from __future__ import annotations

import logging
import os
import subprocess
from queue import Empty

from orchestrator.clock import steady
from orchestrator.core.advance import key_of_next
from orchestrator.process.owned import DRAIN, Owned
from orchestrator.process.shared import Process

log = logging.getLogger(__name__)

ALONE_FROM = 2
"""Takeovers without progress from which a session is carried on so."""
FAULTS = 2
"""Deaths there that fail the turn."""
EX_TEMPFAIL = 75
"""The child's exit code for what is not the session's fault."""
LOOK_SECONDS = 0.1
PATIENCE = 5.0


def carry_on_alone(process: Process, owned: Owned, command: list[str]) -> None:
    """Let a child process carry an owned session on, one such session at a time in a worker. We keep its lease meanwhile."""
    process.enter(owned)
    try:
        while not process.one_alone.acquire(timeout=LOOK_SECONDS):
            if _must_end(process, owned):
                _give_back(process, owned)
                return
        try:
            _carry_on(process, owned, command)
        finally:
            process.one_alone.release()
    finally:
        process.leave(owned)


def _carry_on(process: Process, owned: Owned, command: list[str]) -> None:
    log.warning("%s: try %d, in a process of its own", owned.session, owned.attempt)
    # The token is nobody's business who can list processes.
    env = {**os.environ, **process.settings.as_environment(), "ORCHESTRATOR_TOKEN": owned.token}
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env)
    while child.poll() is None:
        if _must_end(process, owned):
            child.kill()
            child.wait()
            _give_back(process, owned)
            return
    if child.returncode != 0 and not owned.lost:
        log.error("%s: its own process ended with %d", owned.session, child.returncode)
        fault, what = child.returncode != EX_TEMPFAIL, key_of_next(owned.snapshot)
        process.repeat(
            lambda: process.journal.disown(owned.session, owned.token, fault=fault, what=what), patience=PATIENCE
        )


def _must_end(process: Process, owned: Owned) -> bool:
    """Wait a moment, and say whether this process is leaving or the session was lost."""
    owned.busy_until = steady() + owned.lease_seconds
    try:
        item = owned.mailbox.get(timeout=LOOK_SECONDS)
    except Empty:
        return process.grace_over.is_set()
    return item is DRAIN or owned.lost is not None


def _give_back(process: Process, owned: Owned) -> None:
    if not owned.lost:
        what = key_of_next(owned.snapshot)
        process.repeat(lambda: process.journal.release(owned.session, owned.token, what), patience=PATIENCE)
