"""The keeper as a part of a Celery worker: started after the pool, fed with what Celery knows, ended with the worker."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from celery import bootsteps, signals
from celery.exceptions import WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from orchestrator.core.names import SessionId
from orchestrator.envelope import TASKS, queue_name
from orchestrator.keeper import Keeper, Owner
from orchestrator.process.shared import owner_prefix, worker_id
from orchestrator.watching import watch
from orchestrator.watching.serving import serve
from tasks.ending import Ending, end_child
from tasks.here import Here

log = logging.getLogger(__name__)

EX_TEMPFAIL = 75

_keeper: Keeper | None = None


class Sessions(Request):
    """A task of ours in a worker: when its process is lost, the keeper hears of it."""

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Celery's own, and the keeper is told."""
        lost = isinstance(getattr(exc_info.exception, "exc", exc_info.exception), WorkerLostError)
        if lost and self.worker_pid and _keeper is not None:
            _keeper.lost(session_of(self.id), owner_prefix(worker_id(), int(self.worker_pid)))
        super().on_failure(exc_info, send_failed_event, return_ok)


def session_of(task_id: str) -> SessionId:
    """The session a task is for: its id is `<session>/<what for>`."""
    return SessionId(task_id.partition("/")[0])


class Children:
    """The children of a prefork worker, and which sessions they are known to carry."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._carry: dict[int, set[SessionId]] = {}

    def pids(self) -> Sequence[int]:
        """The living ones; none in any other pool."""
        if not self._worker.pool_cls.__module__.endswith("prefork"):
            return ()
        pool = getattr(self._worker.pool, "_pool", None)
        return [child.pid for child in list(getattr(pool, "_pool", ())) if child.pid]

    def busy(self) -> Iterable[int]:
        """Those that run a task."""
        living = set(self.pids())
        return {request.worker_pid for request in _active()} & living

    def dead(self) -> Iterator[Owner]:
        """What those carried that have died since the last look."""
        if not self._worker.pool_cls.__module__.endswith("prefork"):
            return
        now: dict[int, set[SessionId]] = {}
        for request in _active():
            if request.worker_pid and request.name in TASKS:
                now.setdefault(request.worker_pid, set()).add(session_of(request.id))
        # Celery forgets a request some time after its process has died; we may only see it in the last look.
        for pid in now.keys() | self._carry.keys():
            if not _lives(pid):
                sessions = now.pop(pid, set()) | self._carry.get(pid, set())
                yield from ((session, owner_prefix(worker_id(), pid)) for session in sessions)
        self._carry = now


def _active() -> Iterable[Any]:
    for _ in range(5):
        try:
            return tuple(state.active_requests)
        except RuntimeError:  # it changed while we looked: it belongs to the main thread
            continue
    return ()


def _lives(pid: int) -> bool:
    try:
        # Looked at and not reaped: that is the pool's.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


class ConsumerEar:
    """The consumer of a worker, for the keeper."""

    def __init__(self, worker: Any, queue: str, ending: Ending) -> None:
        self._worker, self._queue, self._ending = worker, queue, ending

    def listens(self) -> bool:
        """Whether it consumes our queue and has a free slot."""
        consumer = getattr(self._worker, "consumer", None)
        tasks = getattr(consumer, "task_consumer", None)
        if tasks is None or self._ending.begun or not tasks.consuming_from(self._queue):
            return False
        return bool(len(state.reserved_requests) < self._worker.concurrency)

    def heard(self) -> int:
        """How many messages it has taken so far."""
        return int(state.all_total_count[0])

    def reconnect(self) -> None:
        """Let its loop meet a broken connection: what follows is Celery's own way back."""

        def broken() -> None:
            raise ConnectionResetError("nothing was heard on this connection")

        if self._worker.consumer.hub is not None:
            self._worker.consumer.hub.call_soon(broken)

    def give_up(self) -> None:
        """Drain, then end with a code that asks for another start."""
        vars(state)["should_stop"] = EX_TEMPFAIL
        self._ending.begin(EX_TEMPFAIL)


class KeeperStep(bootsteps.StartStopStep):
    """Keeps sessions going as long as this worker runs."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._here = here_of(worker.app)
        settings = self._here.settings
        self._main = os.getpid()
        self._children = Children(worker)
        self._worker = worker
        self.ending = Ending(
            settings.drain_seconds,
            drain=self._drain,
            goodbye=self._goodbye,
            children=self._children.pids,
            busy_children=self._children.busy,
            nudge=self._nudge,
        )
        queue = queue_name(settings.deployment)
        self.keeper = Keeper(
            lambda: self._here.engine().journal,
            label=settings.deployment,
            worker=worker_id(),
            digest=digest_of(self._here),
            # A worker that was told to consume other queues works for nobody here.
            beats=queue in worker.app.amqp.queues.consume_from,
            rung=watch(settings).rung,
            dead=self._children.dead,
            ear=ConsumerEar(worker, queue, self.ending),
            broker_url=self._here.broker_url(),
            key_prefix=self._here.key_prefix,
        )
        # Celery's signals and not our methods alone: a solo pool is inside a task when the signal to end comes.
        signals.worker_shutting_down.connect(self._told_to_end, weak=False)
        signals.worker_process_init.connect(self._in_child, weak=False)
        signals.worker_shutdown.connect(self._has_ended, weak=False)

    def start(self, worker: Any) -> None:  # noqa: ARG002
        """After the pool has forked."""
        global _keeper
        _keeper = self.keeper
        self.keeper.start()
        # Behind the fork: the pool's children have it not.
        self._scraped = serve(self._here.settings)

    def stop(self, worker: Any) -> None:  # noqa: ARG002
        """Before the pool waits for its tasks: also where nobody sent a signal."""
        self.ending.begin()

    def terminate(self, worker: Any) -> None:  # noqa: ARG002
        """A cold end waits for nothing."""
        self._goodbye()

    def _told_to_end(self, **_: Any) -> None:
        self.ending.begin()

    def _has_ended(self, **_: Any) -> None:
        self._goodbye()

    def _in_child(self, **_: Any) -> None:
        if os.getpid() != self._main:
            # With its first task: the pool sets its own handlers after this.
            signals.task_prerun.connect(self._in_child_at_work, weak=False)

    def _in_child_at_work(self, **_: Any) -> None:
        signals.task_prerun.disconnect(self._in_child_at_work)
        end_child(self._here.settings.drain_seconds, self._drain)

    def _goodbye(self) -> None:
        if os.getpid() == self._main:
            self.keeper.stop()

    def _nudge(self) -> None:
        hub = getattr(self._worker.consumer, "hub", None)
        if hub is not None:  # its loop sleeps up to a second, and would take messages meanwhile
            hub.call_soon(lambda: None)

    def _drain(self, grace_seconds: float) -> bool:
        if not self._here.has_worked():
            return False
        process = self._here.engine().process
        process.drain(grace_seconds)
        return process.hard_exit_needed


def digest_of(here: Here) -> str:
    """Which code this deployment runs, for people."""
    from hashlib import sha256

    digests = "".join(agent.digest for agent in here.load().agents)
    return sha256(digests.encode()).hexdigest()[:16]


_guests: dict[int, Here] = {}


def here_of(app: Any) -> Here:
    """Our side of a Celery app: our own one's, or that of a host."""
    return _guests.get(id(app)) or cast(Here, app.here)


def remember(app: Any, here: Here) -> None:
    """Whose engine the workers of a host's app use."""
    _guests[id(app)] = here
