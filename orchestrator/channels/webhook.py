"""Webhooks that are signed as Standard Webhooks are (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from orchestrator.channels.channel import Channel, NotVerified, Policy, Request
from orchestrator.errors import ConfigError
from orchestrator.parts import Uploads

ID = "webhook-id"
MAX_ID_BYTES = 512


class StandardWebhook(Channel):
    """A channel whose requests are signed: `webhook-id`, `webhook-timestamp` (5 minutes), `webhook-signature`.

    `secrets` are the `whsec_…` of the sender; during a change both the old and the new one. A request with one `webhook-id` is
    one message, however often it comes, for 24 hours.
    """

    def __init__(
        self,
        name: str = "",
        *,
        secrets: Sequence[str],
        agent: str = "",
        turn_policy: Policy = "",
        uploads: Uploads | None = None,
    ) -> None:
        super().__init__(name, agent=agent, turn_policy=turn_policy, uploads=uploads)
        given = [secrets] if isinstance(secrets, str) else list(secrets)
        if not given:
            raise ConfigError(problem=f"The channel {self.name!r} has no secret.", remedy="Give it secrets=[...].")
        self._checks = [_check(self.name, secret) for secret in given]

    def verify(self, request: Request) -> None:
        """Return if one of the secrets signed this body, under this id, in the last 5 minutes. Raises `Unauthorized`."""
        headers = dict(request.headers)
        if len(self.key(request).encode()) > MAX_ID_BYTES or not any(
            _signed(check, request.body, headers) for check in self._checks
        ):
            raise NotVerified

    def key(self, request: Request) -> str:
        """The webhook's id."""
        return request.headers.get(ID, "")


def _check(channel: str, secret: str) -> Webhook:
    try:
        base64.b64decode(secret.removeprefix("whsec_"), validate=True)  # the library leaves out what is none
        return Webhook(secret)
    except Exception as broken:  # the library has an error of its own, base64 another
        # Not the error's text: it may show the secret.
        raise ConfigError(
            problem=f"A secret of the channel {channel!r} is none ({type(broken).__name__}).",
            remedy="Use the whsec_... that the sender shows.",
        ) from None


def _signed(check: Webhook, body: bytes, headers: dict[str, str]) -> bool:
    try:
        check.verify(body, headers, json_parse=False)
    except (WebhookVerificationError, ValueError, TypeError, binascii.Error):
        # Beside its own error: a signature that is not "v1,base64", a body that is not text.
        return False
    return True
