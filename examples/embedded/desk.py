"""The agent that has moved in. Its journal is the Redis that the shop has; its tools hand work to the shop's own tasks."""

from __future__ import annotations

import re

from examples import shop
from examples.embedded import jobs
from orchestrator import Agent, App, Retry, ScriptedModel, Settings, ToolContext, answers, asks, tool
from orchestrator.models.scripted import Conversation, Reply


@tool
def hurry(ctx: ToolContext, order_id: str) -> str:
    """Have an order packed now.

    Args:
        order_id: The number on the receipt, such as B-1013.
    """
    if order_id not in shop.ORDERS:
        raise Retry(f"There is no order {order_id}.")
    # The task's id is the call's key: should the call run again, the queue has the same task once more, and not another one.
    jobs.pack.apply_async((order_id,), task_id=ctx.idempotency_key)
    return f"{order_id} is being packed."


def script(talk: Conversation) -> Reply:
    """What a model would do."""
    match talk.results:
        case [(_, said)]:
            return answers(str(said))
        case _ if number := re.search(r"B-\d{4}", talk.message):
            return asks("hurry", order_id=number[0])
        case _:
            return answers("Which order is it? Its number is on the receipt.")


desk = Agent(
    "desk",
    instructions="You help the customers of a book shop who cannot wait.",
    model=ScriptedModel(script, name="scripted-desk"),
    tools=[hurry],
)
app = App(agents=[desk], settings=Settings(url=jobs.REDIS_URL))
