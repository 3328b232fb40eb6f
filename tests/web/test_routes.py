"""What each route takes and answers, without a server in between."""

import json
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import flask
import pytest

import web
from orchestrator.agent import Agent, App
from orchestrator.apikeys import mint
from orchestrator.config import Settings
from orchestrator.core.delivery import Part
from orchestrator.core.names import DeliveryId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.engine import Engine
from orchestrator.errors import AddressTaken, JournalAway
from orchestrator.parts import Uploads
from tests.web.support import Hand, Http, engine_on, http_of

BOTH = pytest.mark.parametrize("base", ["/eve/v1", "/v1"])
SESSION = "/eve/v1/session"
NOBODY = "ses_" + "0" * 28


def created(http: Http, **body: Any) -> SessionId:
    answer = http.post(SESSION, json=body)
    assert answer.status_code == 202, answer.text
    return SessionId(answer.json["sessionId"])


def ended(http: Http) -> SessionId:
    """A session that was reset."""
    session = created(http)
    assert http.post(f"{SESSION}/{session}/reset", json={}).json["status"] == "reset"
    return session


def waiting(engine: Engine, session: SessionId) -> list[tuple[str, str, str]]:
    """Kind, policy and guard of what waits."""
    return [(head.envelope.kind, head.envelope.policy, head.envelope.guard) for head in engine.reads.heads(session, 0)]


# Health ------------------------------------------------------------------------------------------------------------------


def test_health_says_three_things_and_nothing_more(http: Http) -> None:
    answer = http.get("/eve/v1/health")
    assert (answer.status_code, answer.json) == (200, {"ok": True, "status": "ready", "workflowId": "orc:default"})
    assert http.head("/eve/v1/health").status_code == 200


def test_health_of_the_protocol_never_asks_the_journal() -> None:
    nowhere = engine_on("redis://127.0.0.1:1/0")
    answer = http_of(web.create_app(engine=nowhere)).get("/eve/v1/health")
    assert answer.status_code == 200
    assert "journal" not in vars(nowhere)


def test_our_own_health_tells_about_the_journal_the_workers_and_the_readers(http: Http, engine: Engine) -> None:
    engine.journal.heartbeat("blue", "w1")
    answer = http.get("/v1/health").json
    assert answer["journal"] == "ok"
    assert answer["protocol"] == 1
    assert answer["durability"] == "server"
    assert answer["streams"] == {"open": 0, "limit": 48}
    assert {label: found["workers"] for label, found in answer["deployments"].items()} == {"blue": 1}
    assert answer["newSessionsGoTo"] == "blue"


def test_our_own_health_is_503_while_the_journal_is_away() -> None:
    answer = http_of(web.create_app(engine=engine_on("redis://127.0.0.1:1/0"))).get("/v1/health")
    assert answer.status_code == 503
    assert answer.json["ok"] is False
    assert answer.json["journal"] == "away"
    assert answer.json["streams"]["limit"] == 48


# Create ------------------------------------------------------------------------------------------------------------------


@BOTH
def test_create_answers_with_the_session(http: Http, engine: Engine, base: str) -> None:
    answer = http.post(f"{base}/session", json={"message": "hello"})
    session = answer.json["sessionId"]
    assert answer.status_code == 202
    [head] = engine.reads.heads(session, 0)
    ours = {"deliveryId": head.id} if base == "/v1" else {}
    assert answer.json == {"ok": True, "sessionId": session, "status": "accepted", **ours}
    assert answer.headers["x-eve-session-id"] == session
    assert answer.headers["cache-control"] == "no-store"
    assert answer.content_type == "application/json"
    [head] = engine.reads.heads(session, 0)
    assert engine.reads.bodies(session, [head.id])[head.id].parts == (Part("text", "hello"),)


@pytest.mark.parametrize(
    "request_", [{}, {"json": {}}, {"data": b"", "content_type": "application/json"}, {"data": b" \n"}]
)
def test_a_create_without_a_message_makes_an_empty_session(
    http: Http, engine: Engine, request_: dict[str, Any]
) -> None:
    answer = http.post(SESSION, **request_)
    assert answer.status_code == 202
    assert waiting(engine, answer.json["sessionId"]) == []
    assert engine.reads.place(answer.json["sessionId"]) == (0, "live")


