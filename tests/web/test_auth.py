"""Who may come in."""

import logging
from hashlib import sha256

import pytest

import web
from orchestrator.agent import Agent, App
from orchestrator.apikeys import mint, owner, parse
from orchestrator.auth import SCOPES, ApiKeys, Basic, Jwt, Oidc, hash_password
from orchestrator.config import Settings, from_environment
from orchestrator.engine import Engine
from orchestrator.errors import ConfigError
from tests.web.issuer import AUDIENCE, RSA, Issuer, claims, signed
from tests.web.support import Http, http_of

KEY, ENTRY = "orc_of-the-shop", f"shop=sha256:{sha256(b'orc_of-the-shop').hexdigest()}"
OTHER, OTHER_ENTRY = "orc_of-cron", f"cron=sha256:{sha256(b'orc_of-cron').hexdigest()}"
NOBODY = "ses_" + "0" * 28
ROUTES = [
    ("POST", "/session"),
    ("POST", f"/session/{NOBODY}"),
    ("POST", f"/session/{NOBODY}/cancel"),
    ("POST", f"/session/{NOBODY}/clear"),
    ("GET", f"/session/{NOBODY}/stream"),
    ("POST", f"/session/{NOBODY}/compact"),
    ("POST", f"/session/{NOBODY}/reset"),
    ("GET", "/info"),
]


def door(url: str, **settings: str) -> Http:
    engine = Engine(App(agents=[Agent("helper")]), Settings(url=url, **settings))  # type: ignore[arg-type]  # texts only
    return http_of(web.create_app(engine=engine))


def status(http: Http, given: str = "", peer: str = "127.0.0.1", **headers: str) -> int:
    if given:
        headers["authorization"] = given
    answer = http.post("/eve/v1/session", headers=headers, environ_overrides={"REMOTE_ADDR": peer})
    return int(answer.status_code)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("base", ["/eve/v1", "/v1"])
def test_nobody_comes_in_until_somebody_opens_the_door(url: str, base: str, method: str, path: str) -> None:
    answer = door(url).open(base + path, method=method)
    assert answer.status_code == 401
    assert answer.json["code"] == "unauthorized"
    assert answer.json["ok"] is False
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "ORCHESTRATOR_API_KEYS" in answer.json["error"]
    assert "orchestrator keys new" in answer.json["error"]


def test_our_own_lists_are_closed_as_well(url: str) -> None:
    http = door(url)
    assert http.get("/v1/sessions").status_code == 401
    assert http.get(f"/v1/session/{NOBODY}").status_code == 401
    assert http.delete(f"/v1/session/{NOBODY}").status_code == 401


def test_health_needs_no_key(url: str) -> None:
    http = door(url)
    assert http.get("/eve/v1/health").status_code == 200
    assert http.get("/v1/health").status_code == 200


def test_a_key_opens(url: str) -> None:
    http = door(url, api_keys=f"{ENTRY}, {OTHER_ENTRY}")
    assert status(http, f"Bearer {KEY}") == 202
    assert status(http, f"bearer  {OTHER}") == 202


