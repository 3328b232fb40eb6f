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
        if from_this_machine(shown.peer) and self._of_this_machine(shown):
            return Caller(None, SCOPES)
        return None

    def _of_this_machine(self, shown: Shown) -> bool:
        """Whether no browser sends this for a page that is not of this machine: any page may post to loopback blindly, and reads what
        comes back if its own name leads here, which is then in `Host`.

        `null` is the origin of a page that was put into a sandbox, by whomever.
        """
        origin, host = shown.headers.get("origin", ""), shown.headers.get("host", "")
        names = (*LOCAL_HOSTS, *map(_host_of, self.origins))
        named_here = not host or _host_of(f"//{host}") in names
        return named_here and (not origin or _host_of(origin) in LOCAL_HOSTS or origin.lower() in self.origins)


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def from_this_machine(peer: str) -> bool:
    """Whether the socket's other end is on loopback."""
    try:
        found = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