def test_a_message_may_be_a_list_of_texts(http: Http, engine: Engine) -> None:
    session = created(http, message=[{"type": "text", "text": "a"}, {"type": "text", "text": "b", "other": 1}])
    [head] = engine.reads.heads(session, 0)
    assert engine.reads.bodies(session, [head.id])[head.id].parts == (Part("text", "a"), Part("text", "b"))


PICTURE = {"type": "file", "mediaType": "image/png", "filename": "a.png", "data": "aGVsbG8="}


@BOTH
def test_a_message_may_bring_files(http: Http, engine: Engine, base: str) -> None:
    session = http.post(f"{base}/session", json={"message": [{"type": "text", "text": "a"}, PICTURE]}).json["sessionId"]
    assert http.post(f"{base}/session/{session}", json={"message": [PICTURE]}).status_code == 202
    heads = engine.reads.heads(session, 0)
    files = [
        part.file for head in heads for part in engine.reads.bodies(session, [head.id])[head.id].parts if part.file
    ]
    assert [(file.name, file.media_type, file.size, file.data) for file in files] == [
        ("a.png", "image/png", 5, b"")
    ] * 2
    assert set(engine.journal.blobs(session, [file.blob for file in files]).values()) == {b"hello"}


def test_files_that_are_not_taken_are_listed(engine: Engine) -> None:
    app = replace(engine.app, uploads=Uploads(limit_bytes=4, media_types=["image/*"]))
    http = http_of(web.create_app(engine=Engine(app, engine.settings)))
    large = http.post(SESSION, json={"message": [PICTURE]})
    assert (large.status_code, large.json["code"]) == (413, "file_too_large")
    assert large.json["violations"] == [{"part": 0, "filename": "a.png", "mediaType": "image/png", "size": 5}]
    other = http.post(SESSION, json={"message": [{**PICTURE, "mediaType": "text/csv"}, PICTURE]})
    assert (other.status_code, other.json["code"]) == (415, "file_type_refused")
    assert [one["part"] for one in other.json["violations"]] == [0]
    assert "image/*" in other.json["error"]


def test_fields_nobody_knows_and_query_parameters_are_ignored(http: Http) -> None:
    assert http.post(f"{SESSION}?token=x", json={"message": "a", "colour": "red", "agent": 7}).status_code == 202


@pytest.mark.parametrize(
    "body",
    [
        {"message": ""},
        {"message": None},
        {"message": 7},
        {"message": {}},
        {"message": []},
        {"message": ["text"]},
        {"message": [{"type": "text"}]},
        {"message": [{"type": "text", "text": ""}]},
        {"message": [{"type": "text", "text": 7}]},
        {"message": [{"type": "image", "url": "x"}]},
        {"message": [{"text": "a"}]},
        {"message": "\ud800"},
        {"message": "a", "turnPolicy": "shove"},
        {"message": "a", "turnPolicy": None},
        {"message": "a", "operationId": ""},
        {"message": "a", "operationId": 7},
        {"inputResponses": [], "message": "a"},
        {"continuationToken": "x", "message": "a"},
        {"clientContext": "x"},
        {"outputSchema": {}},
        {"message": "a", "clientContext": None},
        {"message": "a", "clientContext": ["b", ""]},
        {"message": "a", "outputSchema": True},
        {"message": "a", "outputSchema": {"type": "text"}},
        {"message": "a", "capabilities": []},
        {"message": "a", "capabilities": {"requestInput": "no"}},
        {"message": "a", "capabilities": {"requestInput": None}},
    ],
    ids=json.dumps,
)
def test_a_create_that_makes_no_sense_is_refused_and_stores_nothing(
    http: Http, engine: Engine, body: dict[str, Any]
) -> None:
    answer = http.post(SESSION, data=json.dumps(body), content_type="application/json")
    assert (answer.status_code, answer.json["ok"], answer.json["code"]) == (400, False, "bad_request")
    assert isinstance(answer.json["error"], str)
    assert engine.sessions() == []


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"a"', b"null", b"\xff{}", b'{"a":' * 100_000, b"a=b"])
@pytest.mark.parametrize("path", [SESSION, f"{SESSION}/{NOBODY}", f"{SESSION}/{NOBODY}/cancel"])
def test_a_body_that_is_no_json_object_is_refused(http: Http, raw: bytes, path: str) -> None:
    answer = http.post(path, data=raw, content_type="application/json")
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


NOT_YET = ["callback", "stubs"]


@pytest.mark.parametrize(
    ("where", "field"),
    [("send", "capabilities"), *((where, field) for where in ("create", "send") for field in NOT_YET)],
)
def test_what_this_version_cannot_do_is_refused_by_name(http: Http, where: str, field: str) -> None:
    path = SESSION if where == "create" else f"{SESSION}/{created(http)}"
    answer = http.post(path, json={"message": "a", field: {}})
    assert (answer.status_code, answer.json["code"]) == (400, "not_supported_yet")
    assert field in answer.json["error"]


def test_a_file_is_refused_by_its_place(http: Http) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "file", "mediaType": "text/plain", "data": "%"}]
    answer = http.post(SESSION, json={"message": parts})
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")
    assert "message[1]" in answer.json["error"]


