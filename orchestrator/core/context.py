"""The context: what the model is given of the past, how it is put away and how it is made shorter."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from orchestrator.core.delivery import Head
from orchestrator.core.fact import (
    Compacted,
    CompactionBegun,
    CompactionDue,
    CompactionLeft,
    CompactionTryFailed,
    ContextCleared,
    ControlKept,
    DeliveryDropped,
    Fact,
)
from orchestrator.core.names import Millis
from orchestrator.core.snapshot import Compacting, Snapshot, Usage

NOTHING_TO_DO = "nothing_to_do"
COMPACTION_TRIES = 3
"""How often a summary is tried in all."""


def judge_control(snapshot: Snapshot, head: Head, at: Millis) -> Fact:
    """A clear or compact is done between two turns, at once or when the open one is over."""
    control: Literal["clear", "compact"] = "clear" if head.envelope.kind == "clear" else "compact"
    if snapshot.busy:
        return ControlKept(head.id, head.n, control, at)
    if not snapshot.started:
        return DeliveryDropped(head.id, head.n, NOTHING_TO_DO, at)
    if control == "clear":
        return ContextCleared(head.id, head.n, snapshot.at.gen + 1, at)
    return CompactionDue(head.id, head.n, True, at)


def next_pending(snapshot: Snapshot, at: Millis) -> Fact:
    """The control that was kept first is done now."""
    if snapshot.pending[0] == "clear":
        return ContextCleared(None, 0, snapshot.at.gen + 1, at)
    return CompactionDue(None, 0, True, at)


def keep(snapshot: Snapshot, fact: ControlKept) -> Snapshot:
    """The control is kept, once. A cancel is kept for the turn that begins next."""
    if fact.control == "cancel":
        return replace(snapshot, judged=max(snapshot.judged, fact.n), cancel_kept=snapshot.cancel_kept or fact.n)
    kept = snapshot.pending if fact.control in snapshot.pending else (*snapshot.pending, fact.control)
    return replace(snapshot, judged=max(snapshot.judged, fact.n), pending=kept)


def _taken(snapshot: Snapshot, control: str, fact: ContextCleared | CompactionDue) -> Snapshot:
    if fact.delivery is not None or not snapshot.pending or snapshot.pending[0] != control:
        return replace(snapshot, judged=max(snapshot.judged, fact.n))
    return replace(snapshot, pending=snapshot.pending[1:])


def clear(snapshot: Snapshot, fact: ContextCleared) -> Snapshot:
    """The model knows nothing of what was said."""
    return replace(_taken(snapshot, "clear", fact), context=0)


def due(snapshot: Snapshot, fact: CompactionDue) -> Snapshot:
    """The history is looked at before anything else goes on."""
    turn = snapshot.turn
    if fact.asked:
        snapshot = _taken(snapshot, "compact", fact)
    elif turn is not None:
        overflowed = turn.step if fact.overflow else turn.overflowed
        snapshot = replace(snapshot, turn=replace(turn, compacted=turn.step, overflowed=overflowed))
    return replace(snapshot, compacting=Compacting(fact.asked))


def _compacting(snapshot: Snapshot) -> Compacting:
    assert snapshot.compacting is not None, "a compaction's fact needs one that is going on"
    return snapshot.compacting


def begin(snapshot: Snapshot, _fact: CompactionBegun) -> Snapshot:
    """A summary is asked for."""
    return replace(snapshot, compacting=replace(_compacting(snapshot), begun=True))


def try_failed(snapshot: Snapshot, fact: CompactionTryFailed) -> Snapshot:
    """It is asked for again, later."""
    doing = _compacting(snapshot)
    return replace(snapshot, compacting=replace(doing, tries=doing.tries + 1, retry_at=fact.retry_at))


def finish(snapshot: Snapshot, fact: Compacted) -> Snapshot:
    """The history is shorter, and how long it is for the provider is not known any more."""
    return replace(snapshot, compacting=None, context=0, usage=snapshot.usage + fact.usage)


def leave(snapshot: Snapshot, fact: CompactionLeft) -> Snapshot:
    """The history stays as it is."""
    return replace(snapshot, compacting=None, usage=snapshot.usage + fact.usage)


def counted(usage: Usage) -> int:
    """How many tokens the context has after an answer, as the provider counts; 0 if it did not say."""
    return usage.input + usage.output if usage.input and not usage.unmeasured else 0
