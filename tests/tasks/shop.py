"""The App that real worker processes run in these tests. What its model says, the message says: `note PLACE` calls a tool."""

import os
import time
from pathlib import Path

from orchestrator import Agent, App, ScriptedModel, always, answers, asks, tool
from orchestrator.models.scripted import Conversation, Reply


@tool
def note(folder: str, seconds: float = 0.0) -> int:
    """Write down that it ran, and in which process; wait as told, or until the folder has a file `go`."""
    place = Path(folder)
    (place / f"ran-{os.getpid()}-{time.time_ns()}").touch()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not (place / "go").exists():
        time.sleep(0.01)
    return os.getpid()


@tool
def stuck(folder: str) -> int:
    """Never ends, whatever it is told."""
    (Path(folder) / f"ran-{os.getpid()}-{time.time_ns()}").touch()
    while True:
        time.sleep(3600)


@tool(approval=always())
def sign() -> str:
    """Needs leave."""
    return "signed"


def say(talk: Conversation) -> Reply:
    """`note FOLDER SECONDS` and `stuck FOLDER` call that tool, anything else is answered."""
    words = talk.message.split(" ")
    if talk.step == 0 and words[0] == "note":
        return asks("note", folder=words[1], seconds=float(words[2]))
    if talk.step == 0 and words[0] == "sign":
        return asks("sign")
    if talk.step == 0 and words[0] == "stuck":
        return asks("stuck", folder=words[1])
    return answers(f"You said {talk.message}.")


app = App(agents=[Agent("clerk", model=ScriptedModel(say), tools=[note, stuck, sign])])