def test_our_own_create_may_name_an_agent(http: Http, engine: Engine) -> None:
    session = http.post("/v1/session", json={"agent": "helper"}).json["sessionId"]
    assert engine.view(session).agent == "helper"
    assert http.post("/v1/session", json={"agent": "nobody"}).status_code == 400
    assert http.post(SESSION, json={"agent": "nobody"}).status_code == 202


# Send --------------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_follow_up_answers_with_its_delivery(http: Http, engine: Engine, base: str) -> None:
    session = created(http)
    answer = http.post(f"{base}/session/{session}", json={"message": "more"})
    assert answer.status_code == 202
    delivery = answer.json["deliveryId"]
    assert answer.json == {"ok": True, "sessionId": session, "status": "accepted", "deliveryId": delivery}
    assert answer.headers["x-eve-session-id"] == session
    assert [head.id for head in engine.reads.heads(session, 0)] == [DeliveryId(delivery)]


@BOTH
def test_what_comes_beside_a_message_is_stored_with_it(http: Http, engine: Engine, base: str) -> None:
    beside = {"clientContext": {"page": "/cart"}, "outputSchema": {"type": "object"}}
    session = http.post(f"{base}/session", json={"message": "a", **beside}).json["sessionId"]
    http.post(f"{base}/session/{session}", json={"message": "b", **beside})
    heads = engine.reads.heads(session, 0)
    for body in engine.reads.bodies(session, [head.id for head in heads]).values():
        assert (body.context, body.output) == (('{"page":"/cart"}',), '{"type":"object"}')
    assert len(heads) == 2


@pytest.mark.parametrize("field", ["clientContext", "outputSchema"])
def test_nothing_comes_beside_answers(http: Http, field: str) -> None:
    body = {"inputResponses": [{"requestId": "r", "text": "a"}], field: {"type": "object"}}
    answer = http.post(f"{SESSION}/{created(http)}", json=body)
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


def test_the_turn_policy_is_stored_with_the_delivery(http: Http, engine: Engine) -> None:
    session = created(http, message="a", turnPolicy="queue")
    http.post(f"{SESSION}/{session}", json={"message": "b"})
    http.post(f"{SESSION}/{session}", json={"message": "c", "turnPolicy": "queue"})
    assert [policy for _, policy, _ in waiting(engine, session)] == ["queue", "steer", "queue"]


def test_where_a_message_says_no_policy_the_app_does(url: str) -> None:
    app = App(agents=[Agent("helper")], turn_policy="queue")
    engine = Engine(app, Settings(url=url, allow_anonymous="all"))
    http = http_of(web.create_app(engine=engine))
    session = created(http, message="a")
    http.post(f"{SESSION}/{session}", json={"message": "b"})
    http.post(f"{SESSION}/{session}", json={"message": "c", "turnPolicy": "steer"})
    assert [policy for _, policy, _ in waiting(engine, session)] == ["queue", "queue", "steer"]


# Keys of the caller's own -------------------------------------------------------------------------------------------------


