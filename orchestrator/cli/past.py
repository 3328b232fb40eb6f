"""`orchestrator journal show`: what the journal has kept of a session, and what can be told from it: attempts and times."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.cli.printed import as_json as json_of
from orchestrator.cli.printed import columns, plain, say, seconds, short
from orchestrator.cli.reach import named, reach
from orchestrator.clock import iso
from orchestrator.core.codec import Unreadable
from orchestrator.core.fact import Fact
from orchestrator.core.names import Millis, SessionId
from orchestrator.engine import Engine
from orchestrator.errors import SessionNotFound, UnreadableHistory
from orchestrator.seen import seen

PAGE = 512
ANSWERED = ("message.completed", "reasoning.completed", "actions.requested")
CLOSED = ("step.completed", "step.failed")
TURN_ENDS = ("turn.completed", "turn.failed", "turn.cancelled")


@dataclass(slots=True)
class StepTimes:
    """One step as its events tell it. Times are milliseconds since 1970, 0 for what has not happened.

    `attempts` are those that left a trace on the stream; `called` counts tool calls, `answered_ms` is when the model's answer was
    committed, `ended_ms` when the step was closed or its turn was over.
    """

    turn: str
    step: int
    model: str
    began_ms: int
    attempts: list[int] = field(default_factory=list)
    answered_ms: int = 0
    ended_ms: int = 0
    called: int = 0
    ended: str = ""

    @property
    def model_ms(self) -> int | None:
        """From the step's beginning until the model's answer was committed."""
        return self.answered_ms - self.began_ms if self.answered_ms else None

    @property
    def tools_ms(self) -> int | None:
        """From there until the step was closed, if it called tools."""
        return self.ended_ms - self.answered_ms if self.called and self.answered_ms and self.ended_ms else None

    @property
    def total_ms(self) -> int | None:
        """From its beginning to its end."""
        return self.ended_ms - self.began_ms if self.ended_ms else None

    @property
    def json(self) -> dict[str, object]:
        """As JSON."""
        return {
            "turnId": self.turn,
            "stepIndex": self.step,
            "modelId": self.model,
            "began": iso(Millis(self.began_ms)),
            "attempts": self.attempts,
            "calls": self.called,
            "modelMs": self.model_ms,
            "toolsMs": self.tools_ms,
            "totalMs": self.total_ms,
            "ended": self.ended or None,
        }


def step_times(events: Sequence[dict[str, Any]]) -> list[StepTimes]:
    """The steps of a stream, in their order. A second beginning of a step is another attempt at the same one."""
    steps: dict[tuple[str, int], StepTimes] = {}
    for event in events:
        kind, data, meta = event["type"], event.get("data") or {}, event.get("meta") or {}
        at_ms = _ms(meta.get("at"))
        if kind in TURN_ENDS:
            for cut in steps.values():
                if cut.turn == data.get("turnId") and not cut.ended_ms:
                    cut.ended_ms, cut.ended = at_ms, kind.partition(".")[2]
        if "stepIndex" not in data:
            continue
        place = (str(data.get("turnId")), int(data["stepIndex"]))
        if kind == "step.started" and place not in steps:
            steps[place] = StepTimes(*place, str(data.get("modelId", "")), at_ms)
        step = steps.get(place)
        if step is None:
            continue
        if (attempt := meta.get("attempt")) is not None and attempt not in step.attempts:
            step.attempts.append(int(attempt))
        if kind in ANSWERED:
            step.answered_ms = at_ms
        if kind == "actions.requested":
            step.called = len(data.get("actions", ()))
        if kind in CLOSED:
            step.ended_ms, step.ended = at_ms, str(data.get("finishReason") or data.get("code") or "")
    return list(steps.values())


def _ms(at: object) -> int:
    return round(datetime.fromisoformat(str(at)).timestamp() * 1000) if at else 0


def show(text: str, *, as_json: bool) -> int:
    """Facts, steps, attempts, times."""
    session = named(text)
    engine = reach()
    view = engine.reads.view(session)
    if view is None:
        raise SessionNotFound(session=session)
    one, base = seen(view), view.number("fact_base")
    steps = step_times(list(_events(engine, session)))
    facts = _facts(engine, session)
    about = {
        "sessionId": session,
        "agent": one.agent,
        "status": one.status,
        "deployment": one.deployment,
        "createdMs": one.created_ms,
        "epoch": one.epoch,
        "attempt": one.attempt,
        "faults": view.number("faults"),
        "events": one.events,
        "facts": {"kept": len(facts), "first": base},
    }
    if as_json:
        told = [{"place": base + place, **_fact_json(fact)} for place, fact in enumerate(facts)]
        say(json_of({**about, "facts": told, "steps": [step.json for step in steps]}))
        return 0
    say(f"{session}  {plain(one.agent)}, {one.status}, created {iso(Millis(one.created_ms))}")
    takers = f"{one.epoch} {'owner' if one.epoch == 1 else 'owners'} so far"
    say(
        f"{takers}, attempt {one.attempt} at what is open, {about['faults']} deaths of its own doing, {one.events} events"
    )
    say(f"\n{len(steps)} steps")
    if steps:
        head = ("turn", "step", "began", "attempts", "model", "answer", "tools", "in all", "ended")
        columns([head, *(_row(step) for step in steps)], "  ")
    say(f"\n{len(facts)} facts" + (f" (those before {base} are not kept any more)" if base else ""))
    before = 0
    rows = [("place", "at", "after", "fact", "")]
    for place, fact in enumerate(facts, base):
        rows.append((str(place), _time(fact.at), f"+{seconds(fact.at - before)}" if before else "", *_fact_words(fact)))
        before = fact.at
    columns(rows, "  ")
    return 0


def _row(step: StepTimes) -> tuple[object, ...]:
    times = [seconds(ms) if ms is not None else "-" for ms in (step.model_ms, step.tools_ms, step.total_ms)]
    attempts = ", ".join(map(str, step.attempts))
    return (step.turn, step.step, _time(step.began_ms), attempts, step.model, *times, step.ended or "open")


def _time(at_ms: int) -> str:
    return iso(Millis(at_ms)).removesuffix("Z").replace("T", " ")


def _events(engine: Engine, session: SessionId) -> Iterator[dict[str, Any]]:
    index = 0
    while lines := engine.reads.events(session, index, PAGE):
        index += len(lines)
        yield from map(json.loads, lines)


def _facts(engine: Engine, session: SessionId) -> list[Fact]:
    try:
        return engine.reads.facts(session)
    except Unreadable as newer:
        raise UnreadableHistory(session=session, reason=newer) from newer


def _fact_json(fact: Fact) -> dict[str, object]:
    return {"type": type(fact).__name__, **dataclasses.asdict(fact), "at": iso(fact.at)}


def _fact_words(fact: Fact) -> tuple[str, str]:
    """Its name, and what it says beyond its defaults."""
    said = []
    for one in dataclasses.fields(fact):
        value = getattr(fact, one.name)
        if one.name in ("at", "mark") or value == one.default or value is False or value in (None, "", ()):
            continue
        said.append(f"{one.name}={_value(value)}")
    return type(fact).__name__, short(" ".join(said), 110)


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_value, value))
    if dataclasses.is_dataclass(value):
        name = getattr(value, "id", None) or getattr(value, "call", None) or getattr(value, "request", None)
        if name:
            return str(name)
        shown = [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
        return "/".join(f"{number} {field}" for field, number in shown if isinstance(number, int) and number) or "none"
    return str(value)
