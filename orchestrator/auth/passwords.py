"""Users with passwords (HTTP Basic). Stored is a scrypt hash, in the form that werkzeug writes too."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import threading
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.auth.caller import Authenticator, Caller, Shown
from orchestrator.core.snapshot import Principal
from orchestrator.errors import ConfigError, Unauthorized

STORED = re.compile(r"scrypt:([0-9]{1,7}):([0-9]{1,2}):([0-9]{1,2})\$([^$]+)\$([0-9a-f]{64,256})")
MOST_BYTES = 256 * 1024 * 1024
"""Memory that one look at a password may take."""
AT_ONCE = 2
"""Looks at the same time: each costs tens of megabytes and of milliseconds, and whoever calls decides how many there are."""


def hash_password(password: str) -> str:
    """What to give to `Basic` for this password."""
    salt = secrets.token_urlsafe(12)
    made = _Stored(2**15, 8, 1, salt, b"\0" * 64)
    return f"scrypt:{made.n}:{made.r}:{made.p}${salt}${made.digest_of(_normal(password)).hex()}"


class Basic(Authenticator):
    """Users by name, each with the hash of a password: `Basic({"anna": hash_password("...")})`, or rather the hash itself."""

    challenge = 'Basic realm="orchestrator", charset="UTF-8"'
    hint = "`Authorization: Basic ...` with a user's name and password"

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = {_normal(name): _parse(name, text) for name, text in users.items()}
        # Somebody unknown takes as long as somebody known.
        self._nobody = next(iter(self._users.values()), _Stored(2**15, 8, 1, "salt", b"\0" * 64))
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._secret = secrets.token_bytes(32)
        self._seen: dict[str, bytes] = {}

    def recognise(self, shown: Shown) -> Caller | None:
        """The user."""
        given = shown.credential("basic")
        if given is None:
            return None
        name, password = _decode(given)
        stored = self._users.get(name)
        if not self._fits(name, stored or self._nobody, password) or stored is None:
            if stored is None:
                return None
            raise Unauthorized(problem="This name and password are not known here.")
        return Caller(Principal("basic", "user", name))

    def _fits(self, name: str, stored: _Stored, password: str) -> bool:
        # What fitted once is remembered as a keyed digest: a page that polls would cost a core.
        short = hmac.digest(self._secret, f"{name}\0{password}".encode(), "sha256")
        if hmac.compare_digest(self._seen.get(name, b""), short):
            return True
        with self._room:
            fits = hmac.compare_digest(stored.digest_of(password), stored.digest)
        if fits:
            self._seen[name] = short
        return fits


@dataclass(frozen=True, slots=True)
class _Stored:
    n: int
    r: int
    p: int
    salt: str
    digest: bytes

    def digest_of(self, password: str) -> bytes:
        memory = 132 * self.n * self.r * self.p
        return hashlib.scrypt(
            password.encode(),
            salt=self.salt.encode(),
            n=self.n,
            r=self.r,
            p=self.p,
            maxmem=memory,
            dklen=len(self.digest),
        )


def _parse(name: str, text: str) -> _Stored:
    match = STORED.fullmatch(text)
    found = _Stored(int(match[1]), int(match[2]), int(match[3]), match[4], bytes.fromhex(match[5])) if match else None
    if not name or ":" in name:
        raise ConfigError(problem=f"{name!r} is no name for a user.", remedy="Use a name without a colon.")
    if found is None or 132 * found.n * found.r * found.p > MOST_BYTES:
        raise ConfigError(
            problem=f"The password of {name!r} is not a hash that can be used here.",
            remedy="Make one with `orchestrator.auth.hash_password(...)` and give that, not the password.",
        )
    try:
        found.digest_of("")
    except ValueError as broken:
        raise ConfigError(
            problem=f"The hash of {name!r} has impossible numbers.", remedy="Make it with `hash_password`."
        ) from broken
    return found


def _decode(given: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(given, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        raise Unauthorized(problem="The Basic credentials are not base 64 of NAME:PASSWORD in UTF-8.") from None
    name, _, password = text.partition(":")
    return _normal(name), _normal(password)


def _normal(text: str) -> str:
    """The same text however a keyboard has put it together."""
    return unicodedata.normalize("NFC", text)
