"""Wakes for a broker that is not the journal's own server: published by Celery, after the script."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.pools import ProducerPool

from orchestrator.core.names import SessionId
from orchestrator.envelope import queue_name
from orchestrator.wake import OtherBroker

log = logging.getLogger(__name__)

CALL_SECONDS = 0.6
"""How long one call to the broker may take. Three of them make a publish: a slot of the pool, a connection, the message."""
REST_SECONDS = 1.0
"""How long a broker that failed is not asked again: the keeper rings anyway."""


class PublishedWake:
    """Publishes within two seconds or not at all. What was not published is left to the keeper."""

    atomic = False

    def __init__(self, app: Celery, *, most: int = 32) -> None:
        self._app = app
        self._most = most
        self._rest_until = 0.0

    def arguments(self, task: str) -> Mapping[str, object]:
        """The scripts push nothing."""
        return OtherBroker().arguments(task)

    @cached_property
    def _producers(self) -> Any:
        # Connections of their own, with shorter patience than a worker's: a web request waits for us.
        options = dict(self._app.conf.broker_transport_options or {})
        url = self._app.connection_for_write().as_uri(include_password=True)
        if url.startswith(("redis", "rediss", "sentinel")):
            options |= {"socket_timeout": CALL_SECONDS, "socket_connect_timeout": CALL_SECONDS}
        elif url.startswith(("amqp", "pyamqp")):
            options |= {"read_timeout": CALL_SECONDS, "write_timeout": CALL_SECONDS}
        connection = self._app.connection_for_write(connect_timeout=CALL_SECONDS, transport_options=options)
        return ProducerPool(connection.Pool(self._most), limit=self._most)

    def publish(self, task: str, label: str, session: SessionId, key: str) -> None:
        """Announce that a session wants to be looked at. Never raises."""
        if time.monotonic() < self._rest_until:
            return
        about = f"{session}/{key}"
        try:
            with self._producers.acquire(block=True, timeout=CALL_SECONDS) as producer:
                ring: Any = self._app.tasks[task].apply_async
                ring(
                    (session, key),
                    task_id=about,
                    argsrepr=about,
                    kwargsrepr="{}",
                    # No exchange: a message to the queue itself, so that no binding is left behind for it.
                    queue=Queue(queue_name(label)),
                    producer=producer,
                    retry=False,
                )
        except Exception as away:
            self._rest_until = time.monotonic() + REST_SECONDS
            log.warning("the broker did not take the wake of %s, the keeper will ring: %s", session, away)
