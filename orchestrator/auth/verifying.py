"""Keys that verify signatures, each with the algorithms that its kind allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConfigError

HMAC = {"HS256": 32, "HS384": 48, "HS512": 64}
"""How many bytes a secret must have for each: as many as come out."""
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
PUBLIC = frozenset({*RSA, *CURVES.values(), "EdDSA"})
LEAST_SECRET_BYTES = min(HMAC.values())
LEAST_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key. `kid` is its name at its publisher, empty for one that was given."""

    key: Any
    algorithms: tuple[str, ...]
    kid: str = ""


def of_secret(secret: bytes) -> VerifyingKey:
    """A shared secret. Raises `ConfigError`."""
    if secret.lstrip().startswith((b"-----BEGIN", b"ssh-")):
        raise ConfigError(
            problem="The secret for tokens is a key file: everybody knows a public one.",
            remedy="Give it as public_key.",
        )
    if len(secret) < LEAST_SECRET_BYTES:
        raise ConfigError(
            problem=f"The secret for tokens has fewer than {LEAST_SECRET_BYTES} bytes.",
            remedy="Make one with `openssl rand -base64 48`.",
        )
    return VerifyingKey(secret, tuple(name for name, least in HMAC.items() if len(secret) >= least))


def of_public_key(pem: str) -> VerifyingKey:
    """A public key as text. Raises `ConfigError`."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.strip().encode())
    except Exception as broken:  # whatever the library raises, its text may show the key
        raise ConfigError(
            problem="The public key for tokens cannot be read.",
            remedy="Give the whole text from -----BEGIN PUBLIC KEY----- to -----END PUBLIC KEY-----.",
        ) from broken
    algorithms = _algorithms(key)
    if not algorithms:
        raise ConfigError(
            problem="The public key for tokens is of a kind that is not accepted, or too short.",
            remedy=f"Use RSA from {LEAST_RSA_BITS} bits on, EC on P-256, P-384 or P-521, or Ed25519.",
        )
    return VerifyingKey(key, algorithms)


def of_published(jwk: Mapping[str, Any]) -> VerifyingKey | None:
    """A key as a provider publishes it (JWK), None for one that verifies no signature of ours."""
    import jwt

    if jwk.get("use", "sig") != "sig" or jwk.get("kty") not in ("RSA", "EC", "OKP") or "d" in jwk:
        return None
    try:
        key = jwt.PyJWK.from_dict(dict(jwk)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    named, algorithms = jwk.get("alg"), _algorithms(key)
    fits = tuple(algorithm for algorithm in algorithms if named in (None, algorithm))
    kid = jwk.get("kid")
    return VerifyingKey(key, fits, kid if isinstance(kid, str) else "") if fits else None


def _algorithms(key: object) -> tuple[str, ...]:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    match key:
        case RSAPublicKey():
            return RSA if key.key_size >= LEAST_RSA_BITS else ()
        case EllipticCurvePublicKey():
            return (CURVES[key.curve.name],) if key.curve.name in CURVES else ()
        case Ed25519PublicKey():
            return ("EdDSA",)
        case _:
            return ()
