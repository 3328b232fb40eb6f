"""The support desk behind the signed webhooks of a help desk, with the help desk's side to try it.

    orchestrator dev examples.webhooks:app --no-chat
    python -m examples.webhooks ticket-1007 "Where is B-1006?"

What the agent answers is posted back by a worker: here to its log, in your case to the help desk.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import urllib.request
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook

from examples.support import support
from orchestrator import App, StandardWebhook
from orchestrator.channels import Event, ReplyTo

log = logging.getLogger(__name__)

# For trying it out. A real one is nobody else's business: TICKETS_SECRETS="whsec_... whsec_..."
DEMO = "whsec_" + base64.b64encode(b"not a secret at all, 24+").decode()
secrets = os.environ.get("TICKETS_SECRETS", DEMO).split()
tickets = StandardWebhook("tickets", secrets=secrets, agent=support.name)


@tickets.on("message.completed")
def comment(event: Event, to: ReplyTo) -> None:
    """Post an answer. A help desk that takes `to.key` shows it once, however often this is called."""
    if event.data["finishReason"] != "tool-calls":
        log.warning("%s: %s (%s)", to.address, event.data["message"], to.key)


app = App([support], channels=[tickets])


def signed(body: bytes, id: str) -> Mapping[str, str]:
    """The headers that a help desk sends with this body."""
    at = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    stamp = str(int(at.replace(tzinfo=UTC).timestamp()))
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": stamp,
        "webhook-signature": Webhook(secrets[0]).sign(id, at, body.decode()),
    }


def main(address: str, message: str) -> None:
    """Send one webhook, and say what came of it."""
    body = json.dumps({"address": address, "message": message}).encode()
    url = os.environ.get("TICKETS_URL", "http://127.0.0.1:8000/v1/webhooks/tickets")
    request = urllib.request.Request(url, body, dict(signed(body, f"msg_{uuid.uuid4().hex}")))
    with urllib.request.urlopen(request) as answer:
        print(answer.status, answer.read().decode())


if __name__ == "__main__":
    main(*sys.argv[1:3])
