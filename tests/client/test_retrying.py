"""When a request is made again. Nothing is sent here, and nobody waits."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from orchestrator.client import asks
from orchestrator.client.asks import Ask, Reply
from orchestrator.client.errors import ClientError, InboxFull, Refused, ServerAway, SessionNotFound
from orchestrator.client.retrying import Done, Patience, Pause, Trying, Unanswered, retry_after

LOST = Unanswered("ReadTimeout: ", reached=True)
NO_ROUTE = Unanswered("ConnectError: refused", reached=False)


def said(status: int, code: str = "", **headers: str) -> Reply:
    body = {"ok": status < 400, "code": code, "error": "No.", "sessionId": "ses_1", "deliveryId": "dlv_1"}
    return Reply(status, {name.replace("_", "-"): text for name, text in headers.items()}, json.dumps(body).encode())


SEND = asks.send("/session/ses_1", "hello", {}, key="k")
CANCEL = asks.cancel("/session/ses_1")
ERASE = asks.erase("/session/ses_1")


@pytest.mark.parametrize("came", [LOST, NO_ROUTE, said(502), said(503, "journal_away"), said(504), said(429)])
def test_what_may_come_in_twice_is_sent_until_there_is_an_answer(came: Reply | Unanswered) -> None:
    trying = Trying(SEND, Patience(), 0.0)
    for try_number in range(5):
        assert isinstance(trying.settle(came, float(try_number), 0.5), Pause)
    done = trying.settle(said(202), 9.0, 0.5)
    assert isinstance(done, Done)
    assert done.value == asks.Sent("ses_1", "dlv_1")


@given(st.integers(300, 599).filter(lambda status: status not in (429, 502, 503, 504)))
@example(500)
def test_everything_else_that_is_said_is_an_answer(status: int) -> None:
    with pytest.raises(Refused) as raised:
        Trying(SEND, Patience(), 0.0).settle(said(status, "anything"), 0.0, 0.5)
    assert (raised.value.status, raised.value.code) == (status, "anything")


@pytest.mark.parametrize("came", [LOST, said(502), said(503, "journal_away")])
@pytest.mark.parametrize(
    "ask",
    [CANCEL, asks.clear("/session/ses_1"), asks.reset("/channels/desk/17"), asks.cancel("/channels/desk/17")],
    ids=str,
)
def test_what_may_not_come_in_twice_is_not_sent_again_when_it_may_have_come_in(
    ask: Ask[object], came: Reply | Unanswered
) -> None:
    trying = Trying(ask, Patience(), 0.0)
    assert isinstance(trying.settle(NO_ROUTE, 0.0, 0.5), Pause)
    with pytest.raises(ServerAway, match="look at the stream"):
        trying.settle(came, 1.0, 0.5)


@pytest.mark.parametrize(
    "ask",
    [
        asks.cancel("/session/ses_1", "turn_1"),
        asks.compact("/session/ses_1"),
        asks.reset("/session/ses_1"),
        asks.create("hi", {}, agent="", may_ask=True, operation="o"),
        asks.show("/session/ses_1"),
    ],
    ids=str,
)
def test_what_names_its_aim_may_come_in_twice(ask: Ask[object]) -> None:
    assert isinstance(Trying(ask, Patience(), 0.0).settle(LOST, 0.0, 0.5), Pause)


def test_a_message_that_was_erased_by_the_try_before_is_erased() -> None:
    trying = Trying(ERASE, Patience(), 0.0)
    trying.settle(LOST, 0.0, 0.5)
    assert trying.settle(said(404, "session_not_found"), 1.0, 0.5) == Done(None)
    with pytest.raises(SessionNotFound):
        Trying(ERASE, Patience(), 0.0).settle(said(404, "session_not_found"), 0.0, 0.5)
    trying = Trying(ERASE, Patience(), 0.0)
    trying.settle(NO_ROUTE, 0.0, 0.5)
    with pytest.raises(SessionNotFound):
        trying.settle(said(404, "session_not_found"), 1.0, 0.5)


@given(
    st.lists(st.sampled_from([LOST, NO_ROUTE, said(503), said(429), said(503, retry_after="7")]), min_size=400),
    st.floats(0, 1),
    st.floats(0.5, 100),
)
def test_patience_has_an_end_and_no_pause_is_longer_than_it_need_be(
    came: list[Reply | Unanswered], chance: float, seconds: float
) -> None:
    patience, now = Patience(seconds=seconds), 0.0
    trying = Trying(SEND, patience, now)
    for one in came:
        try:
            pause = trying.settle(one, now, chance)
        except ClientError:
            break
        assert isinstance(pause, Pause)
        wanted = 7.0 if isinstance(one, Reply) and "retry-after" in one.headers else 0.0
        assert 0.125 <= pause.seconds <= max(patience.longest_pause_seconds, wanted)
        assert pause.seconds >= wanted
        now += pause.seconds
    else:
        raise AssertionError("it is tried for ever")
    assert now <= seconds


def test_who_gives_up_on_a_full_inbox_says_so() -> None:
    with pytest.raises(InboxFull, match="with the same key") as raised:
        Trying(SEND, Patience(seconds=2), 0.0).settle(said(429, "inbox_full", retry_after="30"), 0.0, 0.5)
    assert raised.value.retry_after == 30


def test_who_gives_up_says_how_to_ask_again() -> None:
    trying = Trying(SEND, Patience(seconds=1), 0.0)
    trying.settle(LOST, 0.0, 0.5)
    with pytest.raises(ServerAway, match=r"POST /session/ses_1 for 1 s: 503 journal_away: No\..*with the same key"):
        trying.settle(said(503, "journal_away"), 1.0, 0.5)


def test_a_probe_asks_once() -> None:
    with pytest.raises(ServerAway):
        Trying(asks.health(), Patience(), 0.0).settle(NO_ROUTE, 0.0, 0.5)


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_clients_that_fail_together_do_not_come_back_together(failures: int, one: float, other: float) -> None:
    assume(abs(one - other) > 0.01)
    patience = Patience()
    assert patience.pause(failures, one) != patience.pause(failures, other)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT", "date": "Wed, 21 Oct 2015 07:28:10 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
    ],
)
def test_a_pause_is_said_as_a_number_or_as_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
