"""What is asked, and what the answers mean: values in, values out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.client import asks, flows
from orchestrator.client.asks import Ask, Beside, Reply, Sent
from orchestrator.client.credentials import headers
from orchestrator.client.errors import BadRequest, Refused, ServerAway
from orchestrator.client.flows import Begun
from orchestrator.client.http import base_of
from orchestrator.client.values import Answer
from orchestrator.errors import ConfigError

T = TypeVar("T")


def said(status: int, body: object) -> Reply:
    return Reply(status, {}, json.dumps(body).encode())


def test_a_message_has_beside_it_what_was_said() -> None:
    beside: Beside = {"context": ["a", "b"], "output": {"type": "object"}, "policy": "queue"}
    ask = asks.send("/session/ses_1", "hello", beside, key="k1")
    assert (ask.method, ask.path) == ("POST", "/session/ses_1")
    assert ask.content is not None
    assert json.loads(ask.content) == {
        "message": "hello",
        "clientContext": ["a", "b"],
        "outputSchema": {"type": "object"},
        "turnPolicy": "queue",
        "deliveryKey": "k1",
    }


def test_parts_are_sent_as_they_are() -> None:
    ask = asks.send("/session/ses_1", ({"type": "text", "text": "a"},), {}, key="k1")
    assert ask.body == {"message": [{"type": "text", "text": "a"}], "deliveryKey": "k1"}


def test_a_create_says_only_what_was_said() -> None:
    assert asks.create(None, {}, agent="", may_ask=True, operation="").body == {}
    assert asks.create("hi", {}, agent="a", may_ask=False, operation="o").body == {
        "message": "hi",
        "agent": "a",
        "operationId": "o",
        "capabilities": {"requestInput": False},
    }


def test_answers_say_only_what_was_answered() -> None:
    ask = asks.answer("/session/s", [Answer("r1", "approve"), Answer("r2", text="red"), Answer("r3")], key="k")
    assert ask.body is not None
    assert ask.body["deliveryKey"] == "k"
    assert ask.body["inputResponses"] == [
        {"requestId": "r1", "optionId": "approve"},
        {"requestId": "r2", "text": "red"},
        {"requestId": "r3"},
    ]


@given(st.text(min_size=1).filter(lambda text: text.isprintable() or not any(0xD800 <= ord(c) < 0xE000 for c in text)))
@example(".")
@example("..")
def test_any_address_is_one_segment_of_the_path_and_can_be_read_back(address: str) -> None:
    path = asks.of_address("desk", address)
    prefix, _, segment = path.rpartition("/")
    assert prefix == "/channels/desk"
    assert unquote(segment, errors="strict") == address
    assert segment.strip(".")
    assert segment.isascii()


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"status": "accepted", "outcome": "other_turn"}, "other_turn"),
        ({"status": "no_active_turn", "outcome": "nothing_runs"}, "nothing_runs"),
        ({"status": "no_active_turn"}, "nothing_runs"),
        ({"status": "accepted"}, "cancelling"),
    ],
)
def test_a_cancel_says_what_comes_of_it(body: Mapping[str, Any], outcome: str) -> None:
    assert asks.cancel("/session/s").understand(said(202, {"ok": True, **body})) == outcome


def test_a_control_says_whether_there_was_a_session() -> None:
    for ask in (asks.clear("/session/s"), asks.compact("/session/s"), asks.reset("/session/s", "why")):
        assert ask.understand(said(202, {"ok": True, "status": "accepted"}))
        assert not ask.understand(said(200, {"ok": True, "status": "no_active_session"}))


@pytest.mark.parametrize("reply", [said(202, {}), said(202, []), Reply(200, {}, b"<html>"), said(202, {"ok": True})])
def test_an_answer_that_is_not_ours_is_no_success(reply: Reply) -> None:
    with pytest.raises(Refused, match="address of the server"):
        asks.send("/session/s", "hi", {}, key="k").understand(reply)


def test_a_journal_that_is_away_is_no_error_of_who_asks_after_its_health() -> None:
    assert not asks.health().understand(said(503, {"ok": False, "journal": "away", "code": "journal_away"})).ok
    assert asks.health().understand(said(200, {"ok": True, "journal": "ok"})).ok
    with pytest.raises(Refused):
        asks.health().understand(Reply(503, {}, b"<html>"))


# The first message of a session ---------------------------------------------------------------------------------------


def run(flow: flows.Flow[T], *answers: object) -> tuple[list[Ask[Any]], T]:
    """A flow to its end: what it has asked, and what it found."""
    asked = [next(flow)]
    for answer in answers:
        try:
            ask = flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)
        except StopIteration as done:
            found: T = done.value
            return asked, found
        asked.append(ask)
    raise AssertionError(f"it asks on: {asked[-1]}")


def start(named: bool, operation: str = "") -> flows.Flow[Begun]:
    return flows.start("hi", {}, key="k", agent="a", may_ask=False, operation=operation, named=named)


def test_a_caller_with_a_name_starts_a_session_in_one_request_that_may_be_repeated() -> None:
    [ask], begun = run(start(named=True), "ses_1")
    assert ask.body is not None
    assert (ask.body["operationId"], ask.body["message"], ask.again) == ("k", "hi", True)
    assert begun == Begun("ses_1", None)


def test_a_caller_without_a_name_makes_a_session_and_sends_the_message_under_its_key() -> None:
    [made, sent], begun = run(start(named=False), "ses_1", Sent("ses_1", "dlv_1"))
    assert made.body == {"agent": "a", "capabilities": {"requestInput": False}}
    assert (sent.path, sent.body) == ("/session/ses_1", {"message": "hi", "deliveryKey": "k"})
    assert begun == Begun("ses_1", "dlv_1")


def refused(problem: str) -> BadRequest:
    return BadRequest(status=400, code="bad_request", problem=problem, body={})


def test_a_session_without_a_message_is_an_operation_too() -> None:
    given: dict[str, Any] = {"key": "k", "agent": "a", "may_ask": True}
    [ask], session = run(flows.create(**given, operation="", named=True), "ses_1")
    assert (ask.body, session) == ({"agent": "a", "operationId": "k"}, "ses_1")
    [ask], _ = run(flows.create(**given, operation="", named=False), "ses_1")
    assert ask.body == {"agent": "a"}
    asked, _ = run(flows.create(**given, operation="", named=True), refused("operationId needs a caller"), "ses_1")
    assert [ask.body for ask in asked] == [{"agent": "a", "operationId": "k"}, {"agent": "a"}]
    with pytest.raises(BadRequest):
        run(flows.create(**given, operation="mine", named=True), refused("operationId needs a caller"))


def test_a_server_that_knows_no_names_is_talked_to_as_by_nobody() -> None:
    asked, begun = run(start(named=True), refused("operationId needs a caller"), "ses_1", Sent("ses_1", "dlv_1"))
    assert [ask.path for ask in asked] == ["/session", "/session", "/session/ses_1"]
    assert begun.delivery == "dlv_1"


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("mine", refused("operationId needs a caller")),
        ("", refused("message is empty")),
        ("", ServerAway(asked="it", seconds=1, reason="", remedy="")),
    ],
)
def test_an_operation_of_the_callers_own_and_other_refusals_are_told_as_they_are(
    operation: str, error: Exception
) -> None:
    with pytest.raises(type(error)):
        run(start(named=True, operation=operation), error)


# Where, and as whom -----------------------------------------------------------------------------------------------------


def test_credentials_become_headers() -> None:
    assert headers("KEY") == {"authorization": "Bearer KEY"}
    assert headers(("anna", "ü:x")) == {"authorization": "Basic YW5uYTrDvDp4"}
    assert headers({"x-mine": "1"}) == {"x-mine": "1"}


def test_a_server_may_be_below_a_path() -> None:
    assert base_of("https://example.com/agents/first/") == "https://example.com/agents/first/v1"
    assert base_of("http://127.0.0.1:8000") == "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize("url", ["", "example.com", "ftp://example.com", "https://", "https://example.com/?a=1"])
def test_what_is_no_address_of_a_server_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match=r"https://agents\.example\.com"):
        base_of(url)


def test_bytes_of_a_file_are_sent_as_base64() -> None:
    part = {"type": "file", "mediaType": "image/png", "data": b"hello"}
    ask = asks.send("/session/ses_1", [part, {"type": "text", "text": "What is it?"}], {}, key="k")
    assert ask.body is not None
    assert ask.body["message"] == [{**part, "data": "aGVsbG8="}, {"type": "text", "text": "What is it?"}]
