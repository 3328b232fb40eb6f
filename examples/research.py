"""A researcher: searches several shelves at once, reads what it has found at once, and hands in a report of a fixed form.

    orchestrator dev examples.research:app --no-chat
    python -m examples.research "Which bridges were brought down by wind?"

Every page that was read is committed by itself: a worker that dies while others are being read costs only those. The library is a
handful of pages, and the model follows a script; `ORCHESTRATOR_MODEL` puts a real one in its place, and the tools may ask any archive.
"""

from __future__ import annotations

import json
import re
import sys

from pydantic import BaseModel

from examples import talk
from orchestrator import Agent, App, Retry, ScriptedModel, answers, asks, tool
from orchestrator.models.scripted import Conversation, Reply, calls, delivers

SHELVES = {
    "newspapers": {
        "Tay Bridge, 1879": "The high girders fell into the Tay in a storm of wind, with a train upon them.",
        "Silver Bridge, 1967": "The bridge fell at the busiest hour, full of cars. A single eyebar had cracked.",
    },
    "inquiries": {
        "Tay Bridge, the court of 1880": "Badly designed, badly built and badly maintained; wind had not been allowed for.",
        "Quebec Bridge, 1908": "The lower chords buckled. The weight of the span had been taken too low.",
    },
    "journals": {
        "Tacoma Narrows, 1940": "The deck twisted in a steady wind, further at each swing, until it tore.",
        "Corrosion of eyebars": "Stress and corrosion together open a crack that nobody sees from outside.",
    },
}


class Finding(BaseModel):
    """One thing that was found, and where."""

    claim: str
    source: str


class Report(BaseModel):
    """What whoever asked gets: `outputSchema` of the message is the schema of this, so a program can read the answer."""

    question: str
    findings: list[Finding]
    conclusion: str


@tool
async def search(shelf: str, word: str) -> list[str]:
    """List the pages of a shelf that have a word, by title.

    Args:
        shelf: newspapers, inquiries or journals.
        word: One word, in lower case.
    """
    if shelf not in SHELVES:
        raise Retry(f"There is no shelf {shelf!r}. There are {', '.join(SHELVES)}.")
    return [title for title, text in SHELVES[shelf].items() if word in f"{title} {text}".casefold()]


@tool
async def read(title: str) -> dict[str, str]:
    """Read a page.

    Args:
        title: As a search gave it.
    """
    for pages in SHELVES.values():
        if title in pages:
            return {"title": title, "text": pages[title]}
    raise Retry(f"There is no page {title!r}. Search first.")


def script(talk: Conversation) -> Reply:
    """What a model would do. The calls of one answer run at the same time, be they three or thirty."""
    match talk.results:
        case []:
            words = re.findall(r"[a-z]{4,}", talk.message.casefold())
            word = next((word for word in words if word in json.dumps(SHELVES).casefold()), "bridge")
            return calls(*(asks("search", shelf=shelf, word=word) for shelf in SHELVES), text="Let me look.")
        case [("search", _), *_] as found if titles := [title for _, shelf in found for title in shelf]:
            return calls(*(asks("read", title=title) for title in titles))
        case found:
            pages = [page for name, page in found if name == "read"]
            findings = [Finding(claim=page["text"], source=page["title"]) for page in pages]
            said = f"{len(findings)} pages speak of it." if findings else "No page speaks of it."
            report = Report(question=talk.message, findings=findings, conclusion=said)
            return delivers(report.model_dump()) if talk.owes_result else answers(said)


researcher = Agent(
    "researcher",
    instructions="Search every shelf before you answer, read what you cite, and cite all that you use by its title.",
    model=ScriptedModel(script, name="scripted-researcher"),
    tools=[search, read],
)
app = App(agents=[researcher])


def main(question: str) -> None:
    """Ask, and print the report."""
    session = talk.begin(question, outputSchema=Report.model_json_schema())
    for event in talk.follow(session):
        match event["type"]:
            case "actions.requested":
                for action in event["data"]["actions"]:
                    print(f"{action['toolName']} {', '.join(map(str, action['input'].values()))}", file=sys.stderr)
            case "result.completed":
                report = Report.model_validate(event["data"]["result"])
                print(json.dumps(report.model_dump(), indent=2))
            case "turn.failed":
                sys.exit(f"{event['data']['code']}: {event['data']['message']}")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "Which bridges were brought down by wind?")
