"""Signed tokens and passwords: who is let in, and as whom."""

import base64
import hashlib
import hmac
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from werkzeug.security import generate_password_hash

from orchestrator.auth import (
    SCOPES,
    Anonymous,
    ApiKeys,
    Authenticator,
    Basic,
    Caller,
    Jwt,
    Oidc,
    Shown,
    hash_password,
    walk,
)
from orchestrator.auth.issuer import AGAIN_SECONDS, DEAD_SECONDS, FRESH_SECONDS
from orchestrator.auth.issuer import Issuer as Keys
from orchestrator.config import Settings
from orchestrator.core.snapshot import Principal
from orchestrator.errors import ConfigError, IssuerAway, Unauthorized
from tests.servers import wait_for
from tests.web.issuer import AUDIENCE, EC, ED, RSA, Issuer, Private, claims, jwk, pem, signed

SECRET = "a secret of the shop, which has to be longer than anybody would want to type"
SHOP = "https://shop.example"
ANNA = Principal("jwt", "user", "anna", SHOP)


def bearer(token: str) -> Shown:
    return Shown({"authorization": f"Bearer {token}"})


def by_secret(**more: Any) -> Jwt:
    return Jwt(issuer=SHOP, audience=AUDIENCE, secret=SECRET, **more)


def with_secret(secret: str = SECRET, algorithm: str = "HS256", **more: Any) -> str:
    return jwt.encode(claims(SHOP, **more), secret, algorithm)


def is_let_in(given: Authenticator, token: str) -> bool:
    """Whether a walk with this authenticator alone knows the token."""
    try:
        walk([given], Settings()).caller(bearer(token))
    except Unauthorized:
        return False
    return True


# A key that is given -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_signed_with_the_secret_is_a_user(algorithm: str) -> None:
    found = by_secret().recognise(bearer(with_secret(algorithm=algorithm)))
    assert found is not None
    assert found.principal == ANNA
    assert found.is_user


def test_a_short_secret_signs_only_with_a_short_hash() -> None:
    short = SECRET[:40]
    given = Jwt(issuer=SHOP, audience=AUDIENCE, secret=short)
    assert is_let_in(given, with_secret(short))
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = with_secret(short, "HS512")
    assert not is_let_in(given, token)


@pytest.mark.parametrize("key", [RSA, EC, ED], ids=["RSA", "EC", "Ed25519"])
def test_a_token_signed_with_a_private_key_is_known_by_the_public_one(key: Private) -> None:
    given = Jwt(issuer=SHOP, audience=AUDIENCE, public_key=pem(key))
    found = given.recognise(bearer(signed(key, claims(SHOP))))
    assert found is not None
    assert found.principal == ANNA


@pytest.mark.parametrize(
    "more",
    [
        {"exp": None},
        {"exp": 1},
        {"exp": time.time() - 60},
        {"nbf": time.time() + 86_400},
        {"aud": None},
        {"aud": "another"},
        {"aud": []},
        {"iss": None},
        {"iss": "https://other.example"},
        {"iss": SHOP + "/"},
        {"sub": None},
        {"sub": ""},
        {"sub": "a" * 257},
        {"exp": "soon"},
    ],
    ids=lambda more: re.sub(r"\d{5,}.*", "about now}", json.dumps(more))[:40],
)
def test_a_token_that_is_not_for_us_or_not_for_now_is_refused(more: dict[str, Any]) -> None:
    assert is_let_in(by_secret(), with_secret())
    assert not is_let_in(by_secret(), with_secret(**more))


