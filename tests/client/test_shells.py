"""Both clients against a server that is made up: what they send, and what they do when it does not get through."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from orchestrator.client import (
    Client,
    InboxFull,
    Patience,
    ServerAway,
    SessionNotActive,
    TookTooLong,
    Unauthorized,
)
from tests.client.both import QUICK, Both
from tests.client.logs import LEASE, Log

URL = "http://server.test/below"
SENT = {"ok": True, "sessionId": "ses_1", "deliveryId": "dlv_1", "status": "accepted"}
Made = Callable[..., Both]


@pytest.fixture(params=["sync", "async"])
def both(request: pytest.FixtureRequest) -> Made:
    """Either client, before a server that answers as the test says."""

    def make(answers: Callable[[httpx2.Request], httpx2.Response], **options: Any) -> Both:
        return Both(request.param, URL, answers, **options)

    return make


class Seen:
    """Answers one thing after the other, the last one for ever, and keeps what was asked."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.requests: list[httpx2.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        # A body is read once.
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]


def said(status: int, body: object = SENT, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()})


def streamed(*chunks: bytes, tail: int = -1) -> httpx2.Response:
    return httpx2.Response(200, content=b"".join(chunks), headers={"x-eve-stream-tail-index": str(tail)})


def test_a_message_goes_below_the_address_of_the_server_as_json(both: Made) -> None:
    seen = Seen(said(202))
    turn = both(seen, auth="KEY").say(lambda client: client.session("ses/1").send("hello", policy="queue"))
    assert (turn.delivery_id, turn.session.id) == ("dlv_1", "ses/1")
    [request] = seen.requests
    assert str(request.url) == f"{URL}/v1/session/ses%2F1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer KEY"
    assert seen.bodies[0]["turnPolicy"] == "queue"


@pytest.mark.parametrize("lost", [httpx2.ReadTimeout("late"), said(503), said(429, retry_after="0"), said(502)])
def test_what_is_sent_again_has_the_key_of_the_first_time(both: Made, lost: httpx2.Response | Exception) -> None:
    seen = Seen(lost, lost, said(202))
    both(seen).say(lambda client: client.session("ses_1").send("hello"))
    assert len(seen.bodies) == 3
    assert len({body["deliveryKey"] for body in seen.bodies}) == 1


def test_each_message_has_a_key_of_its_own(both: Made) -> None:
    seen = Seen(said(202))
    for _ in range(2):
        both(seen).say(lambda client: client.session("ses_1").send("hello"))
    both(seen).say(lambda client: client.session("ses_1").send("hello", key="mine"))
    first, second, mine = (body["deliveryKey"] for body in seen.bodies)
    assert first != second
    assert mine == "mine"


def test_a_lost_answer_to_a_cancel_without_a_turn_is_told(both: Made) -> None:
    seen = Seen(httpx2.ReadTimeout("late"))
    with pytest.raises(ServerAway, match="look at the stream"):
        both(seen).say(lambda client: client.session("ses_1").cancel())
    assert len(seen.requests) == 1


def test_a_cancel_that_was_never_sent_is_sent_again(both: Made) -> None:
    seen = Seen(httpx2.ConnectError("refused"), httpx2.ConnectTimeout("late"), said(202, {"outcome": "cancelling"}))
    assert both(seen).say(lambda client: client.session("ses_1").cancel()) == "cancelling"


def test_what_cannot_be_sent_at_all_is_not_tried_again(both: Made) -> None:
    seen = Seen(httpx2.LocalProtocolError("a header with a line end"))
    with pytest.raises(httpx2.LocalProtocolError):
        both(seen).say(lambda client: client.sessions())
    assert len(seen.requests) == 1


def test_a_refusal_is_told_at_once(both: Made) -> None:
    seen = Seen(said(409, {"ok": False, "code": "session_not_active", "error": "Start a new session."}))
    with pytest.raises(SessionNotActive, match="start a new one"):
        both(seen).say(lambda client: client.session("ses_1").send("hello"))
    assert len(seen.requests) == 1


def test_patience_has_an_end(both: Made) -> None:
    patience = Patience(seconds=0.05, first_pause_seconds=0.01, longest_pause_seconds=0.01)
    seen = Seen(said(429, {"code": "inbox_full", "error": "Full."}))
    with pytest.raises(InboxFull):
        both(seen, patience=patience).say(lambda client: client.session("ses_1").send("hello"))
    assert 2 <= len(seen.requests) <= 8


def test_a_credential_is_asked_for_before_each_request(both: Made) -> None:
    tokens = iter(["t1", "t2", "t3"])
    seen = Seen(said(503), said(202))
    made = both(seen, auth=lambda: next(tokens))
    made.say(lambda client: client.session("ses_1").send("hello"))
    assert [request.headers["authorization"] for request in seen.requests] == ["Bearer t1", "Bearer t2"]


def test_a_credential_may_be_waited_for() -> None:
    async def token() -> dict[str, str]:
        return {"x-token": "t1"}

    seen = Seen(said(202))
    Both("async", URL, seen, auth=token).say(lambda client: client.session("ses_1").send("hello"))
    assert seen.requests[0].headers["x-token"] == "t1"


