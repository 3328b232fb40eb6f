"""The routes by address: one conversation, whatever session has it now."""

from typing import Any

import pytest

from orchestrator import StandardWebhook
from orchestrator.auth import Basic, hash_password
from orchestrator.core.snapshot import Principal
from tests.channels.conftest import MakeSite, Site
from tests.channels.signing import GOOD

PASSWORD = hash_password("pw")


@pytest.fixture
def plain(make_site: MakeSite) -> Site:
    return make_site()


def told(answer: Any) -> tuple[int, dict[str, Any]]:
    return answer.status_code, answer.get_json()


def say(site: Site, path: str, message: str = "Hi", **more: object) -> tuple[int, dict[str, Any]]:
    return told(site.http.post(f"/v1/channels/{path}", json={"message": message, **more}))


def test_a_message_begins_a_session_and_the_next_one_finds_it(plain: Site) -> None:
    status, first = say(plain, "support/ticket-1")
    assert status == 202
    assert set(first) == {"ok", "sessionId", "deliveryId", "status"}
    _, second = say(plain, "support/ticket-1", "And now?")
    assert second["sessionId"] == first["sessionId"]
    assert second["deliveryId"] != first["deliveryId"]
    assert plain.said(first["sessionId"]) == ["Hi", "And now?"]
    assert told(plain.http.get("/v1/channels/support/ticket-1")) == (200, {"ok": True, "sessionId": first["sessionId"]})


def test_addresses_are_apart_by_channel_and_text(plain: Site) -> None:
    found = {say(plain, path)[1]["sessionId"] for path in ("a/x", "b/x", "a/X", "a/x%20", "a/x%2F")}
    assert len(found) == 5


def test_nobody_is_there_until_somebody_has_come(plain: Site) -> None:
    status, body = told(plain.http.get("/v1/channels/support/ticket-1"))
    assert (status, body["code"]) == (404, "session_not_found")
    for control, none in (
        ("cancel", "no_active_turn"),
        ("clear", "no_active_session"),
        ("compact", "no_active_session"),
    ):
        assert told(plain.http.post(f"/v1/channels/support/ticket-1/{control}")) == (
            200,
            {"ok": True, "status": none},
        )
    assert told(plain.http.post("/v1/channels/support/ticket-1/reset"))[1]["status"] == "no_active_session"
    assert plain.sessions() == []


def test_controls_reach_the_session_of_the_address(plain: Site) -> None:
    session = say(plain, "support/ticket-1")[1]["sessionId"]
    for control in ("cancel", "clear", "compact"):
        answer = told(plain.http.post(f"/v1/channels/support/ticket-1/{control}"))
        assert answer == (202, {"ok": True, "sessionId": session, "status": "accepted"})
    answer = told(plain.http.post("/v1/channels/support/ticket-1/reset", json={"reason": "done"}))
    assert answer == (200, {"ok": True, "previousSessionId": session, "status": "reset"})


def test_after_a_reset_the_next_message_begins_another_session(plain: Site) -> None:
    _, first = say(plain, "support/ticket-1")
    plain.http.post("/v1/channels/support/ticket-1/reset")
    assert plain.http.get("/v1/channels/support/ticket-1").status_code == 404
    _, second = say(plain, "support/ticket-1", "Anew")
    assert second["sessionId"] != first["sessionId"]
    assert plain.said(second["sessionId"]) == ["Anew"]


def test_a_key_makes_it_one_message_also_after_a_reset(plain: Site) -> None:
    first = say(plain, "support/ticket-1", deliveryKey="k1")
    assert say(plain, "support/ticket-1", deliveryKey="k1") == first
    status, body = say(plain, "support/ticket-1", "Something else", deliveryKey="k1")
    assert (status, body["code"]) == (409, "delivery_key_reused")
    plain.http.post("/v1/channels/support/ticket-1/reset")
    assert say(plain, "support/ticket-1", deliveryKey="k1") == first
    assert plain.sessions() == [first[1]["sessionId"]]


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("a/b", "a/b"),
        ("a%2Fb", "a/b"),
        ("%2Fa", "/a"),
        ("a%2F", "a/"),
        ("a%2F%2Fb", "a//b"),
        ("https%3A%2F%2Fchat.example%2Frooms%3Fid%3D7", "https://chat.example/rooms?id=7"),
        ("C123%3A1700000000.000100", "C123:1700000000.000100"),
        ("a%20b+c", "a b+c"),
        ("%C3%BC%F0%9F%90%98", "ü🐘"),
        ("a%2Fcancel", "a/cancel"),
        ("cancel", "cancel"),
        ("a%0Ab", "a\nb"),
        ("%2525", "%25"),
    ],
)
def test_an_address_may_be_any_text(plain: Site, path: str, address: str) -> None:
    session = say(plain, f"support/{path}")[1]["sessionId"]
    assert plain.engine.resolve("support", address) == session
    assert told(plain.http.get(f"/v1/channels/support/{path}"))[1]["sessionId"] == session
    assert told(plain.http.post(f"/v1/channels/support/{path}/clear"))[1]["sessionId"] == session


