"""Living in a Celery app that is there already."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals
from kombu import Queue

from orchestrator.agent import App
from orchestrator.config import Settings
from orchestrator.envelope import queue_name
from tasks.here import Guest
from tasks.keeper import KeeperStep, remember
from tasks.queues import add_directly
from tasks.steps import register


def install(host: Celery, app: App | None = None, settings: Settings | None = None) -> Guest:
    """Add the tasks, their queue and the keeper to the workers of `host`. None of its settings is changed.

    Its workers listen to our queue beside their own, unless `-Q` says otherwise: then name `orc.<deployment>` there. The App is
    the one that ORCHESTRATOR_APP names unless one is given. The broker is the host's unless ORCHESTRATOR_BROKER_URL is set; web
    processes must be told the same. An app of your own beside the host's is the better choice where you can have it: its
    settings are made for this work.
    """
    guest = Guest(host, app, settings)
    remember(host, guest)
    register(host, guest)
    host.steps["worker"].add(KeeperStep)

    def add_queue(instance: Any = None, **_: Any) -> None:
        # When a worker starts, and not now: the host may not have been configured yet.
        if instance is not None and instance.app is host:
            guest.load()
            add_directly(host.amqp.queues, Queue(queue_name(guest.settings.deployment)))

    signals.celeryd_init.connect(add_queue, weak=False)
    return guest
