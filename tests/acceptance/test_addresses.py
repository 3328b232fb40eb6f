"""A conversation has one session, however many speak to it at once; a webhook is one message, however often it comes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from orchestrator import apikeys
from orchestrator.core.names import SessionId
from tests.acceptance.caller import TERMINAL, Answer, Caller
from tests.acceptance.doors import SECRET
from tests.acceptance.system import Every, System, nothing_happened_twice, running, streams_are_whole
from tests.conftest import MakeServer
from tests.fake_openai import FakeOpenAI, by_message
from tests.servers import wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(240)]
APP = "tests.acceptance.doors:app"
MANY = 50
PEOPLE = 5


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(by_message, log=tmp_path / "model.jsonl", token_seconds=0.01, call_seconds=0.05) as made:
        yield made


@pytest.fixture
def system(make_server: MakeServer, tmp_path: Path, provider: FakeOpenAI) -> Iterator[System]:
    server = make_server("valkey", appendonly=True)
    with running(System(server, tmp_path, env={"OPENAI_BASE_URL": provider.url}, app=APP)) as made:
        yield made


def site(system: System, **settings: str) -> Web:
    return Web(system.server.url, target="web:create_app()", ORCHESTRATOR_APP=APP, **settings)


def never_two_turns_at_once(events: list[dict[str, Any]]) -> None:
    """A turn begins when the one before has ended."""
    running = ""
    for event in events:
        if event["type"] == "turn.started":
            assert not running, f"{event['data']['turnId']} began during {running}"
            running = event["data"]["turnId"]
        elif event["type"] in TERMINAL:
            assert running == event["data"]["turnId"]
            running = ""
    assert not running


def test_fifty_first_messages_at_once_make_one_session_with_each_of_them_once(
    system: System, provider: FakeOpenAI
) -> None:
    system.start_workers(3, "-c", "16")
    killed: list[int] = []

    def kill() -> None:
        for pid in system.owners():
            if pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return

    people = [apikeys.mint(f"person-{number}") for number in range(PEOPLE)]
    keys = {"ORCHESTRATOR_API_KEYS": ",".join(entry for _, entry in people)}
    with ExitStack() as stack:
        ports = [stack.enter_context(site(system, **keys)).port for _ in range(2)]
        callers = [Caller(ports[number % 2], people[number % PEOPLE][0]) for number in range(MANY)]
        begin = threading.Barrier(MANY)

        def say(number: int) -> Answer:
            body = {"message": f"steps=2 tool=work #{number}.", "turnPolicy": ("queue", "steer")[number // 7 % 2]}
            begin.wait()
            return callers[number].post("/channels/desk/room%207", body)

        killer = Every(2.0, kill)
        with ThreadPoolExecutor(MANY) as threads:
            answers = list(threads.map(say, range(MANY)))
        assert Counter(answer.status for answer in answers) == {202: MANY}
        (session,) = {answer.body["sessionId"] for answer in answers}
        assert len({answer.body["deliveryId"] for answer in answers}) == MANY
        wait_for(lambda: len(killed) >= 3 or system.all_quiet([session]), 30, what="workers to be killed")
        killer.stop()
        wait_for(lambda: system.all_quiet([session]), 90, what="all turns to end")

        assert callers[1].get("/channels/desk/room%207").body["sessionId"] == session
        last = callers[0].post("/channels/desk/room%207", {"message": "#last"})
        assert last.body["sessionId"] == session
        wait_for(lambda: provider.calls[-1].user == "#last" and system.all_quiet([session]), 30, what="the last turn")

    events = system.events(session)
    never_two_turns_at_once(events)
    texts = [f"steps=2 tool=work #{number}." for number in range(MANY)]
    received = [event["data"]["message"] for event in events if event["type"] == "message.received"]
    assert sorted(received) == sorted([*texts, "#last"])
    # And the model was told each of them once.
    told = [message["content"] for message in provider.calls[-1].messages if message["role"] == "user"]
    assert sorted(told) == sorted([*texts, "#last"])
    deliveries = {answer.body["deliveryId"] for answer in [*answers, last]}
    assert {name for event in events for name in event["meta"]["deliveryIds"]} == deliveries
    assert set(system.outcomes(session)) == {"turn.completed"}
    nothing_happened_twice(system, [session])
    streams_are_whole(system, [session])
    print(f"{MANY} messages, {len(killed)} workers killed, {len(system.outcomes(session))} turns, {len(events)} events")


def signed(name: str, body: bytes) -> dict[str, str]:
    """The headers of a webhook, as https://www.standardwebhooks.com says."""
    at = str(int(time.time()))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{name}.{at}.".encode() + body, hashlib.sha256)
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": name, "webhook-timestamp": at, "webhook-signature": signature}


