"""API keys: random texts of which the server knows the SHA-256."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator import apikeys
from orchestrator.auth.caller import Authenticator, Caller, Shown
from orchestrator.core.snapshot import Principal


class ApiKeys(Authenticator):
    """Keys made by `orchestrator keys new NAME`: their entries, `NAME[:SCOPE+SCOPE]=sha256:HEX`.

    Without an argument those of ORCHESTRATOR_API_KEYS.
    """

    challenge = 'Bearer realm="orchestrator"'
    hint = "`Authorization: Bearer KEY` with a key made by `orchestrator keys new NAME`"

    def __init__(self, entries: str | Sequence[str] | None = None) -> None:
        self.of_environment = entries is None
        text = entries if isinstance(entries, str) else ",".join(entries or ())
        self._keys = apikeys.parse(text)

    def recognise(self, shown: Shown) -> Caller | None:
        """The service a key belongs to."""
        given = shown.credential("bearer")
        key = apikeys.find(self._keys, given) if given else None
        return Caller(Principal("api-key", "service", key.name), key.scopes) if key else None