def test_a_subject_that_is_no_text_is_refused() -> None:
    head, body = (_part({"alg": "HS256", "typ": "JWT"}), _part(claims(SHOP, sub=7)))
    mac = hmac.new(SECRET.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
    assert not is_let_in(by_secret(), f"{head}.{body}.{_text(mac)}")


def test_clocks_may_differ_a_little() -> None:
    assert is_let_in(by_secret(), with_secret(exp=time.time() - 5, nbf=time.time() + 5))
    assert not is_let_in(by_secret(leeway_seconds=0), with_secret(exp=time.time() - 5))


def test_a_token_may_be_for_several() -> None:
    assert is_let_in(by_secret(), with_secret(aud=["other", AUDIENCE]))


@pytest.mark.parametrize("where", ["header", "payload", "signature"])
def test_a_token_that_was_changed_is_refused(where: str) -> None:
    head, body, mac = with_secret().split(".")
    if where == "header":
        head = _part({"alg": "HS512", "typ": "JWT"})
    elif where == "payload":
        body = _part(claims(SHOP, sub="somebody else"))
    else:
        mac = _text(b"\0" * 32)
    assert not is_let_in(by_secret(), f"{head}.{body}.{mac}")


@pytest.mark.parametrize("name", ["none", "None", "nOnE", "NONE", ""])
@pytest.mark.parametrize("signature", ["", "AAAA"])
def test_none_signs_nothing(name: str, signature: str) -> None:
    token = f"{_part({'alg': name, 'typ': 'JWT'})}.{_part(claims(SHOP))}.{signature}"
    assert not is_let_in(by_secret(), token)
    assert not is_let_in(Jwt(issuer=SHOP, audience=AUDIENCE, public_key=pem(RSA)), token)


@pytest.mark.parametrize("key", [RSA, EC], ids=["RSA", "EC"])
def test_a_public_key_is_no_secret(key: Private) -> None:
    text = pem(key)
    for secret in (text, text.strip(), text.strip() + "\n"):
        head, body = _part({"alg": "HS256", "typ": "JWT"}), _part(claims(SHOP))
        mac = hmac.new(secret.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
        assert not is_let_in(Jwt(issuer=SHOP, audience=AUDIENCE, public_key=text), f"{head}.{body}.{_text(mac)}")


def test_a_header_that_demands_what_nobody_here_understands_is_refused() -> None:
    token = jwt.encode(claims(SHOP), SECRET, "HS256", headers={"crit": ["exp2"], "exp2": 1})
    assert not is_let_in(by_secret(), token)


@pytest.mark.parametrize("header", ["jku", "x5u", "jwk"])
def test_a_key_that_a_token_brings_along_does_not_count(header: str) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    brought: object = jwk(stranger, "mine") if header == "jwk" else "http://127.0.0.1:1/keys"
    token = signed(stranger, claims(SHOP), "mine", **{header: brought})
    assert not is_let_in(Jwt(issuer=SHOP, audience=AUDIENCE, public_key=pem(RSA)), token)


@pytest.mark.parametrize("token", ["", "x", "a.b", "a.b.c", "..", "a.b.c.d", "é.é.é", "e30.e30.", "W10.W10.AAAA"])
def test_what_is_no_token_is_refused(token: str) -> None:
    assert not is_let_in(by_secret(), token)


def test_a_token_may_be_that_of_a_service_by_setting_or_by_claim() -> None:
    def found(given: Jwt, **more: Any) -> Caller:
        caller = given.recognise(bearer(with_secret(**more)))
        assert caller is not None
        return caller

    assert found(by_secret(type="service")).principal == Principal("jwt", "service", "anna", SHOP)
    assert found(by_secret(type_claim="kind"), kind="service").principal == Principal("jwt", "service", "anna", SHOP)
    for kind in ("person", "Service", ["service"], True, None):
        assert found(by_secret(type_claim="kind"), kind=kind).is_user
    assert found(by_secret(), kind="service").is_user
    assert found(by_secret(type="service", type_claim="kind"), kind="person").is_user


@pytest.mark.parametrize(
    ("scope", "means"),
    [
        (None, {"read", "send", "answer", "control"}),
        ("read  control", {"read", "control"}),
        (["read", "erase", 7], {"read", "erase"}),
        ("openid profile", set()),
        ("", set()),
        (7, set()),
        ("admin", SCOPES),
    ],
)
def test_a_service_has_the_scopes_of_its_token(scope: object, means: set[str]) -> None:
    found = by_secret(type="service").recognise(bearer(with_secret(scope=scope)))
    assert found is not None
    assert found.scopes == means


def test_a_user_gets_no_scope_out_of_a_token() -> None:
    found = by_secret().recognise(bearer(with_secret(scope="erase admin")))
    assert found is not None
    assert not found.scopes & {"erase", "admin"}


@pytest.mark.parametrize(
    "given",
    [
        {"secret": "short"},
        {"secret": pem(RSA)},
        {"public_key": "no key"},
        {"public_key": pem(rsa.generate_private_key(65537, 1024))},
        {"public_key": pem(ec.generate_private_key(ec.SECP256K1()))},
        {},
        {"secret": SECRET, "public_key": pem(RSA)},
        {"secret": SECRET, "issuer": ""},
        {"secret": SECRET, "audience": ""},
        {"secret": SECRET, "type": "robot"},
    ],
    ids=[
        "short",
        "a public key as secret",
        "no key",
        "1024 bits",
        "another curve",
        "nothing",
        "both",
        "no iss",
        "no aud",
        "type",
    ],
)
def test_keys_that_cannot_be_trusted_are_refused_at_the_start_without_being_shown(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        walk([Jwt(**{"issuer": SHOP, "audience": AUDIENCE, **given})], Settings())
    assert "short" not in str(caught.value) or given.get("secret") != "short"
    assert "MII" not in str(caught.value)


# An identity provider ----------------------------------------------------------------------------------------------------


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as made:
        made.keys = [jwk(RSA, "one")]
        yield made


@pytest.fixture
def oidc(issuer: Issuer) -> Oidc:
    return Oidc(issuer.url, audience=AUDIENCE)


def test_the_keys_of_a_provider_are_found_and_kept(issuer: Issuer, oidc: Oidc) -> None:
    for _ in range(3):
        found = oidc.recognise(bearer(signed(RSA, claims(issuer.url), "one")))
        assert found is not None
        assert found.principal == Principal("oidc", "user", "anna", issuer.url)
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]


def test_nothing_is_asked_before_somebody_shows_a_token(issuer: Issuer, oidc: Oidc) -> None:
    given = walk([oidc], Settings(allow_anonymous="all"))
    assert given.caller(Shown()).principal is None
    for token in ("x", with_secret(), jwt.encode(claims(issuer.url), SECRET, "HS256")):
        assert not is_let_in(oidc, token)
    assert issuer.asked == []


def test_a_new_key_of_the_provider_is_looked_up_when_it_is_first_seen(issuer: Issuer) -> None:
    clock = [0.0]
    keys = Keys(issuer.url, now=lambda: clock[0])
    assert len(keys.keys("one", "RS256")) == 1
    issuer.keys.append(jwk(EC, "two"))
    assert keys.keys("two", "ES256") == []  # it was asked a moment ago
    clock[0] += AGAIN_SECONDS
    assert len(keys.keys("two", "ES256")) == 1


def test_names_of_keys_that_there_are_not_do_not_lead_to_a_question_each(issuer: Issuer) -> None:
    clock = [0.0]
    keys = Keys(issuer.url, now=lambda: clock[0])
    for number in range(50):
        assert keys.keys(f"guess-{number}", "RS256") == []
    assert issuer.asked.count("/keys") == 1
    clock[0] += AGAIN_SECONDS
    for number in range(50):
        assert keys.keys(f"guess-{number}", "RS256") == []
    assert issuer.asked.count("/keys") == 2


def test_all_who_come_at_once_wait_for_one_question(issuer: Issuer, oidc: Oidc) -> None:
    go, token = threading.Barrier(8), signed(RSA, claims(issuer.url), "one")
    known: list[bool] = []

    def come() -> None:
        go.wait(5)
        known.append(oidc.recognise(bearer(token)) is not None)

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert known == [True] * 8
    assert issuer.asked.count("/keys") == 1


def test_keys_are_renewed_while_the_old_ones_serve_and_count_no_more_after_a_day_without(issuer: Issuer) -> None:
    clock = [0.0]
    keys = Keys(issuer.url, now=lambda: clock[0])
    assert keys.keys("one", "RS256")
    clock[0] += FRESH_SECONDS + 1
    issuer.alter = lambda _, __: 503
    assert keys.keys("one", "RS256")
    wait_for(lambda: len(issuer.asked) == 3)
    clock[0] += DEAD_SECONDS
    with pytest.raises(IssuerAway):
        keys.keys("one", "RS256")


def test_a_token_without_the_name_of_a_key_is_tried_with_all_of_them(issuer: Issuer, oidc: Oidc) -> None:
    issuer.keys = [jwk(rsa.generate_private_key(65537, 2048), "zero"), jwk(RSA, "one"), jwk(EC, "two")]
    assert is_let_in(oidc, signed(RSA, claims(issuer.url)))
    assert is_let_in(oidc, signed(EC, claims(issuer.url)))


def test_a_key_signs_only_as_it_is_published(issuer: Issuer, oidc: Oidc) -> None:
    issuer.keys = [jwk(RSA, "one", alg="PS256"), jwk(EC, "two", use="enc")]
    assert not is_let_in(oidc, signed(RSA, claims(issuer.url), "one"))
    assert not is_let_in(oidc, signed(EC, claims(issuer.url), "two"))


def test_a_secret_in_the_list_of_a_provider_is_no_key(issuer: Issuer, oidc: Oidc) -> None:
    secret = _text(SECRET.encode())
    issuer.keys = [{"kty": "oct", "k": secret, "kid": "one", "alg": "HS256"}, jwk(RSA, "two"), {"kty": "RSA"}, {}]
    assert not is_let_in(oidc, jwt.encode(claims(issuer.url), SECRET, "HS256", headers={"kid": "one"}))
    assert is_let_in(oidc, signed(RSA, claims(issuer.url), "two"))


@pytest.mark.parametrize(
    "alter",
    [
        lambda path, body: 500,
        lambda path, body: {"issuer": "https://other.example", **{k: v for k, v in body.items() if k != "issuer"}},
        lambda path, body: {**body, "jwks_uri": "http://keys.example/keys"} if "issuer" in body else body,
        lambda path, body: {**body, "jwks_uri": "file:///etc/passwd"} if "issuer" in body else body,
        lambda path, body: {"keys": "none"},
        lambda path, body: "http://127.0.0.1:1/elsewhere",
        lambda path, body: {**body, "more": "x" * 2_000_000},
    ],
    ids=["500", "another issuer", "keys without TLS", "keys in a file", "no list", "sent elsewhere", "too long"],
)
def test_a_provider_that_cannot_be_believed_lets_nobody_in(
    issuer: Issuer, oidc: Oidc, alter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.alter = alter
    token = signed(RSA, claims(issuer.url), "one")
    with caplog.at_level(logging.DEBUG), pytest.raises(IssuerAway):
        oidc.recognise(bearer(token))
    assert "cannot be read" in caplog.text
    assert token not in caplog.text


def test_a_provider_that_is_away_is_not_asked_by_every_caller(issuer: Issuer, oidc: Oidc) -> None:
    issuer.alter = lambda _, __: 503
    for _ in range(10):
        with pytest.raises(IssuerAway):
            oidc.recognise(bearer(signed(RSA, claims(issuer.url), "one")))
    assert len(issuer.asked) == 1


@pytest.mark.parametrize(
    "url", ["http://shop.example", "ftp://shop.example", "shop.example", "https://a@shop.example", "https://x?y", ""]
)
def test_a_provider_is_asked_over_https_only(url: str) -> None:
    with pytest.raises(ConfigError):
        Oidc(url, audience=AUDIENCE)


# Passwords ---------------------------------------------------------------------------------------------------------------


def basic(name: str, password: str) -> Shown:
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return Shown({"authorization": f"Basic {text}"})


HASHED = hash_password("horse: battery")
BIRGIT = generate_password_hash("geheim")


def test_a_password_opens_and_only_the_right_one() -> None:
    door = walk([Basic({"anna": HASHED, "birgit": BIRGIT})], Settings())
    for _ in range(2):  # the second time it is remembered
        assert door.caller(basic("anna", "horse: battery")).principal == Principal("basic", "user", "anna")
        assert door.caller(basic("birgit", "geheim")).principal == Principal("basic", "user", "birgit")
        for name, password in (
            ("anna", "horse"),
            ("anna", ""),
            ("birgit", "horse: battery"),
            ("carl", "geheim"),
            ("", ""),
        ):
            with pytest.raises(Unauthorized):
                door.caller(basic(name, password))


def test_a_name_is_the_same_however_it_was_typed() -> None:
    door = walk([Basic({"Zoë": hash_password("né")})], Settings())
    assert door.caller(basic("Zoe\u0308", "ne\u0301")).principal == Principal("basic", "user", "Zoë")


@pytest.mark.parametrize("given", ["", "!", "YQ", "w6k=", "YTpi\n", "/////w=="])
def test_basic_credentials_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(Unauthorized):
        walk([Basic({"anna": HASHED})], Settings()).caller(Shown({"authorization": f"Basic {given}"}))


@pytest.mark.parametrize(
    "stored",
    ["horse", "pbkdf2:sha256:1$salt$00", "scrypt:32767:8:1$salt$" + "0" * 128, "scrypt:9999999:8:1$salt$" + "0" * 128],
    ids=["the password itself", "another kind", "impossible numbers", "too much memory"],
)
def test_a_hash_that_cannot_be_used_is_refused_without_being_shown(stored: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Basic({"anna": stored})
    assert stored not in str(caught.value)


def test_many_wrong_passwords_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, lock = [0], [0], threading.Lock()
    real = hashlib.scrypt

    def counted(*args: Any, **kwargs: Any) -> bytes:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        try:
            return real(*args, **kwargs)
        finally:
            with lock:
                at_once[0] -= 1

    monkeypatch.setattr(hashlib, "scrypt", counted)
    given = Basic({"anna": HASHED})

    def guess(number: int) -> None:
        with pytest.raises(Unauthorized):
            given.recognise(basic("anna", str(number)))

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert 1 <= most[0] <= 2


# The walk ----------------------------------------------------------------------------------------------------------------


def test_each_credential_finds_the_one_that_knows_it(issuer: Issuer, oidc: Oidc) -> None:
    key = "orc_key"
    entry = f"cron=sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    door = walk([by_secret(), oidc, ApiKeys(entry), Basic({"birgit": BIRGIT})], Settings())
    assert door.caller(bearer(with_secret())).principal == ANNA
    assert door.caller(bearer(signed(RSA, claims(issuer.url), "one"))).principal == Principal(
        "oidc", "user", "anna", issuer.url
    )
    assert door.caller(bearer(key)).principal == Principal("api-key", "service", "cron")
    assert door.caller(basic("birgit", "geheim")).principal == Principal("basic", "user", "birgit")


def test_a_key_that_was_changed_may_have_two_while_it_changes() -> None:
    new = Jwt(issuer=SHOP, audience=AUDIENCE, secret="another secret, which comes after the first")
    for token in (with_secret(), with_secret("another secret, which comes after the first")):
        assert walk([new, by_secret()], Settings()).caller(bearer(token)).principal == ANNA


def test_the_first_that_knows_a_credential_decides() -> None:
    asked: list[str] = []

    class Said(Authenticator):
        def __init__(self, name: str, found: Caller | None) -> None:
            self.name, self.found = name, found

        def recognise(self, shown: Shown) -> Caller | None:
            asked.append(self.name)
            return self.found

    known = Caller(Principal("own", "user", "zoe"))
    door = walk([Said("first", None), Said("second", known), Said("third", Caller())], Settings())
    assert door.caller(Shown({"cookie": "x"})) is known
    assert asked == ["first", "second"]


def test_a_refusal_ends_the_walk() -> None:
    expired = bearer(with_secret(exp=1))
    with pytest.raises(Unauthorized, match="expired"):
        walk([by_secret(), Anonymous()], Settings()).caller(expired)


def test_who_shows_nothing_comes_in_only_where_that_was_opened() -> None:
    for opened in ([by_secret(), Anonymous()], [Anonymous(), by_secret()]):
        assert walk(opened, Settings()).caller(Shown()).principal is None
        with pytest.raises(Unauthorized):
            walk(opened, Settings()).caller(bearer("wrong"))
    with pytest.raises(Unauthorized):
        walk([by_secret()], Settings()).caller(Shown())
    assert walk([by_secret()], Settings(allow_anonymous="all")).caller(Shown()).principal is None


def test_a_refusal_names_all_that_is_accepted() -> None:
    with pytest.raises(Unauthorized) as caught:
        walk([by_secret(), Basic({"birgit": BIRGIT})], Settings()).caller(Shown())
    assert caught.value.facts["challenges"] == (
        'Bearer realm="orchestrator"',
        'Basic realm="orchestrator", charset="UTF-8"',
    )
    assert SHOP in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_environment_decides_where_the_app_says_nothing(issuer: Issuer) -> None:
    settings = Settings(jwt_issuer=SHOP, jwt_audience=AUDIENCE, jwt_key=SECRET)
    assert walk((), settings).caller(bearer(with_secret())).principal == ANNA
    settings = Settings(jwt_issuer=SHOP, jwt_audience=AUDIENCE, jwt_key=pem(EC).replace("\n", "\\n"))
    assert walk((), settings).caller(bearer(signed(EC, claims(SHOP)))).principal == ANNA
    settings = Settings(jwt_issuer=issuer.url, jwt_audience=AUDIENCE)
    assert walk((), settings).caller(bearer(signed(RSA, claims(issuer.url), "one"))).principal == Principal(
        "oidc", "user", "anna", issuer.url
    )


def test_where_the_app_says_who_may_the_environment_is_asked_only_if_the_app_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Settings(api_keys=f"cron=sha256:{hashlib.sha256(b'k').hexdigest()}")
    with pytest.raises(Unauthorized):
        walk([by_secret()], settings).caller(bearer("k"))
    assert "ORCHESTRATOR_API_KEYS" in caplog.text
    assert walk([by_secret(), ApiKeys()], settings).caller(bearer("k")).principal == Principal(
        "api-key", "service", "cron"
    )


def test_an_app_is_told_when_it_is_given_what_is_no_authenticator() -> None:
    with pytest.raises(ConfigError, match=r"orchestrator\.auth"):
        walk(["secret"], Settings())  # type: ignore[list-item]  # that is the mistake


@pytest.mark.parametrize(
    "given", [{"jwt_key": SECRET}, {"jwt_issuer": SHOP}, {"jwt_audience": "x"}, {"jwt_issuer": SHOP, "jwt_key": SECRET}]
)
def test_settings_for_tokens_that_would_let_anybodys_in_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="ORCHESTRATOR_JWT"):
        Settings(**given)  # type: ignore[arg-type]  # texts only


def test_secrets_are_not_handed_to_processes_that_need_none() -> None:
    settings = Settings(api_keys="x", jwt_issuer=SHOP, jwt_audience=AUDIENCE, jwt_key=SECRET)
    handed = settings.as_environment()
    assert SECRET not in handed.values()
    assert "ORCHESTRATOR_API_KEYS" not in handed


def _part(value: object) -> str:
    return _text(json.dumps(value).encode())


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
