"""Queues without exchanges: a message goes to the queue itself.

Celery binds every queue to an exchange of its own. In Redis such a binding stays for ever, and we have a queue for each deployment.
"""

from __future__ import annotations

from typing import Any

from celery.app.amqp import AMQP, Queues
from kombu import Queue


class DirectAMQP(AMQP):
    """Celery's, with queues that know no exchange: also those that `-Q` names."""

    def Queues(self, queues: Any, create_missing: bool | None = True, *_: Any, **__: Any) -> Any:  # noqa: N802  # Celery's name
        """The queues of an app."""
        direct: Any = lambda _name: None  # noqa: E731
        return Queues(queues, create_missing=create_missing is not False, autoexchange=direct)


def add_directly(queues: Any, queue: Queue) -> None:
    """Consume one queue more. `Queues.add` would bind it to the app's default exchange, and it would get the app's own tasks too."""
    dict.__setitem__(queues, queue.name, queue)
    queues.consume_from[queue.name] = queue
