"""Pages of other hosts: what a browser may let them read."""

from typing import Any

import pytest

import web
from orchestrator.apikeys import mint
from orchestrator.config import Settings
from orchestrator.errors import ConfigError
from tests.web.support import Hand, Http, engine_on, http_of

PAGE, OTHER = "https://shop.example", "https://evil.example"
QUESTION = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
SESSION = "/eve/v1/session"
EXPOSED = {"x-eve-stream-version", "x-eve-stream-tail-index", "x-eve-session-id", "retry-after"}


def door(url: str, origins: str = "", **settings: Any) -> Http:
    return http_of(web.create_app(engine=engine_on(url, cors_origins=origins, **settings)))


def told(answer: Any) -> dict[str, str]:
    return {name.lower(): text for name, text in answer.headers if name.lower().startswith("access-control")}


def words(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",")}


def test_without_the_setting_no_page_of_another_host_is_told_anything(url: str) -> None:
    http = door(url)
    assert told(http.post(SESSION, headers={"origin": PAGE})) == {}
    assert told(http.options(SESSION, headers={"origin": PAGE, **QUESTION})) == {}
    assert "origin" not in str(http.post(SESSION).headers.get("vary", "")).lower()


@pytest.mark.parametrize("path", [SESSION, f"{SESSION}/x/stream", "/v1/session/x", "/eve/v1/info", "/eve/v1/health"])
def test_a_browser_may_ask_first_without_a_credential(url: str, path: str) -> None:
    http = door(url, PAGE, allow_anonymous="")
    answer = http.options(path, headers={"origin": PAGE, **QUESTION})
    assert answer.status_code < 300
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert {"get", "post", "delete"} <= words(answer.headers["access-control-allow-methods"])
    assert {"authorization", "content-type"} <= words(answer.headers["access-control-allow-headers"])
    assert "origin" in answer.headers["vary"].lower()


def test_headers_of_the_clients_own_are_allowed_and_others_are_not(url: str) -> None:
    asked = {**QUESTION, "access-control-request-headers": "X-Tenant, cookie,x-eve-trace"}
    answer = door(url, PAGE).options(SESSION, headers={"origin": PAGE, **asked})
    allowed = words(answer.headers["access-control-allow-headers"])
    assert {"x-tenant", "x-eve-trace"} <= allowed
    assert "cookie" not in allowed


def test_the_request_itself_still_needs_its_credential(url: str) -> None:
    key, entry = mint("shop")
    http = door(url, PAGE, allow_anonymous="", api_keys=entry)
    refused = http.post(SESSION, headers={"origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE  # the page may read why
    answer = http.post(SESSION, headers={"origin": PAGE, "authorization": f"Bearer {key}"})
    assert answer.status_code == 202
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert words(answer.headers["access-control-expose-headers"]) == EXPOSED


@pytest.mark.parametrize(
    "origin", [OTHER, "http://shop.example", "https://shop.example:8443", PAGE + ".evil.example", "null"]
)
def test_another_page_is_told_nothing(url: str, origin: str) -> None:
    http = door(url, f"{PAGE}, http://localhost:3000")
    for answer in (
        http.options(SESSION, headers={"origin": origin, **QUESTION}),
        http.post(SESSION, headers={"origin": origin}),
    ):
        assert told(answer) == {}
        assert "origin" in answer.headers["vary"].lower()


def test_several_pages_may_be_named(url: str) -> None:
    http = door(url, f"{PAGE}/, http://localhost:3000")
    for origin in (PAGE, "http://localhost:3000", "HTTPS://SHOP.EXAMPLE"):
        assert http.post(SESSION, headers={"origin": origin}).headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origins", ["*", PAGE])
def test_credentials_of_the_browser_are_never_asked_for(url: str, origins: str) -> None:
    http = door(url, origins)
    for answer in (
        http.options(SESSION, headers={"origin": PAGE, **QUESTION}),
        http.post(SESSION, headers={"origin": PAGE}),
    ):
        assert "access-control-allow-credentials" not in told(answer)
        assert told(answer)["access-control-allow-origin"] == ("*" if origins == "*" else PAGE)


def test_a_stream_can_be_read_by_a_page_that_was_named(url: str) -> None:
    engine = engine_on(url, cors_origins=PAGE)
    hand = Hand(engine)
    hand.said(1)
    http = http_of(web.create_app(engine=engine))
    answer = http.get(f"{SESSION}/{hand.session}/stream?follow=false", headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert words(answer.headers["access-control-expose-headers"]) == EXPOSED
    assert answer.text.count("message.appended") == 1


def test_a_failure_can_be_read_as_well(url: str) -> None:
    answer = door(url, PAGE).post(SESSION, data=b"{", headers={"origin": PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (400, PAGE)


@pytest.mark.parametrize(
    "origins", ["shop.example", "https://shop.example/path", f"*,{PAGE}", "https://a@b", "https://x:y"]
)
def test_what_is_no_origin_is_refused_at_the_start(origins: str) -> None:
    with pytest.raises(ConfigError, match="ORCHESTRATOR_CORS_ORIGINS"):
        Settings(cors_origins=origins)
