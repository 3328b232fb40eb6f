"""The support desk of a book shop: four tools, one agent, an app. Run it with `orchestrator dev examples.support:app`.

The model follows a script, so it needs no key and no network. `ORCHESTRATOR_MODEL=anthropic:claude-sonnet-5` puts a real
one in its place and leaves the rest as it is.
"""

from __future__ import annotations

import re
from typing import Any

from examples import shop
from orchestrator import Agent, App, ScriptedModel, ToolContext, always, answers, asks, state, tool
from orchestrator.models.scripted import Conversation, Reply, calls

looked_up = state("support.looked_up", default=list[str])
"""The orders this conversation has looked at. Kept with the session, changed by its tools."""


@tool
def list_purchases(customer: str) -> list[dict[str, str]]:
    """List the purchases of a customer, oldest first.

    Args:
        customer: First and last name.
    """
    return [{"order_id": order.number, "status": order.status} for order in shop.orders_of(customer)]


@tool
def find_order(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Find an order: what it is and where it is.

    Args:
        order_id: The number on the receipt, such as B-1006.
    """
    order = shop.find(order_id)
    # A pure function of what was there: it is applied when the result is committed, so two calls at once both count.
    looked_up.update(ctx, lambda before: [*before, order.number])
    book = shop.BOOKS[order.isbn]
    return {
        "order_id": order.number,
        "title": book.title,
        "copies": order.copies,
        "price_cents": order.copies * book.cents,
        "ordered_on": order.ordered_on,
        "status": order.status,
        "postcode": order.postcode,
    }


@tool
def estimate_delivery(order_id: str, postcode: str = "") -> dict[str, Any]:
    """Say when an order arrives.

    Args:
        order_id: The number on the receipt, such as B-1006.
        postcode: Where it goes, if not where it was ordered to.
    """
    order = shop.find(order_id)
    return {
        "order_id": order.number,
        "title": shop.BOOKS[order.isbn].title,
        "arrives_on": shop.arrival(order, postcode),
        "carrier": shop.CARRIERS[order.carrier].name,
    }


@tool(approval=always(prompt="Pay order {order_id} back?"))
def refund_order(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Pay an order back. A person approves each one.

    Args:
        order_id: The number on the receipt, such as B-1006.
    """
    order = shop.find(order_id)
    cents = order.copies * shop.BOOKS[order.isbn].cents
    # A payment service that is given the key pays once, however often this runs.
    return {"order_id": order.number, "refunded_cents": cents, "reference": ctx.idempotency_key}


def script(talk: Conversation) -> Reply:
    """What a model would do, for a handful of questions. It sees the message and the results of the step before."""
    found = [result for _, result in talk.results]
    match talk.results:
        case []:
            if numbers := re.findall(r"\bB-\d{4}\b", talk.message, re.IGNORECASE):
                wanted = "refund_order" if "refund" in talk.message.casefold() else "find_order"
                return calls(*(asks(wanted, order_id=number.upper()) for number in dict.fromkeys(numbers)))
            if names := [name for name in _customers() if name.casefold() in talk.message.casefold()]:
                return calls(asks("list_purchases", customer=names[0]), text="Let me look that up.")
            return answers(
                "Hello! Tell me your name or an order number (such as B-1006), and I will look for your books."
            )
        case [("list_purchases", purchases)]:
            undelivered = [one["order_id"] for one in purchases if one["status"] != "delivered"]
            if not undelivered:
                return answers(f"All of your {len(purchases)} orders have been delivered.")
            return calls(*(asks("find_order", order_id=number) for number in undelivered))
        case [("find_order", _), *_]:
            orders = [one for one in found if "title" in one]
            if not orders:
                return answers("I cannot find that order. Is it the number on your receipt?")
            return calls(*(asks("estimate_delivery", order_id=one["order_id"]) for one in orders))
        case [("refund_order", _), *_]:
            paid = [one for one in found if "refunded_cents" in one]
            if not paid:
                return answers("I could not pay that back.")
            return answers(
                "\n".join(f"{one['order_id']}: {one['refunded_cents'] / 100:.2f} EUR are on their way." for one in paid)
            )
        case _:
            lines = [f"{one['order_id']}, {one['title']}: {one['arrives_on']}, by {one['carrier']}." for one in found]
            return answers("\n".join(["Here is when they arrive:", *lines]))


def _customers() -> list[str]:
    return list(dict.fromkeys(order.customer for order in shop.ORDERS.values()))


support = Agent(
    "support",
    instructions="You help the customers of a book shop. Look things up before you answer, and be brief.",
    model=ScriptedModel(script, name="scripted-support"),
    tools=[list_purchases, find_order, estimate_delivery, refund_order],
)
app = App(agents=[support])
