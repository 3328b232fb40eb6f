"""Webhooks: five deliveries of one are one message, whatever they say of themselves; what is not verified leaves no trace."""

import json
import statistics
import time
from typing import Any

import pytest
import redis

from orchestrator import Channel, Incoming, Settings, StandardWebhook
from orchestrator.channels import Reply, Request
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import ConfigError, Unauthorized
from tests.channels.conftest import MakeSite, Site, an_app, at_once
from tests.channels.signing import GOOD, secret, signed
from tests.conftest import MakeServer

HELLO = {"address": "ticket-1", "message": "Where is it?"}


def told(answer: Any) -> tuple[int, dict[str, Any]]:
    return answer.status_code, answer.get_json()


def test_a_webhook_is_a_message_for_the_session_of_its_address(site: Site) -> None:
    status, body = told(site.send(HELLO))
    assert status == 202
    assert body == {"ok": True, "sessionId": body["sessionId"], "deliveryId": body["deliveryId"], "status": "accepted"}
    _, more = told(site.send({**HELLO, "message": "Well?"}, "msg_2"))
    assert more["sessionId"] == body["sessionId"]
    assert site.said(body["sessionId"]) == ["Where is it?", "Well?"]


def test_the_answer_names_the_session_in_a_header_too(site: Site) -> None:
    answer = site.send(HELLO)
    assert answer.headers["x-eve-session-id"] == answer.get_json()["sessionId"]
    assert answer.headers["cache-control"] == "no-store"


def test_five_times_in_a_moment_is_one_message_and_one_answer(site: Site) -> None:
    twin = site.twin()
    found = [told(one) for one in at_once(*[lambda one=one: one.send(HELLO) for one in (site, twin) * 2 + (site,)])]
    assert [status for status, _ in found] == [202] * 5
    assert len({body["deliveryId"] for _, body in found}) == 1
    assert site.said(found[0][1]["sessionId"]) == ["Where is it?"]
    assert len(site.sessions()) == 1
    twin.close()


def test_it_is_the_same_message_after_a_reset(site: Site) -> None:
    _, first = told(site.send(HELLO))
    assert site.http.post("/v1/channels/tickets/ticket-1/reset").get_json()["status"] == "reset"
    _, again = told(site.send(HELLO))
    assert again == first
    assert site.sessions() == [first["sessionId"]]
    _, fresh = told(site.send(HELLO, "msg_2"))
    assert fresh["sessionId"] != first["sessionId"]


def test_it_is_the_same_message_after_the_session_has_ended(site: Site) -> None:
    _, first = told(site.send(HELLO))
    site.http.post("/v1/channels/tickets/ticket-1/reset")
    site.run(first["sessionId"])
    assert told(site.send(HELLO)) == (202, first)


def test_the_same_id_with_another_body_is_refused(site: Site) -> None:
    _, first = told(site.send(HELLO))
    status, body = told(site.send({**HELLO, "message": "Something else"}))
    assert (status, body["code"]) == (409, "delivery_key_reused")
    status, body = told(site.send({**HELLO, "address": "ticket-2"}))
    assert (status, body["code"]) == (409, "delivery_key_reused")
    assert site.said(first["sessionId"]) == ["Where is it?"]
    assert len(site.sessions()) == 1


def test_two_ids_with_one_identity_are_one_message(site: Site) -> None:
    _, first = told(site.send({**HELLO, "message": "7: Hello"}))
    _, again = told(site.send({**HELLO, "message": "7: Hello"}, "msg_2"))
    assert again == first
    assert site.said(first["sessionId"]) == ["7: Hello"]


def test_a_channel_may_know_a_better_key_than_the_requests_own(make_site: MakeSite) -> None:
    class ByMessage(StandardWebhook):
        def parse(self, request: Request) -> Incoming:
            body = request.json()
            return Incoming(body["address"], body["message"], delivery_key=body["id"])

    site = make_site(ByMessage("tickets", secrets=[GOOD]))
    _, first = told(site.send({**HELLO, "id": "m1", "try": 1}))
    assert told(site.send({**HELLO, "id": "m1", "try": 2}, "msg_2")) == (202, first)
    status, body = told(site.send({**HELLO, "id": "m1", "try": 3}))
    assert (status, body["code"]) == (409, "delivery_key_reused"), "the request's own id is looked at all the same"
    status, body = told(site.send({**HELLO, "message": "Other", "id": "m1"}, "msg_3"))
    assert (status, body["code"]) == (409, "delivery_key_reused")
    assert site.said(first["sessionId"]) == [HELLO["message"]]


def test_what_a_webhook_says_of_being_a_repeat_counts_for_nothing(site: Site) -> None:
    _, first = told(site.send(HELLO, "msg_1", **{"x-retry-num": "3", "webhook-attempt": "4"}))
    assert site.said(first["sessionId"]) == ["Where is it?"]


