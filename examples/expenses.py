r"""Expenses: people send receipts as files, the agent adds them up and pays; above 50 euros a person approves the payment.

    orchestrator dev examples.expenses:app --no-chat
    printf 'what,eur\nroom,129.00\nbreakfast,14.50\n' >hotel.csv
    python -m examples.expenses hotel.csv

A receipt is a CSV file with the columns `what` and `eur`. The files are stored with the session, so they are still there when the
approval comes two days and three deploys later. The model follows a script; `ORCHESTRATOR_MODEL` puts a real one in its place.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import sys
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path

from examples import talk
from orchestrator import Agent, App, Approval, Deny, Retry, ScriptedModel, ToolContext, Uploads, answers, asks, tool
from orchestrator.approval import GatedCall, Verdict
from orchestrator.models.scripted import Conversation, Reply

BANK = Path(os.environ.get("EXPENSES_BANK", "expenses.bank"))
"""The bank of this example: a file with one line for each order of payment."""


@tool
def add_up(ctx: ToolContext) -> dict[str, str]:
    """Add up the receipts that were sent. The sum of each file, by its name, and of all of them."""
    sums = {}
    for file in ctx.files:
        try:
            sums[file.name] = sum(Decimal(row["eur"]) for row in csv.DictReader(file.read().decode().splitlines()))
        except (KeyError, TypeError, UnicodeDecodeError, InvalidOperation) as broken:
            raise Retry(f"{file.name} is no receipt: it must have a column `eur` with numbers.") from broken
    return {name: str(eur) for name, eur in sums.items()} | {"all": str(sum(sums.values()))}


def needs_leave(call: GatedCall) -> Verdict:
    """Small sums are paid at once, large ones when a person says so, and very large ones are not paid in this way."""
    eur = Decimal(str(call.input["eur"]))  # a policy that raises asks: what is no sum goes to a person
    if not 0 < eur <= 2000:
        return Deny("Only sums up to 2000 EUR are paid here. The accounts department pays more.")
    return "run" if eur <= 50 else "ask"


@tool(approval=Approval(needs_leave, prompt="Pay {eur} EUR for {purpose}?", expires=timedelta(days=3)))
def pay(ctx: ToolContext, eur: str, purpose: str) -> str:
    """Pay a sum to whoever has sent the receipts.

    Args:
        eur: The sum, such as 12.50.
        purpose: What it was spent on, in a few words.
    """
    # A payment with a key that the bank has seen is the same payment. `ctx.idempotency_key` stays the same in every attempt.
    paid = BANK.read_text() if BANK.exists() else ""
    if ctx.idempotency_key not in paid:
        with BANK.open("a") as bank:
            bank.write(json.dumps({"key": ctx.idempotency_key, "eur": eur, "purpose": purpose}) + "\n")
    return f"{eur} EUR were paid."


def script(talk: Conversation) -> Reply:
    """What a model would do."""
    match talk.results:
        case []:
            return asks("add_up")
        case [("add_up", {"all": total})]:
            return asks("pay", eur=total, purpose=talk.message.partition("\n")[0])
        case [("pay", str(said))]:
            return answers(said)
        case [(_, why)]:
            return answers(f"I could not do that: {why}")
        case _:
            return answers("Please send your receipts.")


clerk = Agent(
    "clerk",
    instructions="You pay expenses. Add the receipts up with `add_up`, never in your head, and pay the sum with one `pay`.",
    model=ScriptedModel(script, name="scripted-clerk"),
    tools=[add_up, pay],
)
app = App(agents=[clerk], uploads=Uploads(limit_bytes=1024 * 1024, media_types=["text/csv"]))


def main(*paths: str) -> None:
    """Send receipts, and ask at the keyboard where a person must decide."""
    files = [
        {
            "type": "file",
            "mediaType": "text/csv",
            "filename": Path(path).name,
            "data": base64.b64encode(Path(path).read_bytes()).decode(),
        }
        for path in paths
    ]
    session = talk.begin([{"type": "text", "text": "My journey to the book fair"}, *files])
    for event in talk.follow(session):
        match event["type"]:
            case "input.requested":
                for request in event["data"]["requests"]:
                    yes = input(f"{request['prompt']} [y/N] ").strip().casefold() == "y"
                    talk.decide(session, request["requestId"], "approve" if yes else "cancel")
            case "message.completed" if event["data"]["finishReason"] != "tool-calls":
                print(event["data"]["message"])


if __name__ == "__main__":
    main(*sys.argv[1:])
