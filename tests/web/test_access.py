"""Who may do what: services by their scopes, users by the sessions they take part in."""

import json
import time
from typing import Any

import jwt
import pytest
from werkzeug.test import EnvironBuilder

import web
from orchestrator.agent import Access, Agent, App
from orchestrator.apikeys import mint
from orchestrator.auth import ApiKeys, Jwt
from orchestrator.config import Settings
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.engine import Engine
from tests.web.issuer import AUDIENCE, claims
from tests.web.support import Hand, Http, http_of

SHOP, SECRET = "https://shop.example", "s" * 64
NOBODY = "ses_" + "0" * 28
BOTH = pytest.mark.parametrize("base", ["/eve/v1", "/v1"])
Headers = dict[str, str]


def user(name: str) -> Headers:
    token = jwt.encode(claims(SHOP, sub=name), SECRET, "HS256")
    return {"authorization": f"Bearer {token}"}


ANNA, BIRGIT = user("anna"), user("birgit")


class Shop:
    """A shop whose customers talk to us from their browsers, and whose services have keys."""

    def __init__(self, url: str, access: Access | None = None, **scopes: str) -> None:
        made = {name: mint(name, given.split("+") if given else ()) for name, given in scopes.items()}
        self._keys = {name: key for name, (key, _) in made.items()}
        auth = [
            Jwt(issuer=SHOP, audience=AUDIENCE, secret=SECRET),
            ApiKeys([entry for _, entry in made.values()]),
        ]
        app = App(agents=[Agent("helper")], auth=auth, access=access)
        self.engine = Engine(app, Settings(url=url))
        self.http: Http = http_of(web.create_app(engine=self.engine))

    def key(self, name: str) -> Headers:
        return {"authorization": f"Bearer {self._keys[name]}"}

    def created(self, who: Headers, base: str = "/eve/v1") -> SessionId:
        answer = self.http.post(f"{base}/session", json={"message": "hello"}, headers=who)
        assert answer.status_code == 202, answer.text
        return SessionId(answer.json["sessionId"])


@pytest.fixture
def shop(url: str) -> Shop:
    return Shop(
        url,
        service="",
        reader="read",
        sender="send",
        answerer="answer",
        controller="control",
        eraser="erase",
        boss="admin",
    )


def asked(shop: Shop, who: Headers, base: str, session: str) -> dict[str, tuple[int, dict[str, Any]]]:
    """What each route says of a session, without its id and what is new with each request."""
    routes: dict[str, tuple[str, str, Any]] = {
        "stream": ("GET", "/stream?follow=false", None),
        "head": ("HEAD", "/stream", None),
        "message": ("POST", "", {"message": "more"}),
        "answer": ("POST", "", {"inputResponses": [{"requestId": "req_1"}]}),
        "cancel": ("POST", "/cancel", {}),
        "clear": ("POST", "/clear", None),
        "compact": ("POST", "/compact", None),
        "reset": ("POST", "/reset", {}),
    }
    if base == "/v1":
        routes |= {"view": ("GET", "", None), "erase": ("DELETE", "", None)}
    found = {}
    for name, (method, path, body) in routes.items():
        answer = shop.http.open(f"{base}/session/{session}{path}", method=method, json=body, headers=who)
        text = answer.text.replace(session, "ID")
        found[name] = (answer.status_code, json.loads(text) if text.startswith("{") else {})
    return found


@BOTH
def test_what_a_user_takes_no_part_in_looks_as_if_it_did_not_exist(shop: Shop, base: str) -> None:
    session = shop.created(ANNA)
    before = shop.engine.reads.heads(session, 0)
    assert asked(shop, BIRGIT, base, session) == asked(shop, BIRGIT, base, NOBODY)
    assert shop.engine.reads.heads(session, 0) == before
    assert shop.engine.view(session).status != "ending"


@BOTH
def test_a_user_does_with_an_own_session_what_there_is_to_do(shop: Shop, base: str) -> None:
    told = asked(shop, ANNA, base, shop.created(ANNA, base))
    assert [status for status, _ in (told["stream"], told["head"])] == [200, 200]
    assert [told[name][0] for name in ("message", "cancel", "clear", "compact", "reset")] == [202, 202, 202, 202, 200]
    assert told["reset"][1]["status"] == "reset"


def test_a_user_does_not_erase(shop: Shop) -> None:
    session = shop.created(ANNA)
    answer = shop.http.delete(f"/v1/session/{session}", headers=ANNA)
    assert (answer.status_code, answer.json["code"]) == (403, "forbidden")
    assert "erase" in answer.json["error"]
    assert shop.engine.view(session).agent == "helper"