def test_one_id_at_two_channels_is_two_messages(make_site: MakeSite) -> None:
    site = make_site(StandardWebhook("tickets", secrets=[GOOD]), StandardWebhook("mails", secrets=[GOOD]))
    _, one = told(site.send(HELLO))
    _, two = told(site.send(HELLO, channel="mails"))
    assert one["sessionId"] != two["sessionId"]


# Who is let in ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": ""},
        {"webhook-id": "msg_9"},
        {"webhook-timestamp": "1700000000"},
    ],
)
def test_what_is_not_verified_is_401_and_leaves_no_trace(
    site: Site, client: "redis.Redis", broken: dict[str, str]
) -> None:
    _ = site.engine.journal
    before = set(client.scan_iter())
    status, body = told(site.send(HELLO, "msg_1", **broken))
    assert (status, body["code"], body["error"]) == (401, "unauthorized", "This request could not be verified.")
    assert set(client.scan_iter()) == before
    status, _ = told(site.send({**HELLO, "message": "The real one"}))
    assert status == 202


def test_a_channel_of_somebody_elses_refuses_without_a_word(make_site: MakeSite) -> None:
    class Strict(Channel):
        def verify(self, request: Request) -> None:
            raise Unauthorized

    site = make_site(Strict("strict"))
    assert site.http.post("/v1/webhooks/strict", data=b"{}").status_code == 401


def test_half_a_character_under_a_key_is_400(make_site: MakeSite) -> None:
    class Keyed(Channel):
        def verify(self, request: Request) -> None:
            """Anybody."""

        def parse(self, request: Request) -> Incoming:
            return Incoming("a", "\ud800", delivery_key="k")

    site = make_site(Keyed("keyed"))
    answer = site.http.post("/v1/webhooks/keyed", data=b"{}")
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


def test_a_channel_whose_agent_is_not_there_is_no_app(make_site: MakeSite) -> None:
    with pytest.raises(ConfigError, match="typo"):
        make_site(Channel("support", agent="typo"))


def test_a_stale_one_is_401(site: Site) -> None:
    text = json.dumps(HELLO).encode()
    for ago in (301, -301):
        answer = site.http.post("/v1/webhooks/tickets", data=text, headers=signed(text, ago_seconds=ago))
        assert told(answer)[0] == 401


def test_no_key_is_needed_and_none_helps(make_site: MakeSite) -> None:
    site = make_site(StandardWebhook("tickets", secrets=[GOOD]), settings={"allow_anonymous": ""})
    assert site.http.post("/v1/channels/tickets/ticket-1", json={"message": "Hi"}).status_code == 401
    assert site.send(HELLO).status_code == 202
    text = json.dumps(HELLO).encode()
    answer = site.http.post("/v1/webhooks/tickets", data=text, headers=signed(text, by=secret("x")))
    assert answer.status_code == 401


def test_a_channel_that_nobody_has_or_that_checks_nothing_is_not_there(make_site: MakeSite) -> None:
    site = make_site(Channel("quiet"))
    for name in ("quiet", "other", "Not%20a%20name"):
        assert site.http.post(f"/v1/webhooks/{name}", json=HELLO).status_code == 404


def test_why_a_channel_refuses_is_not_told(make_site: MakeSite) -> None:
    class Picky(Channel):
        def verify(self, request: Request) -> None:
            raise Unauthorized(problem="the tenant's secret has expired")

    answer = make_site(Picky("tickets")).http.post("/v1/webhooks/tickets", json=HELLO)
    assert answer.status_code == 401
    assert "secret" not in answer.get_data(as_text=True)


# What a channel makes of it -----------------------------------------------------------------------------------------------


class Odd(Channel):
    """Answers a handshake, ignores what is boring, and knows controls."""

    def verify(self, request: Request) -> None:
        if request.headers.get("X-Token") != "open":
            raise Unauthorized(problem="no token")

    def key(self, request: Request) -> str:
        return request.headers.get("x-id", "")

    def parse(self, request: Request) -> Incoming | Reply | None:
        if request.method == "GET":
            return Reply(request.query["challenge"])
        body = request.json()
        match body["type"]:
            case "challenge":
                return Reply({"challenge": body["challenge"]}, headers={"x-done": "yes"})
            case "message":
                return Incoming(body["room"], body["text"])
            case "stop" | "clear" | "compact" | "reset" as kind:
                return Incoming(body["room"], kind="cancel" if kind == "stop" else kind)
            case _:
                return None


OPEN = {"x-token": "open"}


@pytest.fixture
def odd(make_site: MakeSite) -> Site:
    return make_site(Odd("odd"))


