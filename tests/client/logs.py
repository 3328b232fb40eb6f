"""Streams made by hand, as a server would tell them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.client.events import Event, event

HEADERS = {"content-type": "application/x-ndjson; charset=utf-8"}
LEASE = b'{"$eve":"stream.lease-ended","version":1}\n'
USAGE = {"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 0, "cacheWriteTokens": 0}
TOTAL = {"inputTokens": 100, "outputTokens": 50, "cacheReadTokens": 0, "cacheWriteTokens": 0, "costUsd": 0.5}


class Log:
    """A stream that grows; what is added belongs to the turn that was begun last."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.turn = -1
        self.step = -1
        self.deliveries: list[str] = []

    def add(self, kind: str, data: Mapping[str, Any] | None = None, *, known: bool = True) -> Log:
        """One event. Without `known` it does not say whose it is."""
        ids = {"deliveryIds": list(self.deliveries)} if known and self.deliveries else {}
        meta = {"id": f"evt_{len(self.events):026}", "at": "2026-03-01T09:15:02.114Z", "attempt": 1, **ids}
        self.events.append({"type": kind, "data": dict(data or {}), "meta": meta})
        return self

    @property
    def place(self) -> dict[str, Any]:
        return {"turnId": f"turn_{self.turn}", "sequence": self.turn, "stepIndex": max(self.step, 0)}

    def begin(self, *deliveries: str) -> Log:
        """A turn of these messages."""
        self.turn, self.step, self.deliveries = self.turn + 1, -1, list(deliveries)
        if not self.events:
            self.add("session.started", {"runtime": {"agentId": "helper"}})
        self.add("turn.started", self.place)
        for delivery in deliveries:
            self.add("message.received", {**self.place, "message": f"said {delivery}"})
        return self

    def join(self, delivery: str) -> Log:
        """A message joins the open turn."""
        self.deliveries = [*self.deliveries, delivery]
        return self.add("message.received", {**self.place, "message": f"said {delivery}"})

    def says(self, text: str, finish: str = "stop") -> Log:
        """A step with this answer."""
        self.step += 1
        self.add("step.started", {**self.place, "modelId": "m"})
        for word in text.split():
            self.add("message.appended", {**self.place, "messageDelta": word})
        self.add("message.completed", {**self.place, "message": text, "finishReason": finish})
        return self.add("step.completed", {**self.place, "finishReason": finish, "usage": USAGE})

    def asks(self, *requests: str) -> Log:
        """The turn waits for people."""
        asked = [{"requestId": name, "kind": "tool-approval", "prompt": "May I?", "options": []} for name in requests]
        self.add("input.requested", {**self.place, "requests": asked})
        return self.parks()

    def parks(self) -> Log:
        """It says again that it waits."""
        return self.add("turn.waiting", {**self.place, "on": "input", "usage": TOTAL})

    def resolves(self, *requests: str, outcome: str = "approved") -> Log:
        """What was asked has ended."""
        ended = [{"requestId": name, "kind": "tool-approval", "outcome": outcome} for name in requests]
        return self.add("input.resolved", {**self.place, "resolutions": ended})

    def ends(self, how: str = "turn.completed", **more: Any) -> Log:
        """The turn is over."""
        self.add(how, {**self.place, **more})
        self.add("session.waiting", {"wait": "next-user-message", "continuationToken": "ses_1", "usage": TOTAL})
        self.deliveries = []
        return self

    def read(self) -> list[Event]:
        """All events, as a client has them."""
        return [event(one, index) for index, one in enumerate(self.events)]

    def lines(self) -> list[bytes]:
        """All events, as they are told."""
        return [json.dumps(one).encode() + b"\n" for one in self.events]
