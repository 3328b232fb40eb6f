"""An App whose model takes a second."""

from __future__ import annotations

from orchestrator import Agent, App, ScriptedModel, answers

app = App(
    agents=[Agent("slow", model=ScriptedModel([answers("Here you are, after a second.")], seconds=1.0, pieces=10))]
)
