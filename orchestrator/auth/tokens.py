"""Signed tokens (JWT): with a key that is given, or with those an identity provider publishes.

Which algorithms count is decided by the key's kind, never by the token: a public key is no secret, and `none` signs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.auth.caller import DEFAULT_SCOPES, SCOPES, Authenticator, Caller, Shown
from orchestrator.auth.issuer import Issuer
from orchestrator.auth.verifying import VerifyingKey, of_public_key, of_secret
from orchestrator.core.snapshot import Principal
from orchestrator.errors import ConfigError, Unauthorized

PrincipalType = Literal["user", "service"]
LONGEST_ID = 256


@dataclass(frozen=True, slots=True)
class Expected:
    """What a token must say to be meant for us, and who its bearer is then."""

    authenticator: str
    issuer: str
    audience: str | Sequence[str]
    type: PrincipalType = "user"
    type_claim: str = ""
    leeway_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.issuer or not self.audience:
            raise ConfigError(
                problem="Tokens without an expected issuer and audience would be anybody's.",
                remedy="Give the `iss` and the `aud` of the tokens to accept.",
            )
        if self.type not in ("user", "service"):
            raise ConfigError(problem=f"type={self.type!r} is no type of caller.", remedy="Use user or service.")

    def caller(self, claims: Mapping[str, Any]) -> Caller:
        """Who shows these claims, which are verified. Raises `Unauthorized`."""
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= LONGEST_ID:
            raise Unauthorized(problem=f"The token's `sub` is missing or not a text of up to {LONGEST_ID} characters.")
        type_: str = self.type
        if self.type_claim and self.type_claim in claims:
            type_ = "service" if claims[self.type_claim] == "service" else "user"
        principal = Principal(self.authenticator, type_, subject, self.issuer)
        until = float(claims["exp"]) + self.leeway_seconds
        return Caller(principal, _scopes(claims) if type_ == "service" else DEFAULT_SCOPES, until)


class _Tokens(Authenticator):
    challenge = 'Bearer realm="orchestrator"'
    _expected: Expected

    @property
    def hint(self) -> str:  # type: ignore[override]  # it names the issuer
        return f"`Authorization: Bearer TOKEN` with a token of {self._expected.issuer}"

    def recognise(self, shown: Shown) -> Caller | None:
        """Whoever the token was made for. A token of another issuer, or signed with another key, is somebody else's to know."""
        token = shown.credential("bearer")
        if not token or token.count(".") != 2:
            return None
        import jwt

        try:
            told = jwt.decode_complete(token, options={"verify_signature": False})
        except jwt.InvalidTokenError:
            return None
        header, unverified = told["header"], told["payload"]
        if unverified.get("iss") != self._expected.issuer or "crit" in header:
            return None
        for key in self._keys(header):
            if header.get("alg") not in key.algorithms:
                continue
            try:
                claims = jwt.decode(
                    token,
                    key.key,
                    algorithms=list(key.algorithms),
                    issuer=self._expected.issuer,
                    audience=self._expected.audience,
                    leeway=self._expected.leeway_seconds,
                    options={"require": ["exp", "iss", "aud", "sub"]},
                )
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError):
                continue
            except jwt.InvalidTokenError as wrong:
                raise Unauthorized(problem=f"The token is not accepted: {wrong}.") from None
            return self._expected.caller(claims)
        return None

    def _keys(self, header: Mapping[str, Any], /) -> Iterable[VerifyingKey]:
        raise NotImplementedError


class Jwt(_Tokens):
    """Tokens signed with `secret` (HMAC, at least 32 bytes) or with the private half of `public_key` (PEM: RSA, EC, Ed25519).

    `iss`, `aud`, `exp` and `sub` are required. Whoever shows one is a user, or what `type` says; a claim named `type_claim`
    decides instead where it is there (`"service"` or anything else). The scopes of a service are those of ours in its `scope` claim.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Sequence[str],
        secret: str | bytes = b"",
        public_key: str = "",
        type: PrincipalType = "user",
        type_claim: str = "",
        leeway_seconds: float = 30.0,
    ) -> None:
        if bool(secret) == bool(public_key):
            raise ConfigError(problem="Jwt needs a secret or a public_key.", remedy="Give one of them, not both.")
        self._expected = Expected("jwt", issuer, audience, type, type_claim, leeway_seconds)
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._public_key = public_key
        self._key: VerifyingKey | None = None

    def prepare(self) -> None:
        """Look at the key. Raises `ConfigError`, which does not show it."""
        self._key = of_secret(self._secret) if self._secret else of_public_key(self._public_key)

    def _keys(self, _header: Mapping[str, Any], /) -> Iterable[VerifyingKey]:
        if self._key is None:
            self.prepare()
        return (self._key,) if self._key else ()


class Oidc(_Tokens):
    """Tokens of an identity provider: its keys come from `<issuer>/.well-known/openid-configuration`, over https, and are kept.

    A key that is not known yet is looked up, seldom. While the provider cannot be reached and no key is known, callers get a 503.
    The other arguments are those of `Jwt`.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Sequence[str],
        type: PrincipalType = "user",
        type_claim: str = "",
        leeway_seconds: float = 30.0,
    ) -> None:
        self._expected = Expected("oidc", issuer, audience, type, type_claim, leeway_seconds)
        self._issuer = Issuer(issuer)

    def _keys(self, header: Mapping[str, Any], /) -> Iterable[VerifyingKey]:
        return self._issuer.keys(header.get("kid"), str(header.get("alg")))


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    if "scope" not in claims:
        return DEFAULT_SCOPES
    given = claims["scope"]
    words = given.split() if isinstance(given, str) else given if isinstance(given, list) else ()
    named = SCOPES.intersection(word for word in words if isinstance(word, str))
    return SCOPES if "admin" in named else named