def test_a_session_of_a_service_is_not_a_users(shop: Shop) -> None:
    session = shop.created(shop.key("service"))
    assert shop.http.get(f"/v1/session/{session}", headers=ANNA).status_code == 404
    assert shop.http.get(f"/v1/session/{session}", headers=shop.key("reader")).status_code == 200


def test_somebody_else_of_the_same_name_is_somebody_else(url: str) -> None:
    other = "https://other.example"
    auth = [Jwt(issuer=issuer, audience=AUDIENCE, secret=SECRET) for issuer in (SHOP, other)]
    engine = Engine(App(agents=[Agent("helper")], auth=auth), Settings(url=url))
    http = http_of(web.create_app(engine=engine))
    session = http.post("/v1/session", json={"message": "a"}, headers=ANNA).json["sessionId"]
    stranger = jwt.encode(claims(other), SECRET, "HS256")
    assert http.get(f"/v1/session/{session}", headers=ANNA).status_code == 200
    assert http.get(f"/v1/session/{session}", headers={"authorization": f"Bearer {stranger}"}).status_code == 404


def test_a_user_sees_only_own_sessions_in_the_list(shop: Shop) -> None:
    own = [shop.created(ANNA) for _ in range(2)]
    others = [shop.created(BIRGIT), shop.created(shop.key("service"))]

    def listed(who: Headers, query: str = "") -> set[str]:
        answer = shop.http.get(f"/v1/sessions{query}", headers=who)
        return {entry["sessionId"] for entry in answer.json["sessions"]}

    assert listed(ANNA) == set(own)
    assert listed(BIRGIT) == {others[0]}
    assert listed(shop.key("reader")) == {*own, *others}
    assert len(listed(ANNA, "?limit=1")) == 1


@BOTH
def test_the_app_may_let_a_user_reach_more(url: str, base: str) -> None:
    questions: list[tuple[str, str]] = []

    def widen(principal: Principal | None, session: SessionId, action: str) -> bool:
        assert principal is not None
        questions.append((principal.id, action))
        return principal.id == "birgit" and action in ("read", "erase")

    shop = Shop(url, widen, service="")
    session = shop.created(ANNA)
    told = asked(shop, BIRGIT, base, session)
    assert told["stream"][0] == 200
    assert told["message"][0] == 409
    assert told["reset"][1]["status"] == "no_active_session"
    if base == "/v1":
        assert told["view"][0] == 200
        assert told["erase"][1]["status"] == "erased"
    assert {name for name, _ in questions} == {"birgit"}
    questions.clear()
    mine = shop.created(ANNA)
    shop.http.post(f"{base}/session/{mine}", json={"message": "b"}, headers=ANNA)
    shop.http.get(f"{base}/session/{mine}/stream?follow=false", headers=shop.key("service"))
    assert questions == []  # nobody is asked about what needs no widening


def test_a_user_may_be_let_erase_an_own_session(url: str) -> None:
    shop = Shop(url, lambda principal, session, action: action == "erase")
    session = shop.created(ANNA)
    assert shop.http.delete(f"/v1/session/{session}", headers=ANNA).json["status"] == "erased"


NEEDED = {
    "stream": "read",
    "head": "read",
    "view": "read",
    "message": "send",
    "answer": "answer",
    "cancel": "control",
    "clear": "control",
    "compact": "control",
    "reset": "control",
    "erase": "erase",
}


@pytest.mark.parametrize("name", ["reader", "sender", "answerer", "controller", "eraser"])
def test_a_service_does_what_its_scope_says_and_nothing_else(shop: Shop, name: str) -> None:
    scope = {"reader": "read", "sender": "send", "answerer": "answer", "controller": "control", "eraser": "erase"}[name]
    session = shop.created(shop.key("service"))
    for route, (status, body) in asked(shop, shop.key(name), "/v1", session).items():
        if NEEDED[route] == scope:
            assert status != 403, route
        elif route == "head":
            assert status == 403
        else:
            assert (route, status, body["code"]) == (route, 403, "forbidden")
            assert NEEDED[route] in body["error"]


@pytest.mark.parametrize(
    ("method", "path", "scope", "body"),
    [
        ("POST", "/eve/v1/session", "send", {"message": "a"}),
        ("GET", "/eve/v1/info", "read", None),
        ("GET", "/v1/sessions", "read", None),
    ],
)
def test_what_is_about_no_session_needs_a_scope_as_well(
    shop: Shop, method: str, path: str, scope: str, body: object
) -> None:
    for name, has in (("reader", "read"), ("sender", "send"), ("eraser", "erase"), ("boss", scope)):
        answer = shop.http.open(path, method=method, json=body, headers=shop.key(name))
        assert (answer.status_code == 403) == (has != scope)


