"""The researcher of the examples, whose pages are read while the test looks on: each start is written down, and all but the
first page wait for the file `go`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from examples import research
from orchestrator import App, tool

PLACE = Path(os.environ.get("GATE", "."))
FIRST = "Tay Bridge, 1879"


@tool(name="read")
async def gated_read(title: str) -> dict[str, str]:
    """As the real one."""
    with (PLACE / "started").open("a") as log:
        log.write(f"{os.getpid()} {title}\n")
    while title != FIRST and not (PLACE / "go").exists():
        await asyncio.sleep(0.01)
    found: dict[str, str] = await research.read(title)
    return found


app = App([replace(research.researcher, tools=[research.search, gated_read])])
