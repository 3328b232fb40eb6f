"""What the keeper does itself: old deltas become stubs, sessions whose time is over are erased.

Deltas of closed steps are pruned ten minutes after their step was closed. A reader that comes later gets the text from
`message.completed`; the deltas keep their index, id and coordinates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from orchestrator.core.names import SessionId
from orchestrator.ids import ulid_ms
from orchestrator.journal.client import spoken
from orchestrator.journal.journal import Journal
from orchestrator.journal.stubs import stub

PAGE = 512
DELTAS = (b'{"type":"message.appended"', b'{"type":"reasoning.appended"')
CLOSES_STEP = frozenset({"step.completed", "step.failed"})
CLOSES_TURN = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})
CLOSES = tuple(f'{{"type":"{name}"'.encode() for name in (*CLOSES_STEP, *CLOSES_TURN, "step.superseded"))

Place = tuple[object, object]
Stub = tuple[int, str]


@dataclass(slots=True)
class _Look:
    """What one pass over a stream has found: deltas whose step is still open, and by when which may go."""

    old_ms: int
    open: dict[Place, list[Stub]] = field(default_factory=dict)
    ready: list[Stub] = field(default_factory=list)
    young: list[tuple[int, int]] = field(default_factory=list)
    """The index and the closing time of deltas that are closed, but not yet for long enough."""

    def delta(self, index: int, line: bytes) -> None:
        data = json.loads(line)["data"]
        short = stub(line)
        assert short is not None
        self.open.setdefault((data["turnId"], data["stepIndex"]), []).append((index, short))

    def closing(self, line: bytes) -> None:
        event = json.loads(line)
        data, closed_ms = event["data"], ulid_ms(event["meta"]["id"][4:])
        if event["type"] == "step.superseded":
            self._close_range(data, closed_ms)
            return
        for place in list(self.open):
            same_step = event["type"] in CLOSES_TURN or place[1] == data["stepIndex"]
            if place[0] == data["turnId"] and same_step:
                self._settle(self.open.pop(place), closed_ms)

    def _close_range(self, data: Any, closed_ms: int) -> None:
        first, last = int(data["from"]), int(data["to"])
        for place, deltas in list(self.open.items()):
            self._settle([one for one in deltas if first <= one[0] <= last], closed_ms)
            self.open[place] = [one for one in deltas if not first <= one[0] <= last]

    def _settle(self, deltas: list[Stub], closed_ms: int) -> None:
        if closed_ms <= self.old_ms:
            self.ready += deltas
        else:
            self.young += [(index, closed_ms) for index, _ in deltas]

    def left(self) -> Iterator[int]:
        yield from (index for index, _ in self.young)
        yield from (deltas[0][0] for deltas in self.open.values() if deltas)


def tidy(journal: Journal, session: SessionId, now_ms: int) -> int:
    """Erase the session if its time has come, or go on with an erasure; else prune what may be pruned, and say when to look again.
    Returns how many deltas became stubs. Safe to repeat."""
    keys = journal.keys(session)
    with spoken():
        fields = cast("list[bytes | None]", journal.client.hmget(keys.own, "pruned", "events", "erase_at"))
    if fields[1] is None:
        journal.prune(session, 0, 0, [])
        return 0
    if fields[2] is not None and int(fields[2]) <= now_ms:
        while not journal.erase(session):
            pass
        return 0
    index, events = int(fields[0] or 0), int(fields[1])
    look, replaced = _Look(now_ms - journal.tidy_ms), 0
    while index < events:
        with spoken():
            lines = cast("list[bytes]", journal.client.lrange(keys.evt, index, min(index + PAGE, events) - 1))
        if not lines:
            break
        for line in lines:
            if line.startswith(DELTAS):
                look.delta(index, line)
            elif line.startswith(CLOSES):
                look.closing(line)
            index += 1
        while len(look.ready) >= PAGE:
            page, look.ready = look.ready[:PAGE], look.ready[PAGE:]
            replaced += journal.prune(session, int(fields[0] or 0), now_ms, page)
    upto = min(look.left(), default=index)
    again_ms = min((closed_ms for _, closed_ms in look.young), default=now_ms if upto < index else 0)
    again_ms = again_ms + journal.tidy_ms if again_ms else 0
    return replaced + journal.prune(session, upto, again_ms, look.ready, seen=index)