def test_a_missing_scope_is_told_before_whether_the_session_exists(shop: Shop) -> None:
    told = asked(shop, shop.key("sender"), "/v1", NOBODY)
    assert told["view"][0] == told["erase"][0] == told["reset"][0] == 403
    assert told["message"][0] == 409


def test_an_admin_may_do_everything(shop: Shop) -> None:
    told = asked(shop, shop.key("boss"), "/v1", shop.created(ANNA))
    assert 403 not in {status for status, _ in told.values()}
    assert told["erase"][1]["status"] == "erased"


@pytest.mark.parametrize(("opened", "status"), [("loopback", 200), ("all", 403)])
def test_who_has_no_name_erases_only_on_this_machine(url: str, opened: Any, status: int) -> None:
    engine = Engine(App(agents=[Agent("helper")]), Settings(url=url, allow_anonymous=opened))
    http = http_of(web.create_app(engine=engine))
    session = http.post("/v1/session").json["sessionId"]
    assert http.get(f"/v1/session/{session}").status_code == 200
    assert http.delete(f"/v1/session/{session}").status_code == status


def test_forged_headers_open_nothing(shop: Shop) -> None:
    session = shop.created(ANNA)
    forged = {
        "host": "localhost",
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-user": "anna",
        "x-real-ip": "127.0.0.1",
        "forwarded": "for=127.0.0.1",
        "remote-user": "anna",
    }
    assert shop.http.get(f"/v1/session/{session}", headers=forged).status_code == 401
    assert shop.http.get(f"/v1/session/{session}", headers={**forged, **BIRGIT}).status_code == 404


def test_who_has_sent_to_a_session_takes_part_in_it(url: str) -> None:
    shop = Shop(url, lambda principal, session, action: action == "send")
    session = shop.created(ANNA)
    assert shop.http.get(f"/v1/session/{session}", headers=BIRGIT).status_code == 404
    assert shop.http.post(f"/v1/session/{session}", json={"message": "b"}, headers=BIRGIT).status_code == 202
    assert shop.http.get(f"/v1/session/{session}", headers=BIRGIT).status_code == 200


def test_who_may_only_stop_it_takes_no_part_in_it_by_that(url: str) -> None:
    shop = Shop(url, lambda principal, session, action: action == "control")
    session = shop.created(ANNA)
    for control in ("cancel", "clear", "compact"):
        assert shop.http.post(f"/v1/session/{session}/{control}", headers=BIRGIT).status_code == 202
    assert shop.http.get(f"/v1/session/{session}", headers=BIRGIT).status_code == 404
    assert shop.http.post(f"/v1/session/{session}", json={"message": "b"}, headers=BIRGIT).status_code == 409


def test_a_stream_ends_with_the_token_of_its_reader(url: str) -> None:
    auth = [Jwt(issuer=SHOP, audience=AUDIENCE, secret=SECRET, leeway_seconds=0)]
    engine = Engine(App(agents=[Agent("helper")], auth=auth), Settings(url=url))
    flask = web.create_app(engine=engine)
    session = http_of(flask).post("/v1/session", json={"message": "a"}, headers=ANNA).json["sessionId"]
    ends = time.time() + 1.0
    token = jwt.encode(claims(SHOP, exp=ends), SECRET, "HS256")
    path = f"/v1/session/{session}/stream"
    environ = EnvironBuilder(path=path, headers=[("authorization", f"Bearer {token}")], multithread=True).get_environ()
    said = b"".join(flask(environ, lambda *_: None))  # type: ignore[arg-type]  # nobody writes
    assert 0 <= time.time() - ends < 1.0
    assert said == b"\n"


def test_only_for_users_the_journal_is_asked_who_takes_part(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[SessionId] = []
    real = shop.engine.takes_part

    def counted(session: SessionId, principal: Principal) -> bool:
        asked_for.append(session)
        return real(session, principal)

    monkeypatch.setattr(shop.engine, "takes_part", counted)
    hand = Hand(shop.engine)
    shop.http.get(f"/v1/session/{hand.session}", headers=shop.key("reader"))
    assert asked_for == []
    shop.http.get(f"/v1/session/{hand.session}", headers=ANNA)
    assert asked_for == [hand.session]