def at_once(port: int, request: bytes, times: int) -> tuple[list[tuple[int, dict[str, Any]]], float]:
    """The same request so many times: all but its last byte first, then all the last bytes. The answers, and the seconds it took."""
    connections = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(times)]
    for connection in connections:
        connection.sendall(request[:-1])
    began = time.monotonic()
    for connection in connections:
        connection.sendall(request[-1:])
    took = time.monotonic() - began
    answers = []
    for connection in connections:
        answer = HTTPResponse(connection)
        answer.begin()
        answers.append((answer.status, json.loads(answer.read())))
        connection.close()
    return answers, took


def test_a_webhook_that_comes_again_and_again_is_one_message_after_a_restart_and_after_a_reset_too(
    system: System, provider: FakeOpenAI
) -> None:
    body = json.dumps({"address": "order 17", "message": "steps=2 tool=work #webhook"}).encode()
    named = signed("msg_1", body) | {"content-length": str(len(body)), "host": "127.0.0.1"}
    head = "".join(f"{name}: {text}\r\n" for name, text in named.items())
    request = f"POST /v1/webhooks/hooks HTTP/1.1\r\n{head}\r\n".encode() + body

    def quiet(session: str) -> bool:
        return system.outcomes(SessionId(session)) != [] and system.all_quiet([SessionId(session)])

    supervisor = system.start_workers(2, "-c", "16")
    with site(system) as first:
        answers, took = at_once(first.port, request, 5)
        assert took < 0.2  # 1 ms where nobody else wants the processor
        assert [status for status, _ in answers] == [202] * 5
        assert all(told == answers[0][1] for _, told in answers)
        session = SessionId(answers[0][1]["sessionId"])
        wait_for(lambda: quiet(session), 30, what="the turn to end")
        assert system.outcomes(session) == ["turn.completed"]
        supervisor.terminate()
        supervisor.wait(40)
    system.server.restart()

    system.run("orchestrator.cli", "worker", "--processes", "2", "-c", "16", name="again")
    with site(system) as second:
        again, _ = at_once(second.port, request, 5)
        assert again == answers
        # Whoever is told to do something after it has done it: what came before was nothing to do.
        caller = Caller(second.port)
        assert caller.post("/channels/hooks/order%2017", {"message": "#next"}).body["sessionId"] == session
        wait_for(lambda: len(system.outcomes(session)) == 2 and system.all_quiet([session]), 30, what="the next turn")

        reset = caller.post("/channels/hooks/order%2017/reset", {})
        assert (reset.status, reset.body["previousSessionId"]) == (200, session)
        after, _ = at_once(second.port, request, 5)
        assert after == answers
        assert caller.get("/channels/hooks/order%2017").status == 404
        wait_for(lambda: system.events(session)[-1]["type"] == "session.completed", 20, what="the session to end")

        body = body.replace(b"#webhook", b"#another")
        fresh = second.ask("POST", "/v1/webhooks/hooks", body, **signed("msg_2", body))
        assert fresh[0] == 202
        assert fresh[1]["sessionId"] != session
        other = SessionId(fresh[1]["sessionId"])
        wait_for(lambda: quiet(other), 30, what="the turn of the other session to end")
        forged = second.ask("POST", "/v1/webhooks/hooks", body, **signed("msg_3", body + b" "))
        assert forged[0] == 401
    texts = [event["data"]["message"] for event in system.events(session) if event["type"] == "message.received"]
    assert texts == ["steps=2 tool=work #webhook", "#next"]
    assert system.outcomes(other) == ["turn.completed"]
    assert sum(call.user == "steps=2 tool=work #webhook" for call in provider.calls) == 2  # its two steps
    assert len(system.engine.sessions(100)) == 2
    nothing_happened_twice(system, [session, other])
