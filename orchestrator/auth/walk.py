"""The walk: each authenticator is asked in turn; the first that knows the credential decides. Closed unless somebody opened it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from orchestrator.auth.anonymous import Anonymous
from orchestrator.auth.caller import Authenticator, Caller, Shown
from orchestrator.auth.keys import ApiKeys
from orchestrator.auth.tokens import Jwt, Oidc
from orchestrator.config import Settings
from orchestrator.errors import ConfigError, Unauthorized

log = logging.getLogger(__name__)

CLOSED = (
    "This server accepts nobody yet: give it keys with ORCHESTRATOR_API_KEYS (`orchestrator keys new NAME` makes one),"
    " App(auth=[...]), or open it to everybody with ORCHESTRATOR_ALLOW_ANONYMOUS=1."
)
LOCAL = (
    "This server is open to callers on this machine only, by its own names (localhost, 127.0.0.1): for others give it keys with"
    " ORCHESTRATOR_API_KEYS (`orchestrator keys new NAME` makes one)."
)


class Walk:
    """Authenticators in their order, and whether somebody unknown may come in."""

    def __init__(self, known: Sequence[Authenticator], unknown: Sequence[Anonymous] = ()) -> None:
        self._known = tuple(known)
        self._unknown = tuple(unknown)
        for authenticator in self._known:
            authenticator.prepare()

    def caller(self, shown: Shown) -> Caller:
        """Who this is. Raises `Unauthorized`, whose fact `challenges` says what is accepted here, `Forbidden`, `IssuerAway`."""
        try:
            for authenticator in self._known:
                if found := authenticator.recognise(shown):
                    return found
            given = bool(shown.headers.get("authorization"))
            # Also where anybody may call: who shows something means it, and must hear that it is wrong.
            if not (given and self._known):
                for anonymous in self._unknown:
                    if found := anonymous.recognise(shown):
                        return found
            raise Unauthorized(problem=self._needed("These credentials are not known here" if given else "Who are you"))
        except Unauthorized as refused:
            refused.facts["challenges"] = self.challenges
            raise

    @property
    def challenges(self) -> tuple[str, ...]:
        """What is accepted here, as `www-authenticate` says it."""
        named = [authenticator.challenge for authenticator in self._known if authenticator.challenge]
        return tuple(dict.fromkeys(named)) or (ApiKeys.challenge,)

    def _needed(self, what: str) -> str:
        hints = [authenticator.hint for authenticator in self._known if authenticator.hint]
        if not self._known:
            return LOCAL if self._unknown else CLOSED
        return f"{what}{'?' if what.startswith('Who') else '.'}" + (f" Send {', or '.join(hints)}." if hints else "")


def walk(auth: Sequence[Authenticator], settings: Settings) -> Walk:
    """The walk of an App: its own authenticators, or those of the environment. Raises `ConfigError`.

    ORCHESTRATOR_ALLOW_ANONYMOUS opens the door beside either of them.
    """
    for given in auth:
        if not isinstance(given, Authenticator):
            raise ConfigError(
                problem=f"App(auth=[...]) was given {given!r}.", remedy="Use the values of `orchestrator.auth`."
            )
    known: list[Authenticator] = [
        ApiKeys(settings.api_keys) if isinstance(given, ApiKeys) and given.of_environment else given for given in auth
    ]
    if not auth:
        if settings.api_keys:
            known.append(ApiKeys(settings.api_keys))
        if settings.jwt_issuer:
            known.append(_tokens(settings))
    elif settings.jwt_issuer or (settings.api_keys and not any(isinstance(given, ApiKeys) for given in auth)):
        log.warning(
            "App(auth=[...]) is given, so ORCHESTRATOR_API_KEYS and ORCHESTRATOR_JWT_* count only where it names them."
        )
    unknown = [given for given in known if isinstance(given, Anonymous)]
    if settings.allow_anonymous:
        origins = settings.origins if settings.origins != ("*",) else ()
        unknown.append(Anonymous(settings.allow_anonymous, origins))
    return Walk([given for given in known if not isinstance(given, Anonymous)], unknown)


def _tokens(settings: Settings) -> Authenticator:
    issuer, audience = settings.jwt_issuer, settings.jwt_audience
    if not settings.jwt_key:
        return Oidc(issuer, audience=audience)
    key = settings.jwt_key.replace("\\n", "\n")
    if "-----BEGIN" in key:
        return Jwt(issuer=issuer, audience=audience, public_key=key)
    return Jwt(issuer=issuer, audience=audience, secret=settings.jwt_key)
