"""Keys of the HTTP interface: the server knows their SHA-256 only, whoever calls has the key itself.

    ORCHESTRATOR_API_KEYS=shop=sha256:9f86d0…,cron:read+erase=sha256:60303a…

One name may have several keys, so that a new one can be given out before the old one is taken away. Between name and key stands what
it may do; a key that says nothing may do everything but `erase` and `admin`.
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

ENTRY = re.compile(r"([^=:]*)(?::([^=]*))?=sha256:([0-9a-fA-F]{64})")

SCOPES = frozenset({"read", "send", "answer", "control", "metrics", "erase", "admin"})
"""What a caller may: look, start sessions and send messages, answer requests, cancel and the like, scrape `/metrics` (`read` may it,
too), erase sessions, everything."""
DEFAULT_SCOPES = SCOPES - {"metrics", "erase", "admin"}
"""`metrics` is for keys that may do nothing else."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who a key belongs to, how it is recognised, and what it may do."""

    name: str
    digest: bytes
    scopes: frozenset[str] = DEFAULT_SCOPES


def parse(text: str) -> tuple[ApiKey, ...]:
    """The entries of ORCHESTRATOR_API_KEYS. Raises `ConfigError`, which names the place and never shows the entry."""
    found = []
    for place, entry in enumerate(filter(None, (piece.strip() for piece in text.split(","))), 1):
        match = ENTRY.fullmatch(entry)
        if match is None or not NAME.fullmatch(match[1]):
            raise ConfigError(
                problem=f"Entry {place} of ORCHESTRATOR_API_KEYS is not NAME[:SCOPE+SCOPE]=sha256:HEX.",
                remedy="Make one with `orchestrator keys new NAME` and put its entry there, not the key.",
            )
        named = None if match[2] is None else match[2].split("+")
        if named is not None and not SCOPES.issuperset(named):
            raise ConfigError(
                problem=f"Entry {place} of ORCHESTRATOR_API_KEYS names a scope that there is not.",
                remedy=f"There are {', '.join(sorted(SCOPES))}; several are joined by '+'.",
            )
        scopes = DEFAULT_SCOPES if named is None else scopes_of(named)
        found.append(ApiKey(match[1], bytes.fromhex(match[3]), scopes))
    return tuple(found)


def scopes_of(names: Sequence[str]) -> frozenset[str]:
    """Scopes by their names; `admin` includes all others. Raises `ConfigError` for one that there is not."""
    for name in names:
        if name not in SCOPES:
            raise ConfigError(problem=f"{name!r} is no scope.", remedy=f"There are {', '.join(sorted(SCOPES))}.")
    return SCOPES if "admin" in names else frozenset(names)


def find(keys: Sequence[ApiKey], given: str) -> ApiKey | None:
    """Which key this is. Takes as long for a wrong one as for a right one."""
    digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
    fits = [key for key in keys if hmac.compare_digest(key.digest, digest)]
    return fits[0] if fits else None


def owner(keys: Sequence[ApiKey], given: str) -> str | None:
    """Whose key this is."""
    key = find(keys, given)
    return key.name if key else None


def mint(name: str, scopes: Sequence[str] = ()) -> tuple[str, str]:
    """A new key for `name`, and its entry. The key is not kept anywhere. Raises `ConfigError` for what is no name or no scope."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            problem=f"{name!r} is no name for a key.", remedy="Use up to 48 of a-z, 0-9, '.', '_' and '-'."
        )
    key = f"orc_{secrets.token_urlsafe(32)}"
    scopes_of(scopes)
    told = ":" + "+".join(dict.fromkeys(scopes)) if scopes else ""
    return key, f"{name}{told}=sha256:{hashlib.sha256(key.encode()).hexdigest()}"