@BOTH
def test_a_message_with_a_delivery_key_is_one_message_however_often_it_is_sent(
    http: Http, engine: Engine, base: str
) -> None:
    session = created(http)
    told = [http.post(f"{base}/session/{session}", json={"message": "a", "deliveryKey": "k-1"}) for _ in range(3)]
    assert {(answer.status_code, answer.json["deliveryId"]) for answer in told} == {(202, told[0].json["deliveryId"])}
    assert len(waiting(engine, session)) == 1
    other = http.post(f"{base}/session/{session}", json={"message": "a", "deliveryKey": "k-2"})
    assert other.json["deliveryId"] != told[0].json["deliveryId"]
    assert len(waiting(engine, session)) == 2


@BOTH
def test_a_delivery_key_with_another_message_is_409(http: Http, engine: Engine, base: str) -> None:
    session = created(http)
    http.post(f"{base}/session/{session}", json={"message": "a", "deliveryKey": "k"})
    answer = http.post(f"{base}/session/{session}", json={"message": "b", "deliveryKey": "k"})
    assert (answer.status_code, answer.json["code"]) == (409, "delivery_key_reused")
    assert len(waiting(engine, session)) == 1


@pytest.mark.parametrize("key", ["", 7, None, "k" * 257])
def test_a_delivery_key_is_a_text_that_is_not_too_long(http: Http, key: object) -> None:
    answer = http.post(f"{SESSION}/{created(http)}", json={"message": "a", "deliveryKey": key})
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


@BOTH
def test_an_operation_makes_one_session_however_often_it_is_asked_for(url: str, base: str) -> None:
    (key, entry), (other_key, other_entry) = mint("shop"), mint("cron")
    engine = engine_on(url, api_keys=f"{entry},{other_entry}")
    http = http_of(web.create_app(engine=engine))
    bearer = {"authorization": f"Bearer {key}"}
    body = {"message": "a", "operationId": "order-17"}
    told = [http.post(f"{base}/session", json=body, headers=bearer) for _ in range(3)]
    [session] = {answer.json["sessionId"] for answer in told}
    assert {answer.status_code for answer in told} == {202}
    assert {answer.headers["x-eve-session-id"] for answer in told} == {session}
    assert len(waiting(engine, session)) == 1
    another = http.post(f"{base}/session", json={**body, "operationId": "order-18"}, headers=bearer)
    somebody = http.post(f"{base}/session", json=body, headers={"authorization": f"Bearer {other_key}"})
    assert len({session, another.json["sessionId"], somebody.json["sessionId"]}) == 3


@BOTH
def test_who_is_not_known_has_no_operations(http: Http, engine: Engine, base: str) -> None:
    answer = http.post(f"{base}/session", json={"message": "a", "operationId": "x"})
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")
    assert engine.sessions() == []


# Answers ------------------------------------------------------------------------------------------------------------------


@BOTH
def test_an_answer_to_what_nobody_asked_is_refused_by_name(http: Http, engine: Engine, base: str) -> None:
    """A client that was told 202 would wait for its turn for ever."""
    session = created(http)
    answer = http.post(
        f"{base}/session/{session}", json={"inputResponses": [{"requestId": "req_1", "optionId": "yes"}]}
    )
    assert (answer.status_code, answer.json["code"]) == (409, "request_unknown")
    assert "req_1" in answer.json["error"]
    assert waiting(engine, session) == []


@BOTH
@pytest.mark.parametrize("gone", ["unknown", "ended"])
def test_an_answer_to_a_session_that_is_not_there_is_not_accepted(http: Http, base: str, gone: str) -> None:
    session = NOBODY if gone == "unknown" else ended(http)
    answer = http.post(f"{base}/session/{session}", json={"inputResponses": [{"requestId": "req_1"}]})
    assert (answer.status_code, answer.json["code"]) == (409, "session_not_active")


