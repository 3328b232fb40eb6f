"""Callers that show nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from orchestrator.auth.caller import DEFAULT_SCOPES, SCOPES, Authenticator, Caller, Shown

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class Anonymous(Authenticator):
    """Whoever shows nothing: everybody, or callers on this machine. All of them together are one participant, without a name.

    Callers on this machine may do everything; everybody may do all but erase.
    """

    def __init__(self, who: Literal["all", "loopback"] = "all", origins: Sequence[str] = ()) -> None:
        self.who = who
        self.origins = tuple(origins)
        """Pages of other hosts that may nevertheless call here, through a browser on this machine."""

    def recognise(self, shown: Shown) -> Caller | None:
        """Nobody in particular."""
        if self.who == "all":
            return Caller(None, DEFAULT_SCOPES)
        if from_this_machine(shown.peer) and not self._from_elsewhere(shown.headers.get("origin", "")):
            return Caller(None, SCOPES)
        return None

    def _from_elsewhere(self, origin: str) -> bool:
        """Whether a browser sends this for a page that is not of this machine: any page may post to loopback blindly.

        `null` is what a page says that was put into a sandbox, by whomever.
        """
        try:
            host = urlsplit(origin).hostname
        except ValueError:
            host = None
        return bool(origin) and host not in LOCAL_HOSTS and origin.lower() not in self.origins


def from_this_machine(peer: str) -> bool:
    """Whether the socket's other end is on loopback."""
    try:
        found = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
