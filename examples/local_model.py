"""An agent on a model of your own: anything that speaks OpenAI's protocol on your machine, such as Ollama, llama.cpp or vLLM.

    OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none LOCAL_MODEL=llama3.2 orchestrator dev examples.local_model:app

The web and the workers need the same three variables (`OPENAI_API_KEY` may be any text if the server asks for none; its library wants
one). The agent answers questions about this project from its own pages, and nothing leaves the machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator import Agent, App, Limits, Retry, tool

PAGES = Path(os.environ.get("PAGES", Path(__file__).parents[1] / "docs"))
MOST_LINES = 12


@tool
def find(word: str) -> list[str]:
    """Find the lines of the pages that have a word, as `page:line: text`.

    Args:
        word: A word or a few words, as they stand in the text.
    """
    wanted = word.casefold()
    lines = [
        f"{page.name}:{number}: {line}"
        for page in sorted(PAGES.glob("*.md"))
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if wanted in line.casefold()
    ]
    return lines[:MOST_LINES]


@tool
def read(page: str, line: int) -> str:
    """Read a page around a line.

    Args:
        page: Its name, such as http.md.
        line: The number of a line, as `find` gave it.
    """
    place = PAGES / Path(page).name
    if not place.exists():
        raise Retry(
            f"There is no page {page!r}. There are {', '.join(sorted(one.name for one in PAGES.glob('*.md')))}."
        )
    return "\n".join(place.read_text().splitlines()[max(line - MOST_LINES, 0) : line + MOST_LINES])


librarian = Agent(
    "librarian",
    instructions="Answer from the pages, in two sentences. Find first, then read. Say it when the pages do not know.",
    model=f"openai-chat:{os.environ.get('LOCAL_MODEL', 'llama3.2')}",
    tools=[find, read],
    # Nobody but you knows how much your server has room for. Before it is full, what was said long ago is summed up.
    context_window=8192,
    # Small models go in circles now and then: after so many answers in one turn a person is asked whether it may go on.
    limits=Limits(turn_steps=12),
)
app = App(agents=[librarian])