def test_a_server_that_hides_the_path_as_it_was_sent_serves_simple_addresses(plain: Site) -> None:
    hidden = {"RAW_URI": "", "REQUEST_URI": ""}
    answer = plain.http.post("/v1/channels/support/a%2Fb", json={"message": "Hi"}, environ_overrides=hidden)
    session = told(answer)[1]["sessionId"]
    assert plain.engine.resolve("support", "a/b") == session
    answer = plain.http.post("/v1/channels/support/a%2Fb/clear", environ_overrides=hidden)
    assert told(answer)[1]["sessionId"] == session


@pytest.mark.parametrize(
    "path", ["Support/a", "sup%20port/a", "%FF/a", "support/%FF", "support/" + "x" * 1025, "support/"]
)
def test_what_is_no_channel_or_no_address_is_refused(plain: Site, path: str) -> None:
    assert say(plain, path)[0] in (400, 404)
    assert plain.sessions() == []


@pytest.mark.parametrize(
    "body", [{}, {"message": ""}, {"message": "m", "turnPolicy": "later"}, {"message": "m", "deliveryKey": 1}]
)
def test_what_is_no_message_is_400(plain: Site, body: dict[str, object]) -> None:
    assert plain.http.post("/v1/channels/support/a", json=body).status_code == 400


def test_an_answer_to_what_nobody_asked_is_refused(plain: Site) -> None:
    answer = {"inputResponses": [{"requestId": "req_1", "optionId": "yes"}]}
    status, body = told(plain.http.post("/v1/channels/support/a", json=answer))
    assert (status, body["code"]) == (409, "session_not_active")
    say(plain, "support/a")
    status, body = told(plain.http.post("/v1/channels/support/a", json=answer))
    assert (status, body["code"]) == (409, "request_unknown")


# Who may ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(make_site: MakeSite) -> Site:
    return make_site(auth=[Basic({"ada": PASSWORD, "bob": PASSWORD})], settings={"allow_anonymous": ""})


def as_user(site: Site, name: str, path: str, *, method: str = "POST", **body: object) -> tuple[int, dict[str, Any]]:
    return told(
        site.http.open(
            f"/v1/channels/{path}", method=method, json=body if method == "POST" else None, auth=(name, "pw")
        )
    )


def test_no_user_begins_a_conversation_that_a_webhook_will_go_on_with(make_site: MakeSite) -> None:
    tickets = StandardWebhook("tickets", secrets=[GOOD])
    site = make_site(tickets, auth=[Basic({"ada": PASSWORD})], settings={"allow_anonymous": ""})
    status, body = as_user(site, "ada", "tickets/ticket-7", message="Hi")
    assert (status, body["code"]) == (403, "forbidden")
    assert site.channel("tickets").resolve("ticket-7") is None
    mine = Principal("basic", "user", "ada")
    session = site.channel("tickets").from_("ticket-7").send("Hello", principal=mine).session
    assert as_user(site, "ada", "tickets/ticket-7", message="Hi")[1]["sessionId"] == session


def test_nobody_comes_in_without_a_credential(shared: Site) -> None:
    assert shared.http.post("/v1/channels/support/a", json={"message": "Hi"}).status_code == 401
    assert shared.http.get("/v1/channels/support/a").status_code == 401
    assert shared.http.post("/v1/channels/support/a/reset").status_code == 401


def test_the_conversation_of_others_looks_as_if_it_were_not_there(shared: Site) -> None:
    _, own = as_user(shared, "ada", "support/a", message="Hi")
    assert as_user(shared, "ada", "support/a", method="GET") == (200, {"ok": True, "sessionId": own["sessionId"]})
    assert as_user(shared, "bob", "support/a", method="GET")[0] == 404
    assert as_user(shared, "bob", "support/a/reset") == (200, {"ok": True, "status": "no_active_session"})
    assert as_user(shared, "bob", "support/a/cancel") == (200, {"ok": True, "status": "no_active_turn"})
    assert shared.engine.resolve("support", "a") == own["sessionId"]


def test_a_message_is_no_way_into_the_conversation_of_others(shared: Site) -> None:
    _, own = as_user(shared, "ada", "support/a", message="Hi")
    status, body = as_user(shared, "bob", "support/a", message="Let me in")
    assert (status, body["code"]) == (409, "address_taken")
    assert as_user(shared, "bob", "support/a", method="GET")[0] == 404
    assert as_user(shared, "ada", "support/a", message="Still there?")[0] == 202
    assert shared.said(own["sessionId"]) == ["Hi", "Still there?"]


def test_an_address_that_is_free_is_anybodys(shared: Site) -> None:
    as_user(shared, "ada", "support/a", message="Hi")
    as_user(shared, "ada", "support/a/reset")
    assert as_user(shared, "bob", "support/a", message="Hi")[0] == 202
