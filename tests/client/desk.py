"""The agent that the snippets of docs/client.md talk to: it answers, and asks before it pays."""

from __future__ import annotations

from orchestrator import Agent, App, ScriptedModel, always, answers, asks, tool


@tool(approval=always(prompt="Pay {amount} EUR to {order_id}?"))
def refund(order_id: str, amount: str) -> str:
    """Pay an order back."""
    return f"{amount} EUR were paid back."


pays = ScriptedModel([asks("refund", order_id="B-1006", amount="14.99"), answers("You get your 14.99 EUR back.")])
tells = ScriptedModel([answers("It is on its way to you.")])
app = App(agents=[Agent("support", model=tells), Agent("refunds", model=pays, tools=[refund])])
