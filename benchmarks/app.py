"""The load: a scripted model that asks for one trivial tool a step, ten times, and then answers."""

from __future__ import annotations

import os
import time

from orchestrator import Agent, App, ScriptedModel, answers, asks, tool
from orchestrator.models.scripted import Conversation, Reply

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


def note_time() -> None:
    """One line in the log: now."""
    handle = os.open(os.environ["BENCH_LOG"], os.O_APPEND | os.O_WRONLY)
    os.write(handle, f"{time.time():.6f}\n".encode())
    os.close(handle)


def noticed(_conversation: Conversation) -> Reply:
    """Note when the model is called."""
    note_time()
    return answers("Noted.")


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
watched = App(agents=[Agent("bench", model=ScriptedModel(noticed))])