def test_a_name_and_its_password_are_sent_as_basic(both: Made) -> None:
    seen = Seen(said(401, {"code": "unauthorized", "error": "Who?"}))
    with pytest.raises(Unauthorized):
        both(seen, auth=("anna", "secret")).say(lambda client: client.sessions())
    assert seen.requests[0].headers["authorization"].startswith("Basic ")


def log_of(*names: str) -> Log:
    log = Log()
    for name in names:
        log.begin(name).says(f"to {name}").ends()
    return log


def serving(log: Log, per_connection: int = 4) -> Callable[[httpx2.Request], httpx2.Response]:
    """A server whose connections end after a few events, each in a way of its own."""
    ways = iter(range(1_000_000))

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return said(202)
        start = int(request.url.params["startIndex"])
        lines, way = log.lines()[start : start + per_connection], next(ways) % 4
        tail = len(log.events) - 1
        match way:
            case 0:
                return streamed(b"\n", *lines, tail=tail)
            case 1:
                return streamed(b"\n", *lines, LEASE, tail=tail)
            case 2:
                return streamed(b"\n", *lines[:-1], lines[-1][:20] if lines else b"", tail=tail)
            case _:
                return said(503, {"code": "too_many_streams", "error": "Full."}, retry_after="0")

    return answer


def test_a_stream_is_read_over_as_many_connections_as_it_takes(both: Made) -> None:
    log = log_of("a", "b", "c").add("session.completed", {})
    told = both(serving(log)).say(lambda client: client.session("ses_1").events(2))
    assert [(event.index, event.id) for event in told] == [(event.index, event.id) for event in log.read()[2:]]


def test_a_bounded_stream_ends(both: Made) -> None:
    log = log_of("a", "b")
    told = both(serving(log)).say(lambda client: client.session("ses_1").events(-3, follow=False))
    assert [event.index for event in told] == [*range(len(log.events) - 3, len(log.events))]


def test_a_turn_has_its_own_events_and_its_own_end(both: Made) -> None:
    log = log_of("dlv_0", "dlv_1", "dlv_2")

    def read_sync(client: Any) -> Any:
        turn = client.session("ses_1").send("hello")
        events = list(turn.events())
        return events, turn.result(), turn.session.cursor

    async def read_async(client: Any) -> Any:
        turn = await client.session("ses_1").send("hello")
        events = [event async for event in turn.events()]
        return events, await turn.result(), turn.session.cursor

    made = both(serving(log))
    events, outcome, cursor = made.say(read_sync if made.kind == "sync" else read_async)
    assert {event.data.get("turnId", "turn_1") for event in events} == {"turn_1"}
    assert (outcome.text, outcome.cursor) == ("to dlv_1", events[-1].index + 1)
    assert cursor == events[-1].index + 1


def test_a_turn_that_does_not_come_is_waited_for_as_long_as_the_caller_says(both: Made) -> None:
    made = both(serving(log_of("dlv_0")))
    with pytest.raises(TookTooLong, match="The end of the turn"):
        made.say(lambda client: client.session("ses_1").turn("dlv_9").result(timeout=0.2))


def test_the_next_turn_is_looked_for_behind_what_was_seen_when_its_message_was_sent() -> None:
    log = log_of("dlv_0")
    starts: list[int] = []
    serve = serving(log, 100)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            starts.append(int(request.url.params["startIndex"]))
        else:
            log.begin("dlv_1").says("to you").ends()
        return serve(request)

    with Client(URL, http=httpx2.Client(transport=httpx2.MockTransport(answer)), patience=QUICK) as client:
        session = client.session("ses_1")
        first = session.turn("dlv_0")
        assert first.text() == "to dlv_0"
        known = session.cursor
        assert session.send("again").text() == "to you"
        assert starts[-1] == known > 0
        session.send("mail", key="mail-1").text()
        assert starts[-1] == 0


def test_a_turn_is_looked_for_from_where_its_reader_was_before_its_message_was_sent() -> None:
    """Another thread may read on before the answer is there."""
    starts: list[str] = []
    client = Client(URL, http=httpx2.Client(transport=httpx2.MockTransport(lambda request: answer(request))))
    session = client.session("ses_1", cursor=0)
    serve = serving(log_of("dlv_1"), 100)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            session.cursor = 99
        else:
            starts.append(request.url.params["startIndex"])
        return serve(request)

    assert session.send("hello").text(timeout=10) == "to dlv_1"
    assert starts == ["0"]


def test_a_stream_is_asked_for_as_it_is(both: Made) -> None:
    seen = Seen(streamed(b"\n", *log_of("a").add("session.completed", {}).lines(), tail=9))
    both(seen, auth="KEY").say(lambda client: client.session("ses_1").events())
    [request] = seen.requests
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["accept"] == "application/x-ndjson"
    assert request.headers["authorization"] == "Bearer KEY"
    assert request.url.params["streamControlVersion"] == "1"


def test_a_stream_that_is_left_gives_its_connection_back() -> None:
    log = log_of("a")
    closed: list[bool] = []

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"".join(log.lines()[:2])
            raise AssertionError("nobody reads on")

        def close(self) -> None:
            closed.append(True)

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Body(), headers={"x-eve-stream-tail-index": "1"})

    with Client(URL, http=httpx2.Client(transport=httpx2.MockTransport(answer)), patience=QUICK) as client:
        for _ in client.session("ses_1").events():
            break
        assert closed == [True]