def test_a_handshake_is_answered_at_once(odd: Site) -> None:
    answer = odd.http.post("/v1/webhooks/odd", json={"type": "challenge", "challenge": "x1"}, headers=OPEN)
    assert told(answer) == (200, {"challenge": "x1"})
    assert answer.headers["x-done"] == "yes"
    answer = odd.http.get("/v1/webhooks/odd?challenge=x2", headers=OPEN)
    assert (answer.status_code, answer.get_data(as_text=True)) == (200, "x2")
    assert odd.http.get("/v1/webhooks/odd?challenge=x2").status_code == 401
    assert odd.sessions() == []


def test_what_concerns_nobody_is_accepted_and_forgotten(odd: Site) -> None:
    answer = odd.http.post("/v1/webhooks/odd", json={"type": "typing"}, headers=OPEN)
    assert told(answer) == (200, {"ok": True, "status": "ignored"})
    assert odd.sessions() == []


def test_a_webhook_may_control_the_session_of_its_address(odd: Site) -> None:
    def say(type: str, **more: str) -> tuple[int, dict[str, Any]]:
        return told(odd.http.post("/v1/webhooks/odd", json={"type": type, "room": "r", **more}, headers=OPEN))

    assert say("reset") == (200, {"ok": True, "status": "no_active_session"})
    assert say("stop") == (200, {"ok": True, "status": "no_active_turn"})
    assert odd.sessions() == []
    _, first = say("message", text="Hi")
    session = first["sessionId"]
    for kind in ("stop", "clear", "compact"):
        assert say(kind) == (202, {"ok": True, "sessionId": session, "status": "accepted"})
    assert say("reset") == (200, {"ok": True, "previousSessionId": session, "status": "reset"})
    assert say("reset") == (200, {"ok": True, "status": "no_active_session"})


def test_a_reset_that_comes_again_ends_nothing_new(odd: Site) -> None:
    def say(type: str, id: str, **more: str) -> tuple[int, dict[str, Any]]:
        headers = {**OPEN, "x-id": id}
        return told(odd.http.post("/v1/webhooks/odd", json={"type": type, "room": "r", **more}, headers=headers))

    say("message", "1", text="Hi")
    say("reset", "2")
    _, fresh = say("message", "3", text="Hi again")
    say("reset", "2")
    assert odd.engine.resolve("odd", "r") == fresh["sessionId"]


def test_who_speaks_is_the_channel_unless_it_says_who(odd: Site) -> None:
    _, body = told(odd.http.post("/v1/webhooks/odd", json={"type": "message", "room": "r", "text": "Hi"}, headers=OPEN))
    odd.run(body["sessionId"])
    assert odd.engine.takes_part(SessionId(body["sessionId"]), Principal("channel", "service", "odd"))


@pytest.mark.parametrize(
    "body", [{"address": "", "message": "m"}, {"address": "a", "message": ""}, {"message": "m"}, {"address": 1}, []]
)
def test_what_makes_no_sense_is_400(site: Site, body: Any) -> None:
    assert site.send(body).status_code == 400
    assert site.sessions() == []


def test_a_journal_that_is_away_is_503_and_never_202(make_server: MakeServer) -> None:
    server = make_server("valkey")
    site = Site(an_app(StandardWebhook("tickets", secrets=[GOOD])), Settings(url=server.url))
    assert site.send(HELLO).status_code == 202
    server.kill()
    status, body = told(site.send(HELLO, "msg_2"))
    assert (status, body["code"]) == (503, "journal_away")
    site.close()


def test_a_body_that_is_too_large_is_413(make_site: MakeSite) -> None:
    site = make_site(StandardWebhook("tickets", secrets=[GOOD]), settings={"body_limit_bytes": 1000})
    assert site.send({**HELLO, "message": "x" * 1000}).status_code == 413


# How many, how fast -------------------------------------------------------------------------------------------------------


def test_fifty_first_messages_over_two_processes_make_one_session(site: Site) -> None:
    twin = site.twin()
    calls = [
        lambda place=place, one=one: one.send({**HELLO, "message": f"Message {place}"}, f"msg_{place}")
        for place in range(50)
        for one in [(site, twin)[place % 2]]
    ]
    found = [told(answer) for answer in at_once(*calls)]
    assert {status for status, _ in found} == {202}
    (session,) = {body["sessionId"] for _, body in found}
    assert site.sessions() == [session]
    assert sorted(site.said(session)) == sorted(f"Message {place}" for place in range(50))
    twin.close()


def test_an_answer_comes_at_once_though_nobody_works(site: Site) -> None:
    site.send(HELLO, "first")
    took = []
    for place in range(20):
        begun = time.monotonic()
        assert site.send(HELLO, f"msg_{place}").status_code == 202
        took.append(time.monotonic() - begun)
    assert statistics.median(took) < 0.1
