"""Reading a stream through a real web process."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder

import web
from orchestrator.core.names import SessionId
from orchestrator.engine import Engine
from tests.servers import Server, wait_for
from tests.web.support import Hand, Http, Web

NOBODY = "ses_" + "0" * 28


def used(site: Web) -> int:
    return int(site.get("/v1/health")[1]["streams"]["open"])


# What is said at open --------------------------------------------------------------------------------------------------


def test_a_stream_says_what_it_is(site: Web, hand: Hand) -> None:
    hand.said(3)
    with site.follow(hand.session) as reader:
        reader.until([0, 1, 2])
        told = reader.headers
    assert reader.status == 200
    assert told["x-eve-stream-version"] == "26"
    assert told["content-type"] == "application/x-ndjson; charset=utf-8"
    assert told["x-eve-stream-format"] == "ndjson"
    assert told["x-eve-session-id"] == hand.session
    assert told["cache-control"] == "no-store, no-transform"
    assert told["x-accel-buffering"] == "no"
    assert "x-eve-stream-tail-index" not in told
    assert reader.raw.startswith(b"\n{")


@pytest.mark.parametrize(
    ("query", "tail"),
    [
        ("?includeTailIndex=1", "2"),
        ("?includeTailIndex=true", "2"),
        ("?follow=false", "2"),
        ("?follow=0", "2"),
        ("?includeTailIndex=0", None),
        ("?startIndex=-1&includeTailIndex=1", "2"),
        ("?startIndex=9&includeTailIndex=1", "2"),
    ],
)
def test_the_tail_is_told_to_who_asks(site: Web, hand: Hand, query: str, tail: str | None) -> None:
    hand.said(3)
    with site.follow(hand.session, query) as reader:
        assert reader.headers.get("x-eve-stream-tail-index") == tail


def test_an_empty_log_has_the_tail_minus_one(site: Web, engine: Engine) -> None:
    session = engine.create().session
    with site.follow(session, "?follow=false") as reader:
        reader.until_end()
    assert reader.headers["x-eve-stream-tail-index"] == "-1"
    assert reader.raw == b"\n"


@pytest.mark.parametrize("session", [NOBODY, "wrun_1", "%22"])
def test_an_unknown_session_is_404_in_these_words(site: Web, session: str) -> None:
    status, body, _ = site.get(f"/eve/v1/session/{session}/stream")
    assert (status, body) == (404, {"error": "Session not found.", "ok": False})
    assert site.get(f"/v1/session/{session}/stream")[1]["code"] == "session_not_found"


@pytest.mark.parametrize("start", ["x", "", "1.5", "1_0", "0x1", "%201", "1e3", "9" * 30])
def test_a_start_that_is_no_integer_is_refused(http: Http, engine: Engine, start: str) -> None:
    session = engine.create().session
    answer = http.get(f"/eve/v1/session/{session}/stream?startIndex={start}")
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


# Where it begins and ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "indexes"),
    [(None, [0, 1, 2, 3]), (0, [0, 1, 2, 3]), (2, [2, 3]), (4, []), (9, []), (-2, [2, 3]), (-9, [0, 1, 2, 3])],
)
def test_a_bounded_reading_is_from_the_start_to_the_tail(
    http: Http, hand: Hand, start: int | None, indexes: list[int]
) -> None:
    hand.said(4)
    query = "" if start is None else f"&startIndex={start}"
    answer = http.get(f"/eve/v1/session/{hand.session}/stream?follow=false{query}")
    assert [json.loads(line)["data"]["index"] for line in answer.text.split("\n") if line] == indexes


def test_a_bounded_reading_ends_at_the_tail_seen_at_open(http: Http, hand: Hand, engine: Engine) -> None:
    hand.said(2)
    path = f"/eve/v1/session/{hand.session}/stream?follow=false"
    answer = http.get(path, buffered=False)
    hand.said(2)
    assert answer.headers["x-eve-stream-tail-index"] == "1"
    assert answer.text.count("message.appended") == 2


def test_a_long_log_is_read_whole(site: Web, hand: Hand) -> None:
    hand.said(1000)
    with site.follow(hand.session, "?follow=false") as reader:
        reader.until_end()
        assert reader.indexes == list(range(1000))


def test_what_is_written_later_follows_without_gap_or_repeat(site: Web, hand: Hand) -> None:
    hand.said(2)
    with site.follow(hand.session, "?startIndex=1") as reader:
        reader.until([1])
        for _ in range(20):
            hand.said(3)
        reader.until(range(1, 62))


def test_a_start_beyond_the_tail_waits(site: Web, hand: Hand) -> None:
    with site.follow(hand.session, "?startIndex=3") as reader:
        hand.said(3)
        wait_for(lambda: reader.beats >= 2)
        assert reader.indexes == []
        hand.said(2)
        reader.until([3, 4])


@pytest.mark.parametrize("terminal", ["session.completed", "session.failed"])
def test_nothing_follows_the_end_of_a_session(site: Web, hand: Hand, terminal: str) -> None:
    with site.follow(hand.session) as reader:
        hand.said(1)
        reader.until([0])
        hand.write(terminal, "message.appended")
        reader.until_end()
    assert reader.indexes == [0, 1]


def test_a_start_beyond_the_end_of_an_ended_session_ends(site: Web, hand: Hand, client: Any) -> None:
    hand.write("session.completed")
    client.hset(hand.engine.journal.keys(hand.session).own, "status", "ended")
    with site.follow(hand.session, "?startIndex=1") as reader:
        reader.until_end()
    assert reader.raw == b"\n"


def test_a_session_that_ends_while_nothing_is_said_ends_its_readers(site: Web, hand: Hand, client: Any) -> None:
    hand.said(1)
    with site.follow(hand.session) as reader:
        reader.until([0])
        client.hset(hand.engine.journal.keys(hand.session).own, "status", "ended")
        reader.until_end()
    assert reader.indexes == [0]


def test_the_readers_of_an_erased_session_end(site: Web, hand: Hand, engine: Engine) -> None:
    hand.said(2)
    with site.follow(hand.session) as first, site.follow(hand.session, "?startIndex=9") as second:
        first.until([0, 1])
        engine.erase(hand.session)
        first.until_end()
        second.until_end()
    assert (first.indexes, second.indexes) == ([0, 1], [])
    for method in ("GET", "HEAD"):
        assert site.ask(method, f"/eve/v1/session/{hand.session}/stream")[0] == 404


def test_a_reader_that_hears_of_the_end_does_not_wait_for_the_next_look(narrow: Web, hand: Hand, client: Any) -> None:
    hand.said(1)
    keys = hand.engine.journal.keys(hand.session)
    with narrow.follow(hand.session) as reader:
        reader.until([0])
        time.sleep(1.0)  # past the first looks: from here on only the ear can tell
        client.hset(keys.own, "status", "ended")
        client.publish(keys.tail, f"{hand.session} 1")
        begun = time.monotonic()
        reader.until_end()
        assert time.monotonic() - begun < 2.0


def test_stubs_of_old_deltas_are_read_as_events(site: Web, hand: Hand, client: Any) -> None:
    line = (
        '{"type":"message.appended","data":{"turnId":"turn_0","sequence":0,"stepIndex":0,"messageDelta":"long"},'
        '"meta":{"id":"evt_01JQ2M8V6W3C4D5E6F7G8H9J0K","at":"x"}}'
    )
    hand.engine.journal.append(hand.session, hand.token, 0, "evt_01JQ2M8V6W3C4D5E6F7G8H9J0K", [line])
    from orchestrator.journal.stubs import stub

    client.lset(hand.engine.journal.keys(hand.session).evt, 0, stub(line.encode()))
    with site.follow(hand.session, "?follow=false") as reader:
        reader.until_end()
    [event] = [json.loads(text) for text in reader.lines]
    assert (event["meta"]["id"], event["data"]["messageDelta"]) == ("evt_01JQ2M8V6W3C4D5E6F7G8H9J0K", "")


# Quiet streams -----------------------------------------------------------------------------------------------------------


def test_a_quiet_stream_says_every_so_often_that_it_is_there(site: Web, hand: Hand) -> None:
    with site.follow(hand.session) as reader:
        wait_for(lambda: reader.beats >= 4, 5)
        gaps = [later - earlier for earlier, later in zip(reader.arrived, reader.arrived[1:], strict=False)]
        assert max(gaps) < 1.0
        assert min(gaps[1:]) > 0.15  # not more often than needed


def test_a_lease_ends_in_a_record_for_who_understands_it(site: Web, hand: Hand) -> None:
    hand.said(1)
    begun = time.monotonic()
    with site.follow(hand.session, "?streamControlVersion=1") as reader:
        reader.until_end()
    assert 0.4 < time.monotonic() - begun < 2.0
    assert reader.lines[-1] == '{"$eve":"stream.lease-ended","version":1}'
    assert reader.indexes == [0]


def test_a_lease_ends_also_while_events_flow(site: Web, hand: Hand) -> None:
    with site.follow(hand.session, "?streamControlVersion=1") as reader:
        begun = time.monotonic()
        while not reader.ended and time.monotonic() - begun < 3:
            hand.said(1)
        reader.until_end()
    assert reader.lines[-1].startswith('{"$eve"')
    assert reader.indexes == list(range(len(reader.indexes)))


def test_who_does_not_know_the_record_never_gets_it(site: Web, hand: Hand) -> None:
    with site.follow(hand.session) as reader:
        wait_for(lambda: reader.beats >= 4, 5)  # longer than a lease
        hand.write("message.appended", "session.completed")
        reader.until_end()
    assert "$eve" not in reader.raw.decode()


@pytest.mark.parametrize("version", ["0", "2", "true", "", "1.0"])
def test_only_the_version_that_is_known_here_has_leases(site: Web, hand: Hand, version: str) -> None:
    with site.follow(hand.session, f"?streamControlVersion={version}") as reader:
        wait_for(lambda: reader.beats >= 4, 5)
        assert "$eve" not in reader.raw.decode()


# Server-sent events ------------------------------------------------------------------------------------------------------


def test_server_sent_events_carry_their_index(site: Web, hand: Hand) -> None:
    hand.said(2)
    with site.follow(hand.session, "?follow=0", accept="text/event-stream") as reader:
        reader.until_end()
    assert reader.headers["content-type"] == "text/event-stream; charset=utf-8"
    beat, first, second, rest = reader.raw.decode().split("\n\n")
    assert (beat, rest) == (":", "")
    for index, message in enumerate((first, second)):
        name, data = message.split("\n")
        assert name == f"id: {hand.session}:{index}"
        assert json.loads(data.removeprefix("data: "))["data"]["index"] == index


def test_a_browser_that_comes_back_goes_on_after_what_it_has_seen(site: Web, hand: Hand) -> None:
    hand.said(3)
    headers = {"accept": "text/event-stream", "last-event-id": f"{hand.session}:1"}
    with site.follow(hand.session, "?startIndex=0&follow=0", **headers) as reader:
        reader.until_end()
    assert [line for line in reader.lines if line.startswith("id")] == [f"id: {hand.session}:2"]


@pytest.mark.parametrize(
    ("cursor", "code"),
    [
        (f"{NOBODY}:1", "cursor_of_other_session"),
        ("7", "cursor_of_other_session"),
        ("{session}:", "bad_request"),
        ("{session}:-1", "bad_request"),
        ("{session}:x", "bad_request"),
    ],
)
def test_a_cursor_that_is_not_of_this_stream_is_refused(http: Http, engine: Engine, cursor: str, code: str) -> None:
    session = engine.create().session
    headers = {"accept": "text/event-stream", "last-event-id": cursor.format(session=session)}
    answer = http.get(f"/eve/v1/session/{session}/stream", headers=headers)
    assert (answer.status_code, answer.json["code"]) == (400, code)


def test_a_browser_is_told_to_stop_coming_back_when_all_is_said(http: Http, hand: Hand, client: Any) -> None:
    hand.write("message.appended", "session.completed")
    client.hset(hand.engine.journal.keys(hand.session).own, "status", "ended")
    path = f"/eve/v1/session/{hand.session}/stream"
    headers = {"accept": "text/event-stream", "last-event-id": f"{hand.session}:1"}
    assert http.get(path, headers=headers).status_code == 204
    headers["last-event-id"] = f"{hand.session}:0"
    assert "session.completed" in http.get(path, headers=headers).text


def test_a_heartbeat_of_server_sent_events_is_a_comment(site: Web, hand: Hand) -> None:
    with site.follow(hand.session, accept="text/event-stream") as reader:
        wait_for(lambda: reader.raw == b":\n\n:\n\n", 5)


# Slots -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(valkey: Server) -> Iterator[Web]:
    """A web process that serves two readers, and looks for news seldom."""
    with Web(valkey.url, ORCHESTRATOR_STREAMS="2", TEST_PACE="heartbeat_seconds=0.4,look_seconds=20") as web:
        yield web


def test_news_arrives_when_it_is_written_and_not_at_the_next_look(narrow: Web, hand: Hand) -> None:
    hand.said(1)
    with narrow.follow(hand.session) as reader:
        reader.until([0])
        time.sleep(1.0)  # past the first looks: from here on only the ear can tell
        begun = time.monotonic()
        hand.said(1)
        reader.until([0, 1])
        assert reader.arrived[-1] - begun < 0.3


def test_readers_above_the_limit_are_sent_away_and_a_place_is_free_when_one_leaves(narrow: Web, hand: Hand) -> None:
    readers = [narrow.follow(hand.session) for _ in range(2)]
    try:
        wait_for(lambda: all(reader.raw for reader in readers))
        status, body, headers = narrow.get(f"/eve/v1/session/{hand.session}/stream")
        assert (status, body["code"], headers["retry-after"]) == (503, "too_many_streams", "1")
        assert narrow.post("/eve/v1/session", {"message": "others are served"})[0] == 202
        readers[0].close()
        wait_for(lambda: used(narrow) == 1, 5)
        with narrow.follow(hand.session) as another:
            assert another.status == 200
    finally:
        for reader in readers:
            reader.close()
    wait_for(lambda: used(narrow) == 0, 5)


def test_a_reader_that_leaves_a_quiet_stream_is_noticed_before_anything_is_written(site: Web, hand: Hand) -> None:
    wait_for(lambda: used(site) == 0, 5)
    with site.follow(hand.session) as reader:
        wait_for(lambda: reader.raw)
    begun = time.monotonic()
    wait_for(lambda: used(site) == 0, 5)
    assert time.monotonic() - begun < 0.5  # a look is enough; two heartbeats would take longer


def test_a_failing_write_frees_the_place_where_nobody_can_look(hand: Hand) -> None:
    """Servers other than gunicorn: the response is closed, and with it everything it held."""
    flask = web.create_app(engine=hand.engine)
    environ = EnvironBuilder(path=f"/eve/v1/session/{hand.session}/stream", multithread=True).get_environ()
    slots = flask.extensions["orchestrator"].slots
    body = flask(environ, lambda *_: None)  # type: ignore[arg-type]  # nobody writes
    assert slots.used == 1
    body.close()  # type: ignore[attr-defined]  # WSGI's own
    assert slots.used == 0


def test_a_reader_that_leaves_in_the_middle_of_much_frees_its_place(site: Web, hand: Hand) -> None:
    hand.said(2000)
    with site.follow(hand.session) as reader:
        wait_for(lambda: reader.lines)
    hand.said(1)
    wait_for(lambda: used(site) == 0, 5)


def test_a_question_for_the_headers_alone_takes_no_place(site: Web, hand: Hand) -> None:
    hand.said(1)
    for _ in range(6):
        status, _, headers = site.ask("HEAD", f"/eve/v1/session/{hand.session}/stream?includeTailIndex=1")
        assert (status, headers["x-eve-stream-tail-index"]) == (200, "0")
    wait_for(lambda: used(site) == 0, 5)


def test_a_refused_reading_takes_no_place(site: Web, hand: Hand) -> None:
    for _ in range(6):
        assert site.get(f"/eve/v1/session/{hand.session}/stream?startIndex=x")[0] == 400
        assert site.get(f"/eve/v1/session/{NOBODY}/stream")[0] == 404
    wait_for(lambda: used(site) == 0, 5)


def test_without_threads_a_stream_ends_after_its_tail_and_the_log_says_why_once(
    http: Http, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    hand.said(2)
    for _ in range(3):
        assert http.get(f"/eve/v1/session/{hand.session}/stream").text.count("message.appended") == 2
    said = [record for record in caplog.records if "one request at a time" in record.getMessage()]
    assert len(said) == 1


# A store that has lost its tail ------------------------------------------------------------------------------------------


@pytest.fixture
def cut(client: Any, hand: Hand) -> Callable[[int], None]:
    """Leave so many events, as a failover to a replica that was late would."""

    def cut(events: int) -> None:
        keys = hand.engine.journal.keys(hand.session)
        client.ltrim(keys.evt, 0, events - 1)
        client.hset(keys.own, "events", events)
        hand.events = events

    return cut


def reports(engine: Engine, session: SessionId) -> list[str]:
    return [head.envelope.guard for head in engine.reads.heads(session, 0) if head.envelope.kind == "tail_seen"]


def test_a_lost_tail_is_reported_once_with_what_was_served(
    site: Web, hand: Hand, engine: Engine, cut: Callable[[int], None]
) -> None:
    hand.said(5)
    with site.follow(hand.session) as reader, site.follow(hand.session) as other:
        reader.until(range(5))
        other.until(range(5))
        wait_for(lambda: reader.beats >= 2, 5)
        cut(3)
        wait_for(lambda: reports(engine, hand.session) == ["5"], 5)
        beats = reader.beats
        wait_for(lambda: reader.beats >= beats + 2, 5)  # and looks again meanwhile
        assert reports(engine, hand.session) == ["5"]
        hand.said(3)  # its owner fills what is missing, and goes on
        reader.until([0, 1, 2, 3, 4, 5])
    assert reports(engine, hand.session) == ["5"]


def test_a_cursor_out_of_a_query_proves_nothing(site: Web, hand: Hand, engine: Engine) -> None:
    hand.said(2)
    with site.follow(hand.session, "?startIndex=40") as reader:
        wait_for(lambda: reader.beats >= 4, 5)
    assert reports(engine, hand.session) == []


def test_a_tail_that_is_back_in_time_is_not_reported(
    site: Web, hand: Hand, engine: Engine, cut: Callable[[int], None]
) -> None:
    hand.said(3)
    with site.follow(hand.session) as reader:
        reader.until(range(3))
        wait_for(lambda: reader.beats >= 2, 5)
        cut(2)
        hand.said(1)
        wait_for(lambda: reader.beats >= 5, 5)
    assert reports(engine, hand.session) == []
