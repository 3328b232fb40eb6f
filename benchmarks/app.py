"""The load: a scripted model that asks for one trivial tool a step, ten times, and then answers."""

from __future__ import annotations

import os

from orchestrator import Agent, App, ScriptedModel, answers, asks, tool

STEPS = int(os.environ.get("BENCH_STEPS", "10"))
SECONDS = float(os.environ.get("BENCH_MODEL_SECONDS", "0"))
PIECES = int(os.environ.get("BENCH_MODEL_PIECES", "1"))


@tool
def note(place: int) -> int:
    """Take a note.

    Args:
        place: Where.
    """
    return place + 1


script = [*(asks("note", place=place) for place in range(STEPS)), answers("That is all.")]
app = App(
    agents=[
        Agent(
            "bench",
            instructions="Take notes.",
            model=ScriptedModel(script, seconds=SECONDS, pieces=PIECES),
            tools=[note],
        )
    ]
)
