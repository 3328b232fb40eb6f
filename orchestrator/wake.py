"""Wakes that scripts push themselves: "stored" and "announced" are one event."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.names import SessionId
from orchestrator.envelope import QUEUE_PREFIX, template


class AtomicWake:
    """For a broker on the journal's own server: the same or another database of it, with or without a key prefix."""

    atomic = True

    def __init__(self, *, prefix: str = "orc", broker_db: int = 0, journal_db: int = 0, key_prefix: str = "") -> None:
        self._shared = {
            "wakes": f"{prefix}:wakes",
            "queue": key_prefix + QUEUE_PREFIX,
            "broker_db": broker_db,
            "journal_db": journal_db,
        }

    def arguments(self, task: str) -> Mapping[str, object]:
        """What the scripts need to push a wake that runs `task`."""
        return {**self._shared, "template": template(task)}

    def publish(self, task: str, label: str, session: SessionId, key: str) -> None:
        """Never needed: the script has done it."""


class OtherBroker:
    """The script arguments where the caller publishes: none of them is used."""

    atomic = False

    def arguments(self, task: str) -> Mapping[str, object]:  # noqa: ARG002  # the port has it
        """An empty template tells the scripts that the wake is published elsewhere."""
        return {"template": "", "wakes": "", "queue": "", "broker_db": 0, "journal_db": 0}
