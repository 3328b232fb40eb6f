"""What both clients know of HTTP: how a request looks, what an answer is, and which failures mean that nobody has heard us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from orchestrator.client.asks import Ask, Reply
from orchestrator.client.following import Open
from orchestrator.client.retrying import Unanswered
from orchestrator.errors import ConfigError

PREFIX = "/v1"
BROKEN = (httpx2.TransportError, httpx2.DecodingError)
"""A connection failed, or what came over it cannot be read."""
NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
OUR_OWN_FAULT = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol)
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
"""A stream holds a connection for as long as it is read, so they are not counted."""


def base_of(url: str) -> str:
    """The address of the API. A path is kept: the server may be mounted below one. Raises `ConfigError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            problem=f"{url!r} is no address of a server.", remedy="Give one such as https://agents.example.com."
        )
    return url.rstrip("/") + PREFIX


def asking(base: str, ask: Ask[Any], shown: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """A request, as the arguments of `httpx2.Client.request`."""
    content = ask.content
    headers = {"accept": "application/json", **({} if content is None else {"content-type": "application/json"})}
    return {
        "method": ask.method,
        "url": base + ask.path,
        "params": dict(ask.query) or None,
        "content": content,
        "headers": {**headers, **shown},
        "timeout": seconds,
    }


def opening(base: str, place: str, due: Open, shown: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """A stream, as the arguments of `httpx2.Client.stream`."""
    # Whoever compresses a stream on its way holds it up.
    headers = {"accept": "application/x-ndjson", "accept-encoding": "identity", "cache-control": "no-store"}
    return {
        "method": "GET",
        "url": f"{base}{place}/stream",
        "params": dict(due.query),
        "headers": {**headers, **shown},
        "timeout": httpx2.Timeout(seconds, read=due.quiet_seconds),
    }


def reply_of(response: httpx2.Response) -> Reply:
    """An answer that was read."""
    return Reply(response.status_code, headers_of(response), response.content)


def headers_of(response: httpx2.Response) -> dict[str, str]:
    """The headers of an answer, by names in lower case."""
    return {name.lower(): value for name, value in response.headers.items()}


def unanswered(error: httpx2.RequestError) -> Unanswered:
    """A failure on the way. Raises it again if we have asked for something that cannot be sent."""
    if isinstance(error, OUR_OWN_FAULT):
        raise error
    return Unanswered(f"{type(error).__name__}: {error}", not isinstance(error, NEVER_SENT))
