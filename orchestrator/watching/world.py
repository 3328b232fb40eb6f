"""What the journal and the broker know, for a scrape. Its cost is bounded: sessions that need no worker are counted and not looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing

from orchestrator import world
from orchestrator.config import Settings
from orchestrator.errors import JournalAway
from orchestrator.journal import Reads
from orchestrator.journal.looking import BEAT_MS, Looking
from orchestrator.seen import seen
from orchestrator.watching.metrics import Figure, text

LOOKED_AT = 10
"""Sessions of a shard that are looked at: those whose time comes, or came, first."""
SOON_MS = 60_000
"""Who works or is waited for is looked at again within so long, beyond its lease. All others rest: an idle session has its own
end ahead, and one that waits for a person the end of that."""


def scrape(settings: Settings, reads: Callable[[], Reads], label: str) -> bytes:
    """The answer to a scrape: what this process counts, and what is known of the world. With the journal away it says that."""
    try:
        with ExitStack() as stack:
            journal = stack.enter_context(closing(Looking(world.journal_url(settings))))
            broker = None
            if (url := world.broker_url(settings)).startswith(("redis:", "rediss:")):
                broker = stack.enter_context(closing(Looking(url)))
            found = figures(reads(), journal, broker, label)
    except JournalAway:
        found = [Figure("orchestrator_journal_up", "Whether the journal answers.", [({}, 0)])]
    return text(found)


def figures(reads: Reads, journal: Looking, broker: Looking | None, label: str) -> list[Figure]:
    """Sessions by state, what is due, who works, what waits in the queues (`broker`: where those can be asked). Of a
    deployment that has no worker yet, only our own `label` is known. Raises `JournalAway`."""
    now_ms = reads.journal.time()
    known = journal.world(reads.journal.prefix, now_ms)
    alive = Counter(worker.label for worker in known.workers if now_ms - worker.beat_ms <= BEAT_MS)
    soon, sessions = journal.soon(reads.journal.prefix, now_ms + reads.journal.lease_ms + SOON_MS, LOOKED_AT)
    views = [view for view in reads.views(sessions) if view is not None]
    states: Counter[str] = Counter(seen(view).status for view in views)
    states["resting"] = max(0, known.sessions - soon)
    states["unknown"] = max(0, soon - len(views))
    labels = sorted({label, *known.labels, *alive})
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
            "orchestrator_sessions_due",
            "Sessions whose time has come, and that no worker has taken yet.",
            [({}, known.due)],
        ),
        Figure(
            "orchestrator_oldest_due_seconds",
            "How long the first of them has been due.",
            [({}, max(0, now_ms - known.oldest_due_ms) / 1000 if known.oldest_due_ms is not None else 0)],
        ),
        Figure(
            "orchestrator_workers",
            "Workers that live, by deployment.",
            [({"deployment": label}, alive[label]) for label in labels],
        ),
    ]
    if broker is not None:
        queues = [broker.queue(label) for label in labels]
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
