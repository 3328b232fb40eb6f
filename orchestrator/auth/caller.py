"""A request's caller: what it shows, who that is, what such a one may do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.apikeys import DEFAULT_SCOPES, SCOPES
from orchestrator.core.snapshot import Principal

__all__ = ["DEFAULT_SCOPES", "SCOPES", "Authenticator", "Caller", "Shown"]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request shows: headers (names in lower case), which may say anything, and the address at the socket's other end."""

    headers: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""

    def credential(self, scheme: str) -> str | None:
        """What stands behind `scheme` in the Authorization header, None if another scheme is there or none."""
        given, _, rest = self.headers.get("authorization", "").partition(" ")
        return rest.strip() if given.lower() == scheme.lower() else None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, None for somebody unknown, what they may do, and when (in seconds of the epoch) that ends."""

    principal: Principal | None = None
    scopes: frozenset[str] = DEFAULT_SCOPES
    until: float = math.inf

    @property
    def is_user(self) -> bool:
        """Whether this one reaches only sessions they take part in."""
        return self.principal is not None and self.principal.type != "service"


class Authenticator(ABC):
    """One way to recognise a caller."""

    challenge: str = ""
    """How a 401 names this way in `www-authenticate`, such as `Bearer realm="shop"`."""
    hint: str = ""
    """What to send, as the end of a sentence that begins with "Send"."""

    @abstractmethod
    def recognise(self, shown: Shown) -> Caller | None:
        """The caller, or None when this credential is not of my kind. Raises `Unauthorized` or `Forbidden` when it is, and is no good."""

    def prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Called once when the web starts. Raises `ConfigError` for what can never work."""
