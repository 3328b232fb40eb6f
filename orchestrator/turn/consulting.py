"""Functions of the user's own, asked all at once, for so long and no longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.clock import steady
from orchestrator.perform import Judged, Run, judge
from orchestrator.turn.hands import Hands

READY_SECONDS = 30.0
TIMED_OUT = "it took too long"


def ask_all(hands: Hands, questions: Mapping[str, tuple[Any, object]], seconds: float) -> dict[str, Judged] | None:
    """What the functions said to what they were given, by name. None: what came in has interrupted it."""
    process, run = hands.process, object()
    until = steady() + seconds
    hands.owned.busy_until = until + READY_SECONDS
    running: dict[str, Run] = {
        name: judge(fn, given, name, hands.owned.mailbox, process.loops, process.threads, run)
        for name, (fn, given) in questions.items()
    }
    heard: dict[str, Judged] = {}
    try:
        while len(heard) < len(questions):
            item = hands.hear(max(until - steady(), 0.001))
            match item:
                case Judged(run=ran, about=about) if ran is run:
                    heard[about] = item
                case _ if hands.interrupted():
                    return None
                case _ if steady() >= until:
                    late = {name: Judged(run, name, broken=TIMED_OUT) for name in questions if name not in heard}
                    return heard | late
        return heard
    finally:
        for one in running.values():
            if not one.ended.is_set():
                one.cancel()
