"""The end of a session: what has not begun is dropped, by name, and the stream is closed."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.delivery import Head
from orchestrator.core.fact import DeliveryDropped, SessionEnding
from orchestrator.core.names import Millis
from orchestrator.core.snapshot import Snapshot

SESSION_ENDED = "session_ended"
"""Why a delivery was dropped that had come in before the end and was not begun."""


def begin(snapshot: Snapshot, fact: SessionEnding) -> Snapshot:
    """Nothing new begins, what runs is stopped, and nobody's turn is waited for any more."""
    judged = max(snapshot.judged, fact.n)
    return replace(snapshot, judged=judged, waiting=0, ending=fact.reason, pending=(), compacting=None)


def drop(head: Head, at: Millis) -> DeliveryDropped:
    """What came in before the end goes with it."""
    return DeliveryDropped(head.id, head.n, SESSION_ENDED if head.envelope.kind == "message" else "nothing_to_do", at)
