"""A malformed world: what any client can send, all at once and too often. Every answer is a refusal or a promise that is kept."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.caller import Caller, is_whole
from tests.acceptance.system import System, running
from tests.conftest import MakeServer
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(240)]
APP = "examples.support:app"
LIMIT = 1000


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path) -> Iterator[System]:
    with running(System(make_server("valkey", appendonly=True), tmp_path)) as made:
        yield made


@pytest.fixture
def site(system: System) -> Iterator[Web]:
    with Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP=APP) as made:
        yield made


def rubbish(chance: random.Random) -> Iterator[bytes]:
    """Bodies that nobody means."""
    for length in (1, 2, 7, 100, 5_000, 100_000):
        for _ in range(5):
            yield chance.randbytes(length)
    values: list[Any] = [None, True, 0, -1.5, 10**30, [], {}, [[]], [None], [{}], "", [1], [{"type": 1}], {"a": 1}]
    values += [[{"type": "text"}], [{"type": "text", "text": 3}], [{"type": "file"}], [{"type": "x" * 9999}], ["text"]]
    for value in values:
        yield json.dumps(value).encode()
        for name in ("message", "turnPolicy", "agent", "turnId", "inputResponses", "operationId"):
            yield json.dumps({"message": "hello", name: value}).encode()
    whole = json.dumps({"message": [{"type": "text", "text": "hello, this one is cut"}]}).encode()
    for length in range(1, len(whole), 3):
        yield whole[:length]
    yield b"[" * 100_000
    yield b'{"message":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    yield b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    yield b'{"message": ' + b"9" * 10_000 + b"}"
    yield b'{"message": NaN, "turnPolicy": Infinity}'
    yield b'{"message": "\\ud800"}'
    yield b'{"message": "\xff\xfe"}'
    yield b'{"message": "hi", "agent": "\\ud83d"}'
    yield '{"message": "hi"}'.encode("utf-16")
    yield b"\xef\xbb\xbf" + b'{"message": "hi"}'


def test_no_body_and_no_address_makes_a_server_error(system: System, site: Web) -> None:
    system.start_worker("worker", ORCHESTRATOR_APP=APP)
    session = Caller(site.port).create("hello")
    statuses: Counter[int] = Counter()
    made: list[str] = []
    for prefix in ("/v1", "/eve/v1"):
        caller = Caller(site.port, prefix=prefix)
        for body in rubbish(random.Random(6)):
            for path in ("/session", f"/session/{session}", f"/session/{session}/cancel", "/session/ses_nobody"):
                answer = caller.post(path, body)
                statuses[answer.status] += 1
                assert answer.status in (200, 202, 400, 409), (path, body[:100], answer)
                assert answer.body["ok"] is (answer.status < 300)
                if answer.status == 202 and path == "/session":
                    made.append(answer.body["sessionId"])
        for path in (
            "/session/..%2f..",
            "/session/%00",
            "/session/" + "s" * 5000,
            "/session/ses_%F0%9F%98%80/stream",
            f"/session/{session}/stream?startIndex=x",
            f"/session/{session}/stream?startIndex=99999999999999999999",
            f"/session/{session}/nothing",
            "/nothing",
        ):
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                answer_status = status(site.port, method, prefix + path)
                statuses[answer_status] += 1
                assert 200 <= answer_status < 500, (method, path, answer_status)
        big = caller.post("/session", b'{"message": "' + b"x" * 20_000_000 + b'"}')
        assert (big.status, big.body["code"]) == (413, "body_too_large")
    caller = Caller(site.port)
    for name in made:
        assert caller.ended(name) in ([], ["turn.completed"])
    assert caller.ended(caller.create("hello")) == ["turn.completed"]
    assert "Traceback" not in site.log
    assert "Traceback" not in (system.folder / "worker.log").read_text()
    print(f"{sum(statuses.values())} requests: {dict(sorted(statuses.items()))}")


def status(port: int, method: str, target: str) -> int:
    """The status alone: these answers may be anything."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, target)
        return connection.getresponse().status
    finally:
        connection.close()


def test_texts_that_look_like_something_else_come_back_as_they_were(system: System, site: Web) -> None:
    system.start_worker("worker", ORCHESTRATOR_APP=APP)
    caller = Caller(site.port)
    texts = [
        "\x00 \x1b[31m \r\n\n data: {} \n\nid: 7\n\n",
        "@SESSION@ @KEY@ @QUEUE@ @NUMBER@ %s %d {0} {session} \\u0000 \\",
        '"},"meta":{"id":"evt_x"}}\n{"type":"session.failed"}',
        "\u2028\u2029\ufeff \U0001f600 \ufffe a\u0300",
        "x" * 1_000_000,
        " ",
    ]
    for text in texts:
        session = caller.create(text)
        assert caller.ended(session) == ["turn.completed"]
        [received] = [event for event in caller.events(session) if event["type"] == "message.received"]
        assert received["data"]["message"] == text


def test_the_same_message_posted_twenty_times_at_once_is_twenty_messages(system: System, site: Web) -> None:
    system.start_worker("worker", ORCHESTRATOR_APP=APP)
    caller = Caller(site.port)
    session = caller.create("hello")
    with ThreadPoolExecutor(20) as callers:
        deliveries = list(callers.map(lambda _: caller.say(session, "again"), range(20)))
    assert len(set(deliveries)) == 20
    assert caller.ended(session, 60) == ["turn.completed"] * 21
    events = caller.events(session)
    is_whole(events, turns=21)
    caused = [name for event in events if event["type"] == "turn.started" for name in event["meta"]["deliveryIds"]]
    assert sorted(caused[1:]) == sorted(deliveries)


def test_an_inbox_takes_a_thousand_messages_refuses_the_next_and_loses_none(system: System, site: Web) -> None:
    caller = Caller(site.port)
    session = str(caller.post("/session", {}).body["sessionId"])
    with ThreadPoolExecutor(8) as callers:
        answers = list(
            callers.map(lambda n: caller.post(f"/session/{session}", {"message": f"#{n}"}), range(LIMIT + 40))
        )
    assert Counter(answer.status for answer in answers) == {202: LIMIT, 429: 40}
    assert {answer.body["code"] for answer in answers if answer.status == 429} == {"inbox_full"}
    accepted = [f"#{number}" for number, answer in enumerate(answers) if answer.status == 202]
    # A full inbox can still be told to stop, and a cancel behind it means the turn that would be open there: the first.
    told = caller.post(f"/session/{session}/cancel", {})
    assert (told.status, told.body["outcome"]) == (202, "cancelling")

    system.start_worker("worker", ORCHESTRATOR_APP=APP)
    outcomes = caller.ended(session, 150)
    events = caller.events(session)
    is_whole(events, turns=LIMIT)
    received = [event["data"]["message"] for event in events if event["type"] == "message.received"]
    assert sorted(received) == sorted(accepted)
    assert Counter(outcomes) == {"turn.cancelled": 1, "turn.completed": LIMIT - 1}
    assert outcomes[0] == "turn.cancelled"
    assert caller.post(f"/session/{session}", {"message": "one more"}).status == 202
    assert caller.ended(session)[-1] == "turn.completed"
