"""The sender's side of Standard Webhooks."""

import base64
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook


def secret(letter: str) -> str:
    """A secret of a sender."""
    return "whsec_" + base64.b64encode(letter.encode() * 24).decode()


GOOD = secret("g")


def signed(body: bytes, id: str = "msg_1", *, by: str = GOOD, ago_seconds: float = 0) -> Mapping[str, str]:
    """The headers with which a sender sends this body."""
    at = int(time.time() - ago_seconds)
    # The library wants a time without a zone that means UTC.
    signature = Webhook(by).sign(id, datetime.fromtimestamp(at, UTC).replace(tzinfo=None), body.decode())
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": signature}
