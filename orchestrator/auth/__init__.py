"""Who calls: values for `App(auth=[...])`, asked in their order. The first that knows the credential decides.

    ApiKeys()                       the keys of ORCHESTRATOR_API_KEYS, or those given here: services, with scopes
    Jwt(issuer=, audience=, ...)    tokens signed with a secret or a key pair of yours
    Oidc(issuer, audience=)         tokens of an identity provider, whose keys are looked up
    Basic({name: hash})             users with passwords, hashed by `hash_password`
    Anonymous()                     whoever shows nothing

Anything else is an `Authenticator` of your own. Credentials come out of headers that whoever calls has written: believe only what can
be verified. A principal of type `service` may what its scopes say, any other reaches only the sessions it takes part in.
"""

from __future__ import annotations

from orchestrator.auth.anonymous import Anonymous
from orchestrator.auth.caller import DEFAULT_SCOPES, SCOPES, Authenticator, Caller, Shown
from orchestrator.auth.keys import ApiKeys
from orchestrator.auth.passwords import Basic, hash_password
from orchestrator.auth.tokens import Jwt, Oidc
from orchestrator.auth.walk import Walk, walk

__all__ = [
    "DEFAULT_SCOPES",
    "SCOPES",
    "Anonymous",
    "ApiKeys",
    "Authenticator",
    "Basic",
    "Caller",
    "Jwt",
    "Oidc",
    "Shown",
    "Walk",
    "hash_password",
    "walk",
]
