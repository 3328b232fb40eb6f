"""The help desk of the examples: its signed webhook begins a conversation, and a worker posts the answer back to the ticket."""

from __future__ import annotations

import subprocess
import sys

from tests.examples.conftest import House
from tests.tasks.workers import ROOT


def send(house: House, port: int, address: str, message: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What the help desk does."""
    return subprocess.run(
        [sys.executable, "-m", "examples.webhooks", address, message],
        env={**house.environment, "TICKETS_URL": f"http://127.0.0.1:{port}/v1/webhooks/tickets", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


def test_what_a_ticket_asks_is_answered_in_the_ticket(house: House) -> None:
    house.runs("examples.webhooks:app")
    caller = house.web()
    worker = house.worker()
    sent = send(house, caller.port, "ticket-1007", "Where is B-1006?")
    assert sent.stdout.startswith("202 "), sent.stderr
    worker.says("ticket-1007: Here is when they arrive:")
    worker.says("B-1006, The Grapes of Wrath: 2026-03-09, by Post.")


def test_a_webhook_that_another_secret_has_signed_is_refused(house: House) -> None:
    house.runs("examples.webhooks:app")
    caller = house.web()
    forged = send(
        house,
        caller.port,
        "ticket-1007",
        "Where is B-1006?",
        TICKETS_SECRETS="whsec_bm90IHRoZSBzZWNyZXQgYXQgYWxsLCBhZ2Fpbg==",
    )
    assert "HTTP Error 401" in forged.stderr
    assert caller.get("/sessions").body["sessions"] == []
