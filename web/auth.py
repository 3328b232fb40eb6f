"""Who calls: a key, or nobody if nobody is allowed. Closed unless somebody opened it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from orchestrator.apikeys import ApiKey, owner
from orchestrator.config import Anonymous
from orchestrator.core.snapshot import Principal
from orchestrator.errors import Unauthorized


def principal(keys: Sequence[ApiKey], anonymous: Anonymous, environ: Mapping[str, Any]) -> Principal | None:
    """Who made this request; None for an anonymous caller where one is allowed. Raises `Unauthorized`."""
    given = str(environ.get("HTTP_AUTHORIZATION", ""))
    if given and keys:
        # Also where anonymous callers are allowed: who shows a key means it, and must hear that it is wrong.
        scheme, _, key = given.partition(" ")
        name = owner(keys, key.strip()) if scheme.lower() == "bearer" else None
        if name is None:
            raise Unauthorized(problem="This key is not known here.")
        return Principal(authenticator="api-key", type="service", id=name)
    if anonymous == "all" or (anonymous == "loopback" and from_this_machine(environ) and not from_elsewhere(environ)):
        return None
    if keys:
        raise Unauthorized(problem="A key is needed.")
    raise Unauthorized(
        problem="This server accepts nobody yet: give it keys with ORCHESTRATOR_API_KEYS"
        " (or open it to everybody with ORCHESTRATOR_ALLOW_ANONYMOUS=1)."
    )


def from_elsewhere(environ: Mapping[str, Any]) -> bool:
    """Whether a browser sends this for a page that is not of this machine: any page may post to loopback blindly."""
    origin = urlsplit(str(environ.get("HTTP_ORIGIN", "")))
    return bool(origin.scheme) and origin.hostname not in ("localhost", "127.0.0.1", "::1")


def from_this_machine(environ: Mapping[str, Any]) -> bool:
    """Whether the socket's other end is on loopback. Headers do not count: whoever calls writes them."""
    try:
        peer = ipaddress.ip_address(str(environ.get("REMOTE_ADDR", "")))
    except ValueError:
        return False
    return (getattr(peer, "ipv4_mapped", None) or peer).is_loopback