@pytest.mark.parametrize(
    "responses",
    [
        [],
        {},
        "req_1",
        None,
        ["req_1"],
        [{}],
        [{"optionId": "yes"}],
        [{"requestId": ""}],
        [{"requestId": 1}],
        [{"requestId": "r", "optionId": None}],
        [{"requestId": "r", "text": 7}],
        [{"requestId": "r", "note": "x"}],
        [{"requestId": "r"}, {"requestId": "s", "kind": "question"}],
        [{"requestId": "r"}] * 65,
        [{"requestId": "r", "text": "ü" * 8193}],
        [{"requestId": "r", "text": "\ud800"}],
    ],
    ids=lambda said: json.dumps(said)[:60],
)
@BOTH
def test_answers_that_make_no_sense_are_refused(http: Http, base: str, responses: object) -> None:
    answer = http.post(f"{base}/session/{created(http)}", json={"inputResponses": responses})
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


@pytest.mark.parametrize("session", [NOBODY, "wrun_01", "%7B%7D", "a" * 500])
def test_a_message_to_a_session_that_is_not_there_is_not_accepted(http: Http, session: str) -> None:
    answer = http.post(f"{SESSION}/{session}", json={"message": "a"})
    assert (answer.status_code, answer.json["code"]) == (409, "session_not_active")


def test_a_message_to_an_ended_session_is_not_accepted(http: Http) -> None:
    assert http.post(f"{SESSION}/{ended(http)}", json={"message": "a"}).json["code"] == "session_not_active"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "bad_request"),
        ({"message": "a", "inputResponses": [{"requestId": "r"}]}, "bad_request"),
        ({"message": "a", "continuationToken": "x"}, "bad_request"),
        ({"message": ""}, "bad_request"),
        ({"message": "a", "turnPolicy": 1}, "bad_request"),
    ],
)
def test_a_follow_up_has_exactly_one_thing_to_say(http: Http, body: dict[str, Any], code: str) -> None:
    answer = http.post(f"{SESSION}/{created(http)}", json=body)
    assert (answer.status_code, answer.json["code"]) == (400, code)


def test_a_full_inbox_is_429_and_says_when_to_come_back(url: str) -> None:
    http = http_of(web.create_app(engine=engine_on(url, waiting_limit=1)))
    answer = http.post(f"{SESSION}/{created(http, message='a')}", json={"message": "b"})
    assert (answer.status_code, answer.json["code"]) == (429, "inbox_full")
    assert answer.headers["retry-after"] == "1"


# Cancel ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{"json": {}}, {"data": b"", "content_type": "application/json"}, {}])
def test_a_cancel_is_accepted_and_says_nothing_more(http: Http, engine: Engine, body: dict[str, Any]) -> None:
    session = created(http, message="a")
    answer = http.post(f"{SESSION}/{session}/cancel", **body)
    assert (answer.status_code, answer.json) == (202, {"ok": True, "sessionId": session, "status": "accepted"})
    assert waiting(engine, session)[1] == ("cancel", "steer", "")


def test_a_cancel_may_name_the_turn(http: Http, engine: Engine, client: Any) -> None:
    session = created(http, message="a")
    client.hset(engine.journal.keys(session).own, "turn", "turn_3")
    assert http.post(f"/v1/session/{session}/cancel", json={"turnId": "turn_3"}).json["outcome"] == "cancelling"
    assert waiting(engine, session)[1] == ("cancel", "steer", "turn_3")
    answer = http.post(f"/v1/session/{session}/cancel", json={"turnId": "turn_2"})
    assert (answer.status_code, answer.json["outcome"]) == (202, "other_turn")


def test_a_cancel_of_an_idle_session_is_accepted(http: Http) -> None:
    session = created(http)
    assert http.post(f"{SESSION}/{session}/cancel").status_code == 202
    assert http.post(f"/v1/session/{session}/cancel").json["outcome"] == "nothing_runs"


@pytest.mark.parametrize("session", [NOBODY, "anything"])
def test_a_cancel_of_a_session_that_is_not_there_finds_no_turn(http: Http, session: str) -> None:
    answer = http.post(f"{SESSION}/{session}/cancel", json={})
    assert (answer.status_code, answer.json) == (200, {"ok": True, "status": "no_active_turn"})


@pytest.mark.parametrize("turn", ["", 7, None])
def test_a_cancel_with_a_turn_that_is_no_name_is_refused(http: Http, turn: object) -> None:
    answer = http.post(f"{SESSION}/{created(http)}/cancel", json={"turnId": turn})
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