@pytest.mark.parametrize("given", ["Bearer wrong", "Bearer", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer \xff"])
@pytest.mark.parametrize("anonymous", ["", "loopback", "all"])
def test_a_wrong_key_is_refused_also_where_anybody_may_call(url: str, given: str, anonymous: str) -> None:
    assert status(door(url, api_keys=ENTRY, allow_anonymous=anonymous), given) == 401


def test_without_a_key_it_depends_on_whether_anybody_may_call(url: str) -> None:
    assert status(door(url, api_keys=ENTRY)) == 401
    assert status(door(url, api_keys=ENTRY, allow_anonymous="all"), peer="203.0.113.9") == 202
    assert status(door(url, allow_anonymous="all"), peer="203.0.113.9") == 202


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_who_is_on_this_machine(url: str, peer: str) -> None:
    assert status(door(url, allow_anonymous="loopback"), peer=peer) == 202


@pytest.mark.parametrize("peer", ["203.0.113.9", "10.0.0.1", "::2", "::ffff:10.0.0.1", "", "localhost", "unix:"])
def test_headers_do_not_make_a_caller_local(url: str, peer: str) -> None:
    http = door(url, allow_anonymous="loopback")
    assert status(http, peer=peer, Host="localhost", **{"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=::1"}) == 401


def test_a_page_of_another_host_does_not_come_in_through_a_browser_of_this_machine(url: str) -> None:
    http = door(url, allow_anonymous="loopback")
    for origin in ("https://evil.example", "null", "file://", "http://[", "http://localhost.evil.example"):
        assert status(http, origin=origin) == 401
    assert status(http, origin="http://localhost:3000") == 202
    # A name of somebody else's that leads to this machine is the page's own origin, and a GET of it sends no other.
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "[::2]:80", "http://["):
        assert status(http, Host=host) == 401
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert status(http, Host=host) == 202
    named = door(url, allow_anonymous="loopback", cors_origins="https://shop.example")
    assert status(named, origin="https://shop.example") == 202
    assert status(named, origin="https://evil.example") == 401
    assert status(door(url, allow_anonymous="loopback", cors_origins="*"), origin="https://evil.example") == 401


def test_a_refusal_names_every_scheme_that_is_accepted(url: str) -> None:
    users = Basic({"anna": hash_password("x")})
    tokens = Jwt(issuer="https://shop.example", audience="us", secret="s" * 64)
    app = App(agents=[Agent("helper")], auth=[tokens, users])
    http = http_of(web.create_app(engine=Engine(app, Settings(url=url))))
    told = http.get("/eve/v1/info")
    assert told.status_code == 401
    assert told.headers["www-authenticate"] == (
        'Bearer realm="orchestrator", Basic realm="orchestrator", charset="UTF-8"'
    )


def test_while_an_issuer_is_away_its_callers_are_asked_to_come_back(url: str) -> None:
    with Issuer() as issuer:
        issuer.alter = lambda _, __: 500
        app = App(agents=[Agent("helper")], auth=[Oidc(issuer.url, audience=AUDIENCE)])
        http = http_of(web.create_app(engine=Engine(app, Settings(url=url))))
        token = signed(RSA, claims(issuer.url), "one")
        told = http.get("/eve/v1/info", headers={"authorization": f"Bearer {token}"})
        assert (told.status_code, told.json["code"], told.headers["retry-after"]) == (503, "issuer_away", "1")
        assert http.get("/eve/v1/info").status_code == 401
        assert http.get("/eve/v1/health").status_code == 200


@pytest.mark.parametrize("given", ["Bearer very-secret-indeed", "Basic dmVyeTpzZWNyZXQ="])
def test_a_credential_is_never_logged(url: str, given: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = App(agents=[Agent("helper")], auth=[ApiKeys(ENTRY), Basic({"very": hash_password("other")})])
    http = http_of(web.create_app(engine=Engine(app, Settings(url=url))))
    told = http.get(f"/v1/session/{NOBODY}", headers={"authorization": given})
    assert told.status_code == 401
    for secret in (given.split(" ")[1], "very-secret-indeed", "very:secret"):
        assert secret not in caplog.text
        assert secret not in told.text


@pytest.mark.parametrize(
    ("text", "means"),
    [("1", "all"), ("true", "all"), ("ALL", "all"), ("loopback", "loopback"), ("0", ""), ("false", ""), ("", "")],
)
def test_the_setting_has_three_meanings(text: str, means: str) -> None:
    assert from_environment(environ={"ORCHESTRATOR_ALLOW_ANONYMOUS": text}).allow_anonymous == means


def test_a_setting_nobody_understands_opens_nothing() -> None:
    with pytest.raises(ConfigError, match="ORCHESTRATOR_ALLOW_ANONYMOUS"):
        from_environment(environ={"ORCHESTRATOR_ALLOW_ANONYMOUS": "localhost"})


def test_a_minted_key_is_known_by_its_entry_and_the_entry_does_not_tell_it() -> None:
    assert KEY not in ENTRY
    assert mint("shop")[0] != KEY
    keys = parse(f"{ENTRY},{OTHER_ENTRY},")
    assert (owner(keys, KEY), owner(keys, OTHER), owner(keys, "x"), owner((), KEY)) == ("shop", "cron", None, None)


def test_a_name_may_have_two_keys() -> None:
    new, entry = mint("shop")
    keys = parse(f"{ENTRY},{entry}")
    assert owner(keys, KEY) == owner(keys, new) == "shop"


def test_a_key_says_what_it_may_and_an_old_one_may_all_but_erase() -> None:
    digest = "sha256:" + "0" * 64
    [old, narrow, everything] = parse(f"a={digest},b:read+erase={digest},c:admin={digest}")
    assert old.scopes == {"read", "send", "answer", "control"}
    assert narrow.scopes == {"read", "erase"}
    assert everything.scopes == SCOPES


def test_a_key_is_made_with_the_scopes_that_were_asked_for() -> None:
    key, entry = mint("shop", ["read", "send"])
    [made] = parse(entry)
    assert entry.startswith("shop:read+send=sha256:")
    assert owner([made], key) == "shop"
    assert made.scopes == {"read", "send"}
    with pytest.raises(ConfigError, match="'write' is no scope"):
        mint("shop", ["write"])


@pytest.mark.parametrize(
    "entry",
    ["shop", f"shop={KEY}", "shop=sha256:12", "=sha256:" + "0" * 64, "A b=sha256:" + "0" * 64]
    + [f"shop:{scopes}=sha256:" + "0" * 64 for scopes in ("", "write", "read+", "read,send")],
    ids=[
        "no digest",
        "the key itself",
        "a short digest",
        "no name",
        "a blank",
        "no scope",
        "another",
        "half",
        "a comma",
    ],
)
def test_an_entry_that_is_none_is_refused_without_being_shown(url: str, entry: str) -> None:
    with pytest.raises(ConfigError, match="Entry 2") as caught:
        door(url, api_keys=f"{OTHER_ENTRY},{entry}")
    assert KEY not in str(caught.value)


def test_a_key_needs_a_name() -> None:
    with pytest.raises(ConfigError):
        mint("a,b")
