"""Ids that sort by time: ULIDs in upper-case Crockford base 32, their 80 random bits always fresh.

A session id ends in two more characters, its shard: a whole tree of sessions lives in one hash slot.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from functools import lru_cache

from orchestrator.core.names import DeliveryId, Millis, SessionId
from orchestrator.core.snapshot import Principal

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
SHARDS = 64


_FIVE_BITS = bytes(CROCKFORD[byte & 31].encode()[0] for byte in range(256))


def base32(number: int, places: int) -> str:
    """`number` in Crockford base 32, `places` characters wide."""
    return "".join([CROCKFORD[number >> 5 * place & 31] for place in range(places - 1, -1, -1)])


@lru_cache(maxsize=16)
def _time(at_ms: int) -> str:
    return base32(at_ms, 10)


def ulid(at_ms: int) -> str:
    """26 characters: 48 bits of milliseconds, then 80 fresh random bits (never monotonic: +1 must not be a guess)."""
    return _time(at_ms) + os.urandom(16).translate(_FIVE_BITS).decode()


def ulid_ms(text: str) -> Millis:
    """The milliseconds a ULID was made at."""
    number = 0
    for letter in text[:10]:
        number = number * 32 + CROCKFORD.index(letter)
    return Millis(number)


def new_session(at_ms: int, shard: str | None = None) -> SessionId:
    """A session id; its shard is drawn unless given (children share their root's)."""
    return SessionId(f"ses_{ulid(at_ms)}{shard or base32(os.urandom(1)[0] % SHARDS, 2)}")


def new_delivery(at_ms: int) -> DeliveryId:
    """A delivery id."""
    return DeliveryId(f"dlv_{ulid(at_ms)}")


def shard_of(session: str) -> str:
    """The two characters that say which shard a session lives in."""
    return session[-2:]


def is_session(text: str) -> bool:
    """Whether `text` has the form of a session id of ours."""
    return len(text) == 32 and text.startswith("ses_") and all(letter in CROCKFORD for letter in text[4:])


def shards() -> list[str]:
    """All shard names, in order."""
    return [base32(number, 2) for number in range(SHARDS)]


# Ids made of what a caller says: the same words, the same id --------------------------------------------------------------


def _hash_of(*said: object) -> str:
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()


def _identity(principal: Principal | None) -> tuple[str, ...] | None:
    return None if principal is None else principal.identity


def principal_key(principal: Principal) -> str:
    """What the journal remembers a participant by: authenticator, issuer, type and id, and nothing else of them."""
    return _hash_of(*principal.identity)[:32]


def keyed_delivery(scope: str, principal: Principal | None, key: str) -> DeliveryId:
    """The delivery id that a caller's own key makes. `scope`: the session, or `<channel>/<address>` at a door."""
    number = int(_hash_of(scope, _identity(principal), key), 16)
    return DeliveryId(f"dlv_{base32(number >> 126, 26)}")


def address_key(channel: str, text: str) -> str:
    """What an address is stored under: its channel and the text that the channel chose."""
    return _hash_of("address", channel, text)[:32]


def admission_key(channel: str, key: str) -> str:
    """What a channel's own key of a message or a webhook is stored under."""
    return _hash_of("admission", channel, key)[:32]


def operation_key(principal: Principal, key: str) -> str:
    """The address that a caller's operation id makes; nobody else's operation has it."""
    return _hash_of("operation", _identity(principal), key)[:32]


def erased_key(session: SessionId) -> str:
    """What is remembered of a session for a day after it was erased: enough to know its id again, and not to tell it."""
    return _hash_of("erased", session)[:32]


def address_shard(key: str) -> str:
    """The shard in which an address lives, and with it the sessions that it starts."""
    return base32(int(key[:2], 16) % SHARDS, 2)


def new_link(shard: str) -> str:
    """The token of a link to a request: its shard, then 200 bits that nobody can guess."""
    return shard + secrets.token_urlsafe(25)


def link_key(token: str) -> str:
    """What a link's token is stored under: whoever reads the key does not know the token."""
    return hashlib.sha1(token.encode("utf-8", "replace")).hexdigest()


def digest(text: bytes) -> str:
    """16 hex characters that say which bytes these are."""
    return hashlib.sha256(text).hexdigest()[:16]