# Clear, compact, reset ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{"json": {}}, {"data": b"", "content_type": "application/json"}, {}])
@pytest.mark.parametrize("control", ["clear", "compact"])
@BOTH
def test_clear_and_compact_are_accepted_with_an_empty_body(
    http: Http, engine: Engine, base: str, control: str, body: dict[str, Any]
) -> None:
    session = created(http)
    answer = http.post(f"{base}/session/{session}/{control}", **body)
    assert (answer.status_code, answer.json) == (202, {"ok": True, "sessionId": session, "status": "accepted"})
    assert [kind for kind, _, _ in waiting(engine, session)] == [control]


@pytest.mark.parametrize("body", [{"json": {}}, {"json": {"reason": "done"}}, {"data": b""}])
@BOTH
def test_a_reset_ends_the_session_at_once(http: Http, engine: Engine, base: str, body: dict[str, Any]) -> None:
    session = created(http, message="a")
    answer = http.post(f"{base}/session/{session}/reset", **body)
    assert (answer.status_code, answer.json) == (200, {"ok": True, "previousSessionId": session, "status": "reset"})
    assert engine.view(session).status == "ending"
    assert http.post(f"{base}/session/{session}", json={"message": "b"}).status_code == 409
    assert http.post(f"{base}/session/{session}/reset", json={}).json == {"ok": True, "status": "no_active_session"}


def test_the_reason_of_a_reset_is_logged(http: Http, caplog: pytest.LogCaptureFixture) -> None:
    session = created(http)
    with caplog.at_level("INFO"):
        http.post(f"{SESSION}/{session}/reset", json={"reason": "the customer is happy" + 500 * "!"})
    told = next(
        record.getMessage()
        for record in caplog.records
        if session in record.getMessage() and "reset" in record.getMessage()
    )
    assert told.startswith(f"{session} was reset: 'the customer is happy!")
    assert len(told) < 300


@pytest.mark.parametrize("control", ["clear", "compact", "reset"])
@pytest.mark.parametrize("gone", ["unknown", "no id at all", "ended"])
@BOTH
def test_a_control_of_a_session_that_is_not_there_finds_none(http: Http, base: str, control: str, gone: str) -> None:
    session = {"unknown": NOBODY, "no id at all": "wrun_01"}.get(gone) or ended(http)
    answer = http.post(f"{base}/session/{session}/{control}", data=b"", content_type="application/json")
    assert (answer.status_code, answer.json) == (200, {"ok": True, "status": "no_active_session"})


def test_a_cancel_of_an_ended_session_finds_no_turn(http: Http) -> None:
    answer = http.post(f"{SESSION}/{ended(http)}/cancel", json={})
    assert (answer.status_code, answer.json) == (200, {"ok": True, "status": "no_active_turn"})


@pytest.mark.parametrize("body", [{"reason": ""}, {"reason": 7}, {"reason": None}, {"continuationToken": "x"}])
def test_a_reset_that_makes_no_sense_is_refused_and_ends_nothing(http: Http, body: dict[str, Any]) -> None:
    session = created(http)
    answer = http.post(f"{SESSION}/{session}/reset", json=body)
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")
    assert http.post(f"{SESSION}/{session}", json={"message": "a"}).status_code == 202


@pytest.mark.parametrize("control", ["clear", "compact", "reset", "cancel"])
def test_a_control_whose_body_is_no_object_is_refused(http: Http, control: str) -> None:
    answer = http.post(f"{SESSION}/{created(http)}/{control}", data=b"[]", content_type="application/json")
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


# Erase --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["with a message that waits", "ended", "owned"])
def test_nothing_is_left_of_an_erased_session(url: str, client: Any, state: str) -> None:
    engine = engine_on(url, allow_anonymous="loopback")
    http = http_of(web.create_app(engine=engine))
    session = created(http, message="a") if state == "with a message that waits" else ended(http)
    if state == "owned":
        hand = Hand(engine)
        hand.said(3)
        session = hand.session
    answer = http.delete(f"/v1/session/{session}")
    assert (answer.status_code, answer.json) == (200, {"ok": True, "sessionId": session, "status": "erased"})
    assert [key for key in client.keys("*") if session.encode() in key] == []
    for path in (f"/v1/session/{session}", f"/v1/session/{session}/stream", f"{SESSION}/{session}/stream"):
        assert http.get(path).status_code == 404
    assert http.delete(f"/v1/session/{session}").status_code == 404
    assert http.post(f"{SESSION}/{session}", json={"message": "a"}).json["code"] == "session_not_active"
    assert http.post(f"{SESSION}/{session}/clear").json["status"] == "no_active_session"
    assert session not in {name for name, _ in engine.sessions()}


