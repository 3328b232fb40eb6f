"""The keys of an identity provider (OpenID Connect discovery): looked up when first needed, kept, renewed now and then.

Whoever calls can name keys that there are not, so an unknown name leads to a look at the provider at most every few seconds, and all
who wait share it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.parse import urlsplit

from orchestrator.auth.anonymous import LOCAL_HOSTS
from orchestrator.auth.verifying import PUBLIC, VerifyingKey, of_published
from orchestrator.errors import ConfigError, IssuerAway

log = logging.getLogger(__name__)

DISCOVERY = "/.well-known/openid-configuration"
FRESH_SECONDS = 3600.0
DEAD_SECONDS = 24 * 3600.0
"""Keys that could not be renewed for so long count no more: the provider may have withdrawn them."""
AGAIN_SECONDS = 5.0
WAIT_SECONDS = 4.0
SOCKET_SECONDS = 2.0
MOST_BYTES = 1024 * 1024
MOST_KEYS = 100


class Issuer:
    """One provider and what is known of its keys. Thread-safe."""

    def __init__(self, url: str, *, now: Callable[[], float] = time.monotonic) -> None:
        if not _may_be_asked(url):
            raise ConfigError(
                problem=f"The issuer {url!r} is no https address.", remedy="Use https (http only on this machine)."
            )
        self.url = url
        self._now = now
        self._lock = threading.Lock()
        self._known: tuple[VerifyingKey, ...] = ()
        self._read_at = -DEAD_SECONDS
        self._tried_at = -DEAD_SECONDS
        self._reason = "it was not asked yet"
        self._reading: threading.Event | None = None
        self._ever = False

    def keys(self, kid: object, algorithm: str) -> Sequence[VerifyingKey]:
        """The keys a token with this header may be signed with. Raises `IssuerAway`."""
        if algorithm not in PUBLIC:
            return ()
        found = self._named(kid)
        age = self._age()
        if not found or age > DEAD_SECONDS:
            reading = self._read()
            if reading is not None:
                reading.wait(WAIT_SECONDS)
            found = self._named(kid)
        elif age > FRESH_SECONDS:
            self._read()  # those we have are good for now
        if self._age() > DEAD_SECONDS:
            raise IssuerAway(issuer=self.url, reason=self._reason)
        return found

    def _named(self, kid: object) -> Sequence[VerifyingKey]:
        known = self._known
        return [key for key in known if key.kid == kid] if isinstance(kid, str) else known

    def _age(self) -> float:
        return self._now() - self._read_at if self._ever else DEAD_SECONDS * 2

    def _read(self) -> threading.Event | None:
        """Begin to look, unless somebody does already or did a moment ago. What to wait for."""
        with self._lock:
            if self._reading is not None:
                return self._reading
            if self._now() - self._tried_at < AGAIN_SECONDS:
                return None
            self._tried_at = self._now()
            self._reading = done = threading.Event()
        threading.Thread(target=self._look, args=(done,), name="oidc-keys", daemon=True).start()
        return done

    def _look(self, done: threading.Event) -> None:
        try:
            told = _fetch(self.url.rstrip("/") + DISCOVERY)
            if told.get("issuer") != self.url:
                raise ValueError(f"its configuration is that of {told.get('issuer')!r}")
            published = _fetch(str(told.get("jwks_uri"))).get("keys")
            if not isinstance(published, list):
                raise ValueError("it publishes no list of keys")
            made = [of_published(jwk) for jwk in published[:MOST_KEYS] if isinstance(jwk, dict)]
            self._known = tuple(key for key in made if key is not None)
            self._read_at = self._now()
            self._ever = True
        except (OSError, ValueError, HTTPException, RecursionError) as broken:
            self._reason = str(broken) or type(broken).__name__
            log.warning("the keys of %s cannot be read: %s", self.url, self._reason)
        except Exception as broken:
            self._reason = type(broken).__name__
            log.exception("the keys of %s cannot be read", self.url)
        finally:
            with self._lock:
                self._reading = None
            done.set()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Nobody is sent on: the place was checked, the next one was not."""


def _may_be_asked(url: str) -> bool:
    try:
        found = urlsplit(url)
        _ = found.port
    except ValueError:
        return False
    if not found.hostname or found.username or found.query or found.fragment:
        return False
    return found.scheme == "https" or (found.scheme == "http" and found.hostname in LOCAL_HOSTS)


def _fetch(url: str) -> dict[str, Any]:
    if not _may_be_asked(url):
        raise ValueError(f"{url!r} is no https address")
    local = urlsplit(url).hostname in LOCAL_HOSTS
    opener = urllib.request.build_opener(_NoRedirect, *([urllib.request.ProxyHandler({})] if local else []))
    request = urllib.request.Request(url, headers={"accept": "application/json", "user-agent": "orchestrator"})
    deadline = time.monotonic() + WAIT_SECONDS
    text = b""
    with cast(HTTPResponse, opener.open(request, timeout=SOCKET_SECONDS)) as answer:
        while piece := answer.read1(65536):
            text += piece
            if len(text) > MOST_BYTES or time.monotonic() > deadline:
                raise ValueError("its answer is too long, or takes too long")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("its answer is no JSON object")
    return found
