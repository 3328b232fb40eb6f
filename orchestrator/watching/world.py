"""What the journal and the broker know, for a scrape. Its cost is bounded: sessions that need no worker are counted and not looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from orchestrator.journal import Reads, View
from orchestrator.journal.looking import BEAT_MS, Looking
from orchestrator.watching.metrics import Figure

LOOKED_AT = 10
"""Sessions of a shard that are looked at: those whose time comes, or came, first."""


def figures(reads: Reads, journal: Looking, broker: Looking | None, state_of: Callable[[View], str]) -> list[Figure]:
    """Sessions by state, what is due, who works, what waits in the queues (`broker`: where those can be asked). Raises `JournalAway`."""
    now_ms = reads.journal.time()
    world = journal.world(reads.journal.prefix, now_ms)
    alive = Counter(worker.label for worker in world.workers if now_ms - worker.beat_ms <= BEAT_MS)
    views = [view for view in reads.views(journal.planned(reads.journal.prefix, LOOKED_AT)) if view is not None]
    states: Counter[str] = Counter(map(state_of, views))
    states["resting"] = max(0, world.sessions - world.planned)
    states["unknown"] = max(0, world.planned - len(views))
    found = [
        Figure("orchestrator_journal_up", "Whether the journal answers.", [({}, 1)]),
        Figure(
            "orchestrator_sessions",
            "Sessions that are stored, by state. resting: no worker is needed (idle, waiting for a person, ended); unknown: not looked at.",
            [({"state": name}, count) for name, count in sorted(states.items())],
        ),
        Figure(
            "orchestrator_inbox_waiting",
            "Messages that wait in the sessions looked at.",
            [({}, sum(view.number("waiting") for view in views))],
        ),
        Figure(
            "orchestrator_sessions_planned", "Sessions that a worker must look at, now or later.", [({}, world.planned)]
        ),
        Figure("orchestrator_sessions_due", "Those whose time has come.", [({}, world.due)]),
        Figure(
            "orchestrator_oldest_due_seconds",
            "How long the first of them has been due.",
            [({}, max(0, now_ms - world.oldest_due_ms) / 1000 if world.oldest_due_ms is not None else 0)],
        ),
        Figure(
            "orchestrator_workers",
            "Workers that live, by deployment.",
            [({"deployment": label}, alive[label]) for label in sorted({*world.labels, *alive})],
        ),
    ]
    if broker is not None:
        queues = [broker.queue(label) for label in sorted(world.labels)]
        waits = [max(0, now_ms - queue.oldest_ms) / 1000 if queue.oldest_ms else 0 for queue in queues]
        found += [
            Figure(
                "orchestrator_queue_length",
                "Wakes that wait for a worker.",
                [({"deployment": queue.label}, queue.waiting) for queue in queues],
            ),
            Figure(
                "orchestrator_queue_oldest_seconds",
                "How long the first of them has waited.",
                [({"deployment": queue.label}, wait) for queue, wait in zip(queues, waits, strict=True)],
            ),
        ]
    return found
