"""The App of the acceptance tests. Its tools write what they do to a file that no Redis knows of."""

from __future__ import annotations

import ctypes
import json
import os
import time
import zlib

from orchestrator import Agent, App, ToolContext, always, ask_question, tool

LOG = os.environ.get("LOAD_LOG", "/dev/null")


def note(**what: object) -> None:
    """One line, in one write."""
    line = json.dumps({"pid": os.getpid(), "at": time.time(), **what}) + "\n"
    handle = os.open(LOG, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


@tool
def work(ctx: ToolContext, place: int = 0) -> str:
    """Do something that takes 50 to 200 ms.

    Args:
        place: Which piece of work.
    """
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(0.05 + zlib.crc32(ctx.idempotency_key.encode()) % 150 / 1000)
    note(event="end", key=ctx.idempotency_key)
    return f"done {place}"


@tool
def crash(ctx: ToolContext) -> str:
    """Bring the process down."""
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    ctypes.string_at(0)
    return "never"


@tool
def linger(ctx: ToolContext, seconds: float = 1.0) -> str:
    """Take so many seconds.

    Args:
        seconds: How long.
    """
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(seconds)
    note(event="end", key=ctx.idempotency_key)
    return "lingered"


@tool(approval=always(prompt="Sign {paper}?"))
def sign(ctx: ToolContext, paper: str = "it") -> str:
    """Sign a paper, once somebody has approved it.

    Args:
        paper: Which.
    """
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    note(event="end", key=ctx.idempotency_key)
    return f"signed {paper}"


app = App(
    agents=[
        Agent(
            "load",
            instructions=os.environ.get("LOAD_INSTRUCTIONS", "Work."),
            model="openai-chat:gpt-test",
            tools=[work, crash, linger, sign, ask_question],
        )
    ]
)
