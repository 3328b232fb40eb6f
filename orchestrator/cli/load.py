"""The App of `orchestrator bench`: a model that costs nothing and a tool that does nothing, so that what is measured is the way between."""

from __future__ import annotations

from orchestrator import Agent, App, ScriptedModel, answers, asks, tool
from orchestrator.models.scripted import Conversation, Reply

ENDLESS = "Take notes until you are told to stop."
FACTS = 4
"""Of one step of it in the journal: it was started, the model answered, the tool returned, it was settled."""


@tool
def note(place: int) -> int:
    """Take a note.

    Args:
        place: Where.
    """
    return place + 1


def script(talk: Conversation) -> Reply:
    """One call a step for ever, or an answer at once."""
    return asks("note", place=talk.step) if talk.message == ENDLESS else answers("Noted.")


app = App(agents=[Agent("bench", instructions="Take notes.", model=ScriptedModel(script), tools=[note])])
