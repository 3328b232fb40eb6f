"""One agent as it was before a deploy and as it is after it: other instructions, another model, other tools."""

from __future__ import annotations

import time

from orchestrator import Agent, App, ToolContext, state, tool
from tests.acceptance.load import note

counted = state("redeploy.counted", default=int)


@tool
def count(ctx: ToolContext) -> int:
    """Count one more."""
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    counted.update(ctx, lambda before: before + 1)
    return counted.get(ctx)


@tool
def vanishing(ctx: ToolContext) -> str:
    """Take longer than anybody waits."""
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(600)
    return "never"


@tool(name="changing")
def changing_before(ctx: ToolContext, old: int) -> str:
    """Take longer than anybody waits, and a number."""
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(600)
    return str(old)


@tool(name="changing")
def changing_after(ctx: ToolContext, new: str) -> str:
    """Take a text."""
    note(event="start", key=ctx.idempotency_key, attempt=ctx.attempt)
    return new


@tool
def fresh() -> str:
    """Something that there was not before."""
    return "fresh"


before = App(
    agents=[
        Agent(
            "shop",
            instructions="You are the old one.",
            user_instructions="Written at the head by the old one.",
            model="openai-chat:gpt-old",
            tools=[count, vanishing, changing_before],
        )
    ]
)
after = App(
    agents=[
        Agent(
            "shop",
            instructions="You are the new one.",
            user_instructions="Written at the head by the new one.",
            model="openai-chat:gpt-new",
            tools=[fresh, count, changing_after],
        )
    ]
)
