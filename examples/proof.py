"""What the demo proves: the record of the calls themselves, compared with what the journal says was committed.

A record has a line when a call starts and one when it ends; the journal has a time at which its result was committed. So a start after
that time, or the same work under two keys, would show.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

CLOCK_SECONDS = 0.1
"""How far the journal's times and those of the record may lie apart; a repeated call starts a whole lease later."""
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the record. `key` ends with the step (a model call) or with the call id (a tool call)."""

    at: float
    pid: int
    what: str
    key: str
    asked: str = ""

    @property
    def started(self) -> bool:
        """Whether it tells of a start."""
        return self.what.endswith("started")

    @property
    def tool(self) -> bool:
        """Whether it tells of a tool call."""
        return self.what.startswith("tool")

    @property
    def step(self) -> int:
        """The step it belongs to."""
        last = self.key.rpartition("/")[2]
        return int(last.split("_")[2] if self.tool else last)


def read(log: Path, session: str = "") -> list[Note]:
    """The record so far, of one session if you like. A line that is being written is not there yet."""
    if not log.exists():
        return []
    whole = log.read_text().rpartition("\n")[0]
    notes = (_note(json.loads(line)) for line in whole.splitlines())
    return [note for note in notes if note.key.startswith(session)]


def _note(line: Mapping[str, Any]) -> Note:
    asked = f"{line['tool']} {json.dumps(line['arguments'], sort_keys=True)}" if "tool" in line else ""
    return Note(line["at"], line["pid"], line["what"], line["key"], asked)


def unfinished(notes: Iterable[Note]) -> list[Note]:
    """The starts of tool calls that have not returned."""
    open_calls: dict[str, Note] = {}
    for note in notes:
        if note.tool:
            if note.started:
                open_calls[note.key] = note
            else:
                open_calls.pop(note.key, None)
    return list(open_calls.values())


def committed(events: Iterable[Event]) -> dict[str, float]:
    """When the journal has committed what, in seconds, by the last part of the key: a step's answer, a call's result."""
    times: dict[str, float] = {}
    for event in events:
        data, at = event["data"], datetime.fromisoformat(event["meta"]["at"]).timestamp()
        match event["type"]:
            case "actions.requested":
                times[str(data["stepIndex"])] = at
            case "action.result":
                times[data["result"]["callId"]] = at
            case "step.completed":
                times.setdefault(str(data["stepIndex"]), at)
    return times


def violations(notes: Sequence[Note], events: Sequence[Event]) -> list[str]:
    """What should not have happened."""
    wrong = []
    times = committed(events)
    for what in ("step.completed", "action.result"):
        told = [
            event["data"]["result"]["callId"] if what == "action.result" else event["data"]["stepIndex"]
            for event in events
            if event["type"] == what
        ]
        wrong += [f"the stream tells {what} of {one} twice" for one in sorted(set(told)) if told.count(one) > 1]
    for note in notes:
        at = times.get(note.key.rpartition("/")[2])
        if at is None:
            wrong.append(f"{note.key} ran, and the journal has no result of it")
        elif note.started and note.at > at + CLOCK_SECONDS:
            wrong.append(f"{note.key} was started again {note.at - at:.2f} s after its result was committed")
    keys: dict[tuple[int, str], set[str]] = {}
    for note in notes:
        if note.tool:
            keys.setdefault((note.step, note.asked), set()).add(note.key)
    wrong += [f"{asked} ran under {len(found)} keys" for (_, asked), found in keys.items() if len(found) > 1]
    started = {note.key.rpartition("/")[2] for note in notes if note.started}
    wrong += [f"the journal has a result of {name}, which never ran" for name in times if name not in started]
    return list(dict.fromkeys(wrong))


def table(notes: Sequence[Note], events: Sequence[Event], workers: Mapping[int, str]) -> str:
    """A line for each step: who worked on it, and how often each call was started and how often it was committed."""
    head = ("step", "attempts", "workers", "model calls", "committed", "tool calls", "committed", "run again")
    rows = [head]
    for step in sorted({note.step for note in notes}):
        ours = [note for note in notes if note.step == step]
        told = [event for event in events if event["data"].get("stepIndex") == step]
        starts = [note for note in ours if note.started]
        tools = [note for note in starts if note.tool]
        results = sum(event["type"] == "action.result" for event in told)
        rows.append(
            (
                str(step),
                ", ".join(sorted({str(event["meta"].get("attempt", 1)) for event in told})),
                ", ".join(dict.fromkeys(workers.get(note.pid, str(note.pid)) for note in ours)),
                str(len(starts) - len(tools)),
                str(sum(event["type"] == "step.completed" for event in told)),
                str(len(tools)),
                str(results),
                str(len(starts) - len({note.key for note in starts})),
            )
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
