"""Our Celery app: configured late, from celeryconfig.py and the environment; its workers run lean by the plain command."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from celery import Celery, _find_option_with_arg, signals
from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning
from kombu import Queue

from orchestrator.config import Settings, from_environment
from orchestrator.envelope import queue_name
from orchestrator.errors import JournalAway, OrchestratorError
from orchestrator.process.shared import worker_id
from orchestrator.watching import watch
from orchestrator.watching.serving import together
from tasks.ending import let_a_second_signal_kill
from tasks.here import Here
from tasks.keeper import Children, KeeperStep

THREADS = 32


class LeanWorker(Worker):
    """Celery's worker without gossip and mingle, with threads unless another pool is asked for."""

    def __init__(self, app: Any = None, hostname: Any = None, **options: Any) -> None:
        options.update(without_gossip=True, without_mingle=True)
        events = options.get("task_events")
        # Only who watches tasks (-E) needs to hear that a worker is alive; everybody else asks the journal.
        options["without_heartbeat"] = not (self.app.conf.worker_send_task_events if events is None else events)
        if asked_for_prefork(sys.argv):
            # Celery cannot tell its default from our wish: it has put `worker_pool` in its place.
            options["pool"] = "prefork"
        elif not options.get("concurrency") and pool_name(options.get("pool")) == "thread":
            options["concurrency"] = THREADS
        if pool_name(options.get("pool")) == "solo":
            options["concurrency"] = 1  # it runs one at a time, so it must not take more
        super().__init__(app, hostname, **options)

    def on_before_init(self, quiet: bool = False, **options: Any) -> None:
        """Load the App and look at the journal, so that what cannot work says so at once, in one line."""
        try:
            self.app.here.load()
            prepare_to_be_watched(self.app.here.settings, prefork=pool_name(options.get("pool")) == "prefork")
            self.app.use_queue()
            self.app.here.warm()
        except JournalAway:
            pass  # the keeper and every task try again
        except OrchestratorError as wrong:
            print(wrong, file=sys.stderr)
            sys.exit(2)
        # It warns root of pickled messages, and we accept none.
        warnings.filterwarnings("ignore", category=SecurityWarning)
        super().on_before_init(quiet=quiet, **options)

    def install_platform_tweaks(self, worker: Any) -> None:
        """Celery's signals, and ours around them."""
        super().install_platform_tweaks(worker)
        let_a_second_signal_kill(Children(worker).pids)


def prepare_to_be_watched(settings: Settings, *, prefork: bool) -> None:
    """Before anything is counted, and before Celery sets up its logs."""
    main, folder = os.getpid(), ExitStack()
    folder.enter_context(together(settings, os.environ, many=prefork))
    atexit.register(lambda: folder.close() if os.getpid() == main else None)
    watch(settings)
    if settings.log == "json":
        always = {"deployment": settings.deployment, "worker": worker_id()}

        def dress(logger: logging.Logger, **_: Any) -> None:
            import_module("orchestrator.watching.logs").dress(logger, always)

        signals.after_setup_logger.connect(dress, weak=False)
        signals.after_setup_task_logger.connect(dress, weak=False)


def pool_name(pool: Any) -> str:
    """Of a pool as Celery hands it around: a class, a name or nothing for the default."""
    if pool is None:
        return "thread"
    return (pool if isinstance(pool, str) else str(pool.__module__)).rpartition(".")[2].removesuffix("s")


def asked_for_prefork(argv: list[str]) -> bool:
    """Whether the command line says so."""
    try:
        return bool(_find_option_with_arg(argv, ["-P"], ["--pool"]) == "prefork")  # type: ignore[arg-type]  # it is a list
    except KeyError:
        return False


class Orchestrator(Celery):
    """Celery whose broker is the one that our settings name, whatever else the environment says about Celery."""

    amqp_cls = "tasks.queues:DirectAMQP"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.here = Here(self)
        self.on_after_configure.connect(self._configured, weak=False)
        self.steps["worker"].add(KeeperStep)

    def _configured(self, **_: Any) -> None:
        broker = from_environment().broker_url
        if broker and not broker.startswith(("redis", "rediss", "valkey", "sentinel", "local:")):
            self.conf.broker_transport_options = {}
        self.use_queue()

    def use_queue(self) -> None:
        """Listen to the queue of our deployment, and to no other."""
        queue = queue_name(self.here.settings.deployment)
        self.conf.update(task_default_queue=queue, task_queues=[Queue(queue)])
        self.amqp.__dict__.pop("queues", None)

    def connection_for_read(self, url: Any = None, **options: Any) -> Any:
        """A connection to our broker."""
        return super().connection_for_read(url or self.here.broker_url(), **options)

    def connection_for_write(self, url: Any = None, **options: Any) -> Any:
        """A connection to our broker."""
        return super().connection_for_write(url or self.here.broker_url(), **options)

    @property
    def Worker(self) -> Any:  # noqa: N802  # Celery's name
        """The worker that `celery worker` starts."""
        return self.subclass_with_self(LeanWorker, name="Worker")
