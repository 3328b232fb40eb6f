"""Keys of the HTTP interface: the server knows their SHA-256 only, whoever calls has the key itself.

    ORCHESTRATOR_API_KEYS=shop=sha256:9f86d0…,cron=sha256:60303a…

One name may have several keys, so that a new one can be given out before the old one is taken away.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import ConfigError
from orchestrator.tool import NAME

ENTRY = re.compile(r"([^=]*)=sha256:([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who a key belongs to, and how it is recognised."""

    name: str
    digest: bytes


def parse(text: str) -> tuple[ApiKey, ...]:
    """The entries of ORCHESTRATOR_API_KEYS. Raises `ConfigError`, which names the place and never shows the entry."""
    found = []
    for place, entry in enumerate(filter(None, (piece.strip() for piece in text.split(","))), 1):
        match = ENTRY.fullmatch(entry)
        if match is None or not NAME.fullmatch(match[1]):
            raise ConfigError(
                problem=f"Entry {place} of ORCHESTRATOR_API_KEYS is not NAME=sha256:HEX.",
                remedy="Make one with `orchestrator keys new NAME` and put its entry there, not the key.",
            )
        found.append(ApiKey(match[1], bytes.fromhex(match[2])))
    return tuple(found)


def owner(keys: Sequence[ApiKey], given: str) -> str | None:
    """Whose key this is. Takes as long for a wrong one as for a right one."""
    digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
    fits = [key.name for key in keys if hmac.compare_digest(key.digest, digest)]
    return fits[0] if fits else None


def mint(name: str) -> tuple[str, str]:
    """A new key for `name`, and its entry. The key is not kept anywhere. Raises `ConfigError` for what is no name."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            problem=f"{name!r} is no name for a key.", remedy="Use up to 48 of a-z, 0-9, '.', '_' and '-'."
        )
    key = f"orc_{secrets.token_urlsafe(32)}"
    return key, f"{name}=sha256:{hashlib.sha256(key.encode()).hexdigest()}"