def test_the_protocol_has_no_erase(http: Http) -> None:
    assert http.delete(f"{SESSION}/{created(http)}").status_code == 405


def test_an_erase_whose_answer_was_lost_is_not_told_that_there_is_no_such_session(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(url, allow_anonymous="loopback")
    http = http_of(web.create_app(engine=engine))
    session, erase = created(http), engine.erase

    def lost(name: SessionId) -> None:
        erase(name)
        monkeypatch.setattr(engine, "erase", erase)
        raise JournalAway(reason="the answer was lost")

    monkeypatch.setattr(engine, "erase", lost)
    assert http.delete(f"/v1/session/{session}").json["status"] == "erased"


# Looking -----------------------------------------------------------------------------------------------------------------


def test_a_session_can_be_looked_at(http: Http, hand: Hand) -> None:
    hand.said(2)
    answer = http.get(f"/v1/session/{hand.session}").json
    assert answer["sessionId"] == hand.session
    assert (answer["status"], answer["agent"], answer["events"], answer["waiting"]) == ("running", "helper", 2, 1)
    missing = http.get(f"/v1/session/{NOBODY}")
    assert (missing.status_code, missing.json["code"]) == (404, "session_not_found")


def test_the_last_sessions_are_listed_newest_first(http: Http, engine: Engine, client: Any) -> None:
    first, second = created(http), created(http)
    at = 1_000_000_000_000
    for session, score in ((first, at), (second, at + 1)):
        client.zadd(engine.journal.keys(session).index, {session: score})
    listed = [entry["sessionId"] for entry in http.get("/v1/sessions").json["sessions"]]
    assert listed == [second, first]
    assert [entry["sessionId"] for entry in http.get("/v1/sessions?limit=1").json["sessions"]] == [second]
    assert http.get("/v1/sessions?limit=x").status_code == 400


# What goes wrong ---------------------------------------------------------------------------------------------------------


def test_pages_that_do_not_exist_answer_in_json(http: Http) -> None:
    for path in ("/eve/v1/nothing", "/", f"{SESSION}/a%2Fb/stream"):
        answer = http.get(path)
        assert (answer.status_code, answer.json["ok"], answer.json["code"]) == (404, False, "not_found")
    answer = http.get(SESSION)
    assert (answer.status_code, answer.json["code"]) == (405, "method_not_allowed")
    assert "POST" in answer.headers["allow"]


def test_a_body_over_the_limit_is_413(url: str) -> None:
    http = http_of(web.create_app(engine=engine_on(url, body_limit_bytes=100)))
    just = b'{"message":"' + b"a" * 86 + b'"}'
    assert len(just) == 100
    assert http.post(SESSION, data=just).status_code == 202
    for more in (b" ", b" " * 100):
        answer = http.post(SESSION, data=just + more)
        assert (answer.status_code, answer.json["code"]) == (413, "body_too_large")
        assert "more than 100 bytes" in answer.json["error"]


def test_a_mistake_of_ours_is_500_with_an_id_and_without_its_text(
    http: Http, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(engine, "create", broken)
    answer = http.post(SESSION, json={"message": "a"})
    assert (answer.status_code, answer.json["ok"]) == (500, False)
    assert "secret" not in answer.text
    [record] = [record for record in caplog.records if answer.json["errorId"] in record.getMessage()]
    assert "the secret is 42" in str(record.exc_info)


def test_an_absent_journal_is_503_and_its_address_stays_inside() -> None:
    http = http_of(web.create_app(engine=engine_on("redis://127.0.0.1:1/0")))
    for answer in (http.post(SESSION), http.post(f"{SESSION}/{NOBODY}", json={"message": "a"})):
        assert (answer.status_code, answer.json["code"]) == (503, "journal_away")
        assert answer.headers["retry-after"] == "1"
        assert "127.0.0.1" not in answer.text


def test_a_full_journal_is_503_and_takes_nothing(make_server: Any) -> None:
    server = make_server("valkey", "--maxmemory", "3mb")
    http = http_of(web.create_app(engine=engine_on(server.url)))
    assert http.post(SESSION).status_code == 202
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
    answer = http.post(SESSION, json={"message": "a"})
    assert (answer.status_code, answer.json["code"]) == (503, "journal_full")
    assert answer.headers["retry-after"] == "5"


def test_an_error_of_the_callers_is_told_in_its_own_words(
    http: Http, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AddressTaken(address="ticket-7")

    monkeypatch.setattr(engine, "create", refused)
    answer = http.post(SESSION, json={"message": "a"})
    assert (answer.status_code, answer.json["code"]) == (409, "address_taken")
    assert "ticket-7" in answer.json["error"]


@pytest.mark.parametrize("path", ["/eve/v1/health", "/v1/health", "/eve/v1/info", "/v1/sessions"])
def test_where_get_is_head_is_as_well(http: Http, path: str) -> None:
    asked, told = http.head(path), http.get(path)
    assert (asked.status_code, asked.content_type) == (told.status_code, told.content_type)
    assert asked.data == b""


# Where it lives ----------------------------------------------------------------------------------------------------------


def test_an_existing_flask_app_takes_the_routes_in_below_a_prefix(engine: Engine) -> None:
    host = flask.Flask("host")
    host.register_blueprint(web.blueprint(engine.app, engine), url_prefix="/agents")

    @host.get("/")
    def home() -> str:
        return "home"

    http = http_of(host)
    session = http.post("/agents/eve/v1/session", json={"message": "a"}).json["sessionId"]
    assert http.get(f"/agents/v1/session/{session}").status_code == 200
    assert http.post("/agents/eve/v1/session", json={"message": ""}).json["code"] == "bad_request"
    assert http.get("/").text == "home"
    assert http.get("/nothing").content_type.startswith("text/html")  # the host's own pages stay its own


def test_the_app_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("ORCHESTRATOR_APP", "tests.web.wsgi:app")
    monkeypatch.setenv("ORCHESTRATOR_URL", url)
    monkeypatch.setenv("ORCHESTRATOR_ALLOW_ANONYMOUS", "1")
    assert http_of(web.create_app()).post(SESSION).status_code == 202


def test_the_caller_of_a_message_is_stored_with_it(url: str) -> None:
    key, entry = mint("shop")
    engine = engine_on(url, api_keys=entry)
    http = http_of(web.create_app(engine=engine))
    bearer = {"authorization": f"Bearer {key}"}
    session = http.post(SESSION, json={"message": "a"}, headers=bearer).json["sessionId"]
    http.post(f"{SESSION}/{session}", json={"message": "b"}, headers=bearer)
    http.post(f"{SESSION}/{session}/cancel", headers=bearer)
    callers = [head.envelope.principal for head in engine.reads.heads(session, 0)]
    assert callers == [Principal("api-key", "service", "shop")] * 3


def test_a_broker_on_another_server_is_published_to_through_the_tasks(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = ModuleType("tasks")
    tasks.engine_for = lambda *_: engine  # type: ignore[attr-defined]  # what the worker's package offers
    monkeypatch.setitem(sys.modules, "tasks", tasks)
    settings = Settings(url=url, broker_url="amqp://127.0.0.1:1//", allow_anonymous="all")
    flask_app = web.create_app(App(agents=[Agent("helper")], settings=settings))
    session = http_of(flask_app).post(SESSION).json["sessionId"]
    assert flask_app.extensions["orchestrator"].engine is engine
    assert engine.view(session).status == "idle"


def test_with_one_server_the_tasks_are_not_loaded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tasks", None)  # importing it would fail
    flask_app = web.create_app(App(agents=[Agent("helper")], settings=Settings(url=url, allow_anonymous="all")))
    assert http_of(flask_app).post(SESSION).status_code == 202
