"""The client that others have published works as it is: `eve/client` 0.80.1 against `orchestrator dev` and gunicorn with workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest

from tests.acceptance.caller import Caller
from tests.acceptance.eve import Client, ClientFailed, Event, Node, Session, installed
from tests.acceptance.sites import Site, with_dev, with_gunicorn
from tests.servers import wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(180)]
KINDS = {"dev": with_dev, "gunicorn": with_gunicorn}
LONG = "tokens=400 token_seconds=0.05"
"""A turn of twenty seconds, for those who stop it."""
ONCE: dict[str, Any] = {"streamReconnectPolicy": {"reconnect": False}}
NOBODY = "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV00"
numbers = count()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(installed()) as made:
        yield made
        assert made.unhandled == []


@pytest.fixture(scope="module", params=list(KINDS))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, node: Node) -> Iterator[Site]:
    with KINDS[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def client(site: Site, node: Node) -> Client:
    return node.client(site.url, **site.options)


def saying(text: str) -> str:
    """A message like no other: the provider of these tests tells them apart."""
    return f"{text} #{next(numbers)}"


def types(events: list[Event], *without: str) -> list[str]:
    """The types, a run of the same one said once."""
    found = [event["type"] for event in events if event["type"] not in without]
    return found[:1] + [after for before, after in pairwise(found) if before != after]


def turns(events: list[Event]) -> list[str]:
    """The turns, in order."""
    return list(dict.fromkeys(event["data"]["turnId"] for event in events if "turnId" in event.get("data", {})))


def messages(events: list[Event]) -> list[str]:
    """What people said."""
    return [event["data"]["message"] for event in events if event["type"] == "message.received"]


def is_whole(session: Session, events: list[Event]) -> None:
    """This is the session from its start, as it is stored, and nothing of it twice."""
    assert events == session.snapshot()["events"]
    ids = [event["meta"]["id"] for event in events]
    assert len(ids) == len(set(ids))


# Turns ----------------------------------------------------------------------------------------------------------------


def test_the_server_is_healthy(client: Client, site: Site) -> None:
    assert site.caller.ask("HEAD", "/health").status == 200
    assert client.health() == {"ok": True, "status": "ready", "workflowId": "orc:default"}


def test_what_a_host_has_behind_its_question_mark_is_no_concern_of_ours(site: Site, node: Node) -> None:
    client = node.client(f"{site.url}/?tenant=a&x-vercel=1", **site.options)
    assert client.health()["ok"]
    _, response = client.create(saying("hello"))
    assert response.result()["status"] == "waiting"


def test_a_host_may_have_a_path(site: Site, node: Node) -> None:
    app = site.system.environment["ORCHESTRATOR_APP"]
    with Web(site.system.server.url, target="tests.acceptance.paced:below()", ORCHESTRATOR_APP=app) as web:
        health = Caller(web.port, prefix="/agents/first/eve/v1").get("/health")
        assert health.status == 200
        client = node.client(f"http://127.0.0.1:{web.port}/agents/first")
        assert client.health() == health.body
        session, response = client.create(saying("tokens=3"))
        is_whole(session, response.result()["events"])


def test_any_text_comes_back_as_it_was(client: Client) -> None:
    text = saying('a\u2028b\u0000c \r\n\t {"$eve":1} 😀 \u202e' + "ü" * 20_000)
    _, response = client.create(text)
    result = response.result()
    assert messages(result["events"]) == [text]
    assert text in result["message"]


def test_a_message_brings_a_file_which_is_shown_without_its_bytes(client: Client) -> None:
    picture = {"type": "file", "mediaType": "image/png", "data": "iVBORw0KGgo=", "filename": "a.png"}
    words = saying("tokens=3")
    session, response = client.create([{"type": "text", "text": words}, picture])
    result = response.result()
    assert result["message"] == "word0 word1 word2"
    assert messages(result["events"]) == [f"{words}\n[file: a.png (image/png)]"]
    [received] = [event["data"] for event in result["events"] if event["type"] == "message.received"]
    shown = {"type": "file", "mediaType": "image/png", "filename": "a.png", "size": 8}
    assert received["parts"] == [{"type": "text", "text": words}, shown]
    is_whole(session, result["events"])


def test_a_created_session_answers_its_first_message(client: Client) -> None:
    message = saying("tokens=5")
    session, response = client.create(message)
    result = response.result()
    assert (result["status"], result["sessionId"]) == ("waiting", session.id)
    assert result["message"] == "word0 word1 word2 word3 word4"
    assert types(result["events"]) == [
        "session.started",
        "turn.started",
        "message.received",
        "step.started",
        "message.appended",
        "message.completed",
        "step.completed",
        "turn.completed",
        "session.waiting",
    ]
    assert messages(result["events"]) == [message]
    deltas = [event["data"]["messageDelta"] for event in result["events"] if event["type"] == "message.appended"]
    assert "".join(deltas) == result["message"]
    assert session.index == len(result["events"])
    is_whole(session, result["events"])


def test_a_session_made_without_a_message_is_empty_until_one_comes(client: Client) -> None:
    session = client.prewarm()
    assert session.snapshot() == {"events": [], "session": {"sessionId": session.id, "streamIndex": 0}}
    result = session.send(saying("hello")).result()
    assert types(result["events"])[:3] == ["session.started", "turn.started", "message.received"]
    assert turns(result["events"]) == ["turn_0"]
    is_whole(session, result["events"])


def test_tools_are_called_and_answered_within_their_steps(client: Client) -> None:
    _, response = client.create(saying("steps=3 tool=work calls=2"))
    result = response.result()
    assert result["status"] == "waiting"
    open_calls: set[str] = set()
    steps: list[int] = []
    for event in result["events"]:
        data = event.get("data", {})
        match event["type"]:
            case "step.started":
                assert not open_calls
                steps.append(data["stepIndex"])
            case "actions.requested":
                open_calls |= {action["callId"] for action in data["actions"]}
                assert {action["toolName"] for action in data["actions"]} == {"work"}
            case "action.result":
                open_calls.remove(data["result"]["callId"])
                assert data["status"] == "completed"
            case _:
                pass
    assert steps == [0, 1, 2]
    assert types(result["events"]).count("action.result") >= 2


def test_events_have_the_coordinates_and_the_stamps_that_the_protocol_asks_for(client: Client) -> None:
    session, response = client.create(saying("steps=3 tool=work"))
    response.result()
    session.send(saying("hello")).result()
    events = session.snapshot()["events"]
    for event in events:
        assert re.fullmatch(r"evt_[0-9A-HJKMNP-TV-Z]{26}", event["meta"]["id"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["meta"]["at"])
        data = event.get("data", {})
        if "turnId" in data:
            assert data["turnId"] == f"turn_{data['sequence']}"
    assert events[0]["type"] == "session.started"
    assert sum(event["type"] == "session.started" for event in events) == 1
    for event in events:
        if event["type"] == "session.waiting":
            assert event["data"]["wait"] == "next-user-message"
            assert event["data"]["continuationToken"] in (session.id, "")
        if event["type"] == "step.started":
            assert event["data"]["modelId"]
    steps = [
        (event["data"]["turnId"], event["data"]["stepIndex"]) for event in events if event["type"] == "step.started"
    ]
    assert steps == [("turn_0", 0), ("turn_0", 1), ("turn_0", 2), ("turn_1", 0)]


def test_a_follow_up_gets_its_own_turn_and_not_the_one_before(client: Client) -> None:
    session, response = client.create(saying("first"))
    first = response.result()
    message = saying("second")
    second = session.send(message).result()
    assert messages(second["events"]) == [message]
    assert turns(second["events"]) == ["turn_1"]
    assert message in second["message"]
    (delivery,) = {tuple(event["meta"]["deliveryIds"]) for event in second["events"]}
    assert len(delivery) == 1
    is_whole(session, [*first["events"], *second["events"]])


def test_an_old_cursor_does_not_bring_an_old_answer(client: Client) -> None:
    session, response = client.create(saying("first"))
    first = response.result()
    message = saying("second")
    result = client.attach(session.id).send(message).result()
    assert messages(result["events"]) == [message]
    assert (
        len(result["events"])
        < len(first["events"]) + len(result["events"])
        == session.snapshot()["session"]["streamIndex"]
    )


def test_queued_messages_come_after_the_turn_and_each_caller_hears_of_its_own(site: Site, client: Client) -> None:
    """Those of one person share a turn if they wait together. Whoever is not known could be anybody, and shares nothing."""
    session, running = client.create(saying('steps=2 tool=linger args={"seconds":1}'))
    first = running.read()
    first.until("actions.requested")
    texts = [saying(f"queued{number}") for number in range(3)]
    waiting = [session.send(text, turnPolicy="queue") for text in texts]
    results = [response.ask("result") for response in waiting]
    for number, (text, result) in enumerate(zip(texts, results, strict=True), 1):
        found = result.value()
        assert messages(found["events"]) == (texts if site.key else [text])
        assert turns(found["events"]) == ["turn_1" if site.key else f"turn_{number}"]
        assert (texts[-1] if site.key else text) in found["message"]
    assert turns(first.all()) == ["turn_0"]


def test_a_message_during_a_tool_joins_the_turn_and_both_callers_hear_its_end(client: Client) -> None:
    session, response = client.create(saying('steps=2 tool=linger args={"seconds":1}'))
    first = response.read()
    first.until("actions.requested")
    joins = saying("steps=1 joins")
    second = session.send(joins, turnPolicy="steer").result()
    assert turns(first.all()) == turns(second["events"]) == ["turn_0"]
    assert messages(first.events)[1:] == messages(second["events"]) == [joins]
    assert joins in second["message"]
    # The tool that ran has its result, and it is there before the message.
    told = types(first.events)
    assert told.index("action.result") < len(told) - 1 - told[::-1].index("message.received")
    end = first.events[-1]
    assert end == second["events"][-1]
    assert len(end["meta"]["deliveryIds"]) == 2
    is_whole(session, first.events)


def test_a_message_before_any_output_restarts_the_step_within_the_turn(client: Client) -> None:
    session, response = client.create(saying("call_seconds=30"))
    first = response.read()
    first.until("step.started")
    joins = saying("steps=1 instead")
    second = session.send(joins).result(20)
    events = first.all()
    assert turns(events) == ["turn_0"]
    assert joins in second["message"]
    cut = [event["data"] for event in events if event["type"] == "step.completed"]
    assert [data["finishReason"] for data in cut] == ["other", "stop"]
    assert [event["data"]["stepIndex"] for event in events if event["type"] == "step.started"] == [0, 1]
    is_whole(session, events)


# Requests -------------------------------------------------------------------------------------------------------------

SIGNS = "steps=2 tool=sign"
QUESTION = 'steps=2 tool=ask_question args={"question":"Which colour?","options":["red","green"]}'


def asked(result: dict[str, Any], count: int = 1) -> list[str]:
    """The ids of what a turn waits for."""
    assert result["status"] == "waiting"
    assert types(result["events"])[-2:] == ["input.requested", "turn.waiting"]
    found = [str(request["requestId"]) for request in result["inputRequests"]]
    assert len(found) == count
    return found


def one_of(events: list[Event], kind: str) -> Any:
    """The data of the only event of a type."""
    [found] = [event["data"] for event in events if event["type"] == kind]
    return found


def test_an_approval_is_asked_for_and_given(client: Client) -> None:
    session, response = client.create(saying(SIGNS))
    first = response.result()
    [request] = asked(first)
    second = session.respond({"requestId": request, "optionId": "approve"}).result()
    told = types(second["events"], "message.appended")
    assert told[:4] == ["approval.settled", "input.resolved", "step.started", "action.result"]
    assert told[-2:] == ["turn.completed", "session.waiting"]
    assert one_of(second["events"], "action.result")["status"] == "completed"
    assert turns(second["events"]) == ["turn_0"]
    assert "done after 2 steps" in second["message"]
    is_whole(session, [*first["events"], *second["events"]])


def test_an_approval_is_refused_with_a_text(client: Client) -> None:
    session, response = client.create(saying(SIGNS))
    first = response.result()
    [request] = asked(first)
    second = session.respond({"requestId": request, "optionId": "cancel", "text": "Not today."}).result()
    told = types(second["events"], "message.appended")
    assert told[:4] == ["approval.settled", "input.resolved", "action.result", "step.started"]
    [resolution] = one_of(second["events"], "input.resolved")["resolutions"]
    assert (resolution["outcome"], resolution["response"]["text"]) == ("denied", "Not today.")
    result = one_of(second["events"], "action.result")
    assert (result["status"], result["error"]["code"]) == ("rejected", "TOOL_EXECUTION_DENIED")
    assert second["message"]
    is_whole(session, [*first["events"], *second["events"]])


def test_a_text_is_an_answer_if_it_says_an_option(client: Client) -> None:
    session, response = client.create(saying(SIGNS))
    asked(response.result())
    second = session.send("approve").result()
    assert types(second["events"])[:2] == ["approval.settled", "input.resolved"]
    assert messages(second["events"]) == []
    assert one_of(second["events"], "action.result")["status"] == "completed"


def test_of_two_approvals_one_may_be_answered_first(client: Client) -> None:
    session, response = client.create(saying(f"{SIGNS} calls=2"))
    first = response.result()
    one, two = asked(first, 2)
    half = session.respond({"requestId": two, "optionId": "approve"}).result()
    assert types(half["events"]) == ["approval.settled", "turn.waiting"]
    assert half["status"] == "waiting"
    rest = session.respond({"requestId": one, "optionId": "cancel"}).result()
    assert types(rest["events"])[:2] == ["approval.settled", "input.resolved"]
    results = [event["data"]["status"] for event in rest["events"] if event["type"] == "action.result"]
    assert sorted(results) == ["completed", "rejected"]
    is_whole(session, [*first["events"], *half["events"], *rest["events"]])


def test_a_turn_that_waits_is_cancelled(client: Client) -> None:
    session, response = client.create(saying(SIGNS))
    first = response.result()
    asked(first)
    with session.following() as reading:
        assert session.cancel()["status"] == "accepted"
        reading.until("session.waiting")
    assert types(reading.events) == ["input.resolved", "turn.cancelled", "session.waiting"]
    assert one_of(reading.events, "input.resolved")["resolutions"][0]["outcome"] == "cancelled"
    assert session.send(saying("after")).result()["status"] == "waiting"


def test_a_question_is_answered_by_an_option_or_a_text(client: Client) -> None:
    for answer, said in (({"optionId": "2"}, "green"), ({"text": "Blue."}, "Blue.")):
        session, response = client.create(saying(QUESTION))
        [request] = asked(response.result())
        second = session.respond({"requestId": request, **answer}).result()
        output = one_of(second["events"], "action.result")["result"]["output"]
        assert (output["status"], output["answer"]) == ("answered", said)


def test_an_answer_to_what_nobody_asked_is_an_error(client: Client) -> None:
    session, response = client.create(saying("hello"))
    response.result()
    assert refusal(lambda: session.respond({"requestId": "req_1", "optionId": "approve"})) == (409, "request_unknown")


# Controls -------------------------------------------------------------------------------------------------------------


def test_a_session_cancels_its_running_turn(client: Client) -> None:
    session, response = client.create(saying(LONG))
    reading = response.read()
    reading.until("message.appended")
    assert session.cancel() == {"sessionId": session.id, "status": "accepted"}
    assert types(reading.all(15))[-2:] == ["turn.cancelled", "session.waiting"]
    assert not {"turn.completed", "turn.failed", "step.completed", "step.failed"} & set(reading.types)
    is_whole(session, reading.events)
    assert session.send(saying("after")).result()["status"] == "waiting"


def test_a_message_behind_a_cancelled_turn_has_a_turn_of_its_own(client: Client) -> None:
    session, response = client.create(saying(LONG))
    reading = response.read()
    reading.until("message.appended")
    message = saying("behind")
    behind = session.send(message, turnPolicy="queue")
    assert session.cancel()["status"] == "accepted"
    result = behind.result(20)
    assert types(reading.all(15))[-2:] == ["turn.cancelled", "session.waiting"]
    assert (messages(result["events"]), turns(result["events"])) == ([message], ["turn_1"])


def test_a_message_that_a_reset_overtakes_is_told_so(client: Client) -> None:
    session, response = client.create(saying(LONG))
    reading = response.read()
    reading.until("message.appended")
    behind = session.send(saying("behind"), turnPolicy="queue")
    told = behind.ask("result")
    assert session.reset()["status"] == "reset"
    with pytest.raises(ClientFailed, match="The session ended before"):
        told.value(20)
    assert types(reading.all(15))[-2:] == ["turn.cancelled", "session.waiting"]


def test_a_response_cancels_its_own_turn(client: Client) -> None:
    session, response = client.create(saying(LONG))
    cancelled = response.ask("cancel")  # it waits until the turn is known
    reading = response.read()
    assert cancelled.value() == {"sessionId": session.id, "status": "accepted"}
    assert types(reading.all(15))[-2:] == ["turn.cancelled", "session.waiting"]
    again = session.send(saying(LONG))
    reading = again.read()
    reading.until("turn.started")
    assert again.cancel()["status"] == "accepted"
    assert turns(reading.all(15)) == ["turn_1"]
    assert again.cancel() == {"status": "no_active_turn"}


def test_a_cancel_of_another_turn_or_of_none_changes_nothing(client: Client) -> None:
    session, response = client.create(saying("tokens=60 token_seconds=0.05"))
    reading = response.read()
    reading.until("message.appended")
    assert session.cancel(turnId="turn_7")["status"] == "accepted"
    assert types(reading.all())[-2:] == ["turn.completed", "session.waiting"]
    assert session.cancel()["status"] == "accepted"
    after = session.send(saying("after")).result()
    assert types(after["events"])[0] == "turn.started"
    assert after["status"] == "waiting"
    assert client.attach(NOBODY).cancel() == {"status": "no_active_turn"}


def test_a_cleared_session_has_forgotten_and_goes_on(client: Client, site: Site) -> None:
    session, response = client.create(saying("remember"))
    first = response.result()
    assert session.clear() == {"sessionId": session.id, "status": "accepted"}
    with session.following() as reading:
        reading.until("session.waiting")
    assert types(reading.events) == ["context.cleared", "session.waiting"]
    coming = reading.events[0]["data"]
    assert (coming["turnId"], coming["sequence"], coming["sessionId"]) == ("turn_1", 1, session.id)
    message = saying("what was it?")
    second = session.send(message).result()
    assert turns(second["events"]) == ["turn_1"]
    asked = {call["user"]: call["messages"] for call in site.system.model_calls()}
    assert asked[message] == asked[messages(first["events"])[0]], "the model was told of what was cleared"
    is_whole(session, [*first["events"], *reading.events, *second["events"]])


def test_a_clear_during_a_turn_waits_for_its_end(client: Client) -> None:
    session, response = client.create(saying("tokens=40 token_seconds=0.05"))
    reading = response.read()
    reading.until("message.appended")
    assert session.clear()["status"] == "accepted"
    assert types(reading.all())[-2:] == ["turn.completed", "session.waiting"]
    with session.following() as later:
        later.until("session.waiting")
    assert types(later.events) == ["context.cleared", "session.waiting"]


def test_a_session_is_compacted_when_there_is_enough_to_sum_up(client: Client, site: Site) -> None:
    session, response = client.create(saying("tokens=3"))
    short = response.result()
    assert session.compact() == {"sessionId": session.id, "status": "accepted"}
    with session.following() as nothing:
        nothing.until("session.waiting")
    assert types(nothing.events) == ["session.waiting"]

    long = session.send(saying("steps=8 tool=work")).result()
    assert session.compact()["status"] == "accepted"
    with session.following() as summed_up:
        summed_up.until("session.waiting")
    assert types(summed_up.events) == ["compaction.requested", "compaction.completed", "session.waiting"]
    assert [(event["data"]["turnId"], event["data"]["sessionId"]) for event in summed_up.events[:2]] == [
        ("turn_2", session.id)
    ] * 2
    message = saying("and?")
    after = session.send(message).result()
    assert turns(after["events"]) == ["turn_2"]
    asked = {call["user"]: call["messages"] for call in site.system.model_calls()}
    assert asked[message] < asked[messages(long["events"])[0]]
    is_whole(session, [*short["events"], *nothing.events, *long["events"], *summed_up.events, *after["events"]])


def test_a_session_without_a_turn_has_nothing_to_clear_or_to_compact(client: Client) -> None:
    session = client.prewarm()
    assert session.clear() == session.compact() == {"sessionId": session.id, "status": "accepted"}
    result = session.send(saying("hello")).result()
    assert types(result["events"])[0] == "session.started"
    unknown = client.attach(NOBODY)
    assert unknown.clear() == unknown.compact() == unknown.reset() == {"status": "no_active_session"}


def test_a_reset_ends_the_turn_the_session_and_its_streams(client: Client) -> None:
    session, response = client.create(saying(LONG))
    reading = response.read()
    reading.until("message.appended")
    with session.following(startIndex=0) as other:
        other.until("message.appended")
        assert session.reset(reason="enough") == {"previousSessionId": session.id, "status": "reset"}
        assert types(other.all(15))[-3:] == ["turn.cancelled", "session.waiting", "session.completed"]
    assert types(reading.all(15))[-2:] == ["turn.cancelled", "session.waiting"]
    assert refusal(lambda: session.send(saying("after"))) == (409, "session_not_active")
    assert session.reset() == session.clear() == session.compact() == {"status": "no_active_session"}
    assert session.cancel() == {"status": "no_active_turn"}
    is_whole(session, other.events)


def test_a_reset_between_turns_ends_the_session(client: Client) -> None:
    session, response = client.create(saying("hello"))
    response.result()
    assert session.reset()["status"] == "reset"
    with session.following() as reading:
        assert types(reading.all(15), "session.ending") == ["session.completed"]  # and an event of our own before it
    assert refusal(lambda: session.send(saying("after"))) == (409, "session_not_active")


# Streams --------------------------------------------------------------------------------------------------------------


def test_a_response_survives_the_web_processes_being_killed(site: Site, client: Client) -> None:
    session, response = client.create(saying("steps=5 tool=work calls=2 tokens=60"))
    reading = response.read()
    for seen in (2, 6):
        reading.until("action.result", seen)
        site.kill_web()
    assert types(reading.all(), "action.result")[-2:] == ["turn.completed", "session.waiting"]
    is_whole(session, reading.events)
    assert reading.types.count("action.result") == 8


def test_bounded_reads_end_at_the_tail_and_go_on_where_they_ended(client: Client) -> None:
    session, response = client.create(saying("tokens=3"))
    events = response.result()["events"]
    assert session.stream(startIndex=0, follow=False).all(10) == events
    assert session.stream(startIndex=4, follow=False).all(10) == events[4:]
    assert session.stream(startIndex=len(events), follow=False).all(10) == []
    assert session.stream(startIndex=len(events) + 5, follow=False).all(10) == []
    late = client.attach(session.id, index=3)
    assert late.stream(follow=False).all(10) == events[3:]
    assert late.index == len(events)
    assert late.snapshot() == {"events": events, "session": {"sessionId": session.id, "streamIndex": len(events)}}


def test_reads_from_the_tail_begin_with_the_last_events_and_follow(client: Client) -> None:
    session, response = client.create(saying("tokens=3"))
    events = response.result()["events"]
    with session.following(startIndex=-2) as two, session.following(startIndex=-1000) as all_of_them:
        two.until("session.waiting")
        all_of_them.until("session.waiting")
        assert two.events == events[-2:]
        assert all_of_them.events == events
        more = session.send(saying("tokens=3")).result()["events"]
        for reading, before in ((two, events[-2:]), (all_of_them, events)):
            reading.until("session.waiting", 2)
            assert reading.events == [*before, *more]


def test_a_reader_ahead_of_the_tail_waits_for_it(client: Client) -> None:
    session, response = client.create(saying("tokens=3"))
    ahead = len(response.result()["events"]) + 3
    with session.following(startIndex=ahead) as reading:
        more = session.send(saying("tokens=3")).result()["events"]
        reading.until("session.waiting")
        assert reading.events == more[3:]


def test_a_quiet_stream_is_held_and_hears_what_comes(site: Site, client: Client, node: Node) -> None:
    """Without a heartbeat the client hangs up after 15 s; after a lease it comes back at once."""
    session, response = client.create(saying("tokens=3"))
    events = response.result()["events"]
    wait_for(lambda: site.reads(session.id) == 1, 15, what="the reader of the response to be gone")
    before = 1
    with session.following(startIndex=0) as reading:
        if site.key:  # a lease of three seconds: it comes back, and no heartbeat was missed meanwhile
            wait_for(lambda: site.reads(session.id) >= before + 3, 30, what="three leases to end")
        else:
            quiet = node.client(site.url).create(saying("tokens=320 token_seconds=0.05"))[1]
            quiet.result()  # sixteen seconds in which nothing happens in the first session
            assert site.reads(session.id) == before, "the client hung up"
        more = session.send(saying("tokens=3")).result()["events"]
        reading.until("session.waiting", 2)
    assert reading.events == [*events, *more]


# What the hooks stand on ----------------------------------------------------------------------------------------------


def test_a_store_shows_a_conversation_and_another_one_resumes_it(site: Site, node: Node, client: Client) -> None:
    store = node.store(host=site.url, **site.options)
    for number in range(2):
        store.call("send", args=[{"message": saying(f"tokens=6 #{number}")}])
        wait_for(lambda: store.get("snapshot")["status"] == "ready", 30, what="the store to be ready")
    seen = store.get("snapshot")
    assert seen["error"] is None
    shown = [(message["role"], len(message["parts"])) for message in seen["data"]["messages"]]
    assert [role for role, _ in shown] == ["user", "assistant", "user", "assistant"]

    other = node.store(
        host=site.url, initialSession={"sessionId": seen["session"]["sessionId"], "streamIndex": 0}, **site.options
    )
    other.call("resume")
    wait_for(lambda: other.get("snapshot")["status"] == "ready", 30, what="the other store to be ready")
    assert other.get("snapshot")["events"] == seen["events"]
    assert other.get("snapshot")["data"] == seen["data"]


def test_a_store_steers_clears_compacts_cancels_and_retires(site: Site, node: Node) -> None:
    store = node.store(host=site.url, **site.options)

    def ready(turns_ended: int) -> bool:
        seen = store.get("snapshot")
        assert seen["error"] is None, seen["error"]
        ended = sum(event["type"] in ("turn.completed", "turn.cancelled") for event in seen["events"])
        return ended >= turns_ended and seen["status"] == "ready"

    def events() -> list[Event]:
        found: list[Event] = store.get("snapshot")["events"]
        return found

    first = store.ask("send", args=[{"message": saying('steps=2 tool=linger args={"seconds":1}')}])
    wait_for(lambda: "actions.requested" in types(events()), 30, what="the tool")
    steering = saying("steps=1 steers")
    store.call("send", args=[{"message": steering, "turnPolicy": "steer"}])
    first.value()
    wait_for(lambda: ready(1), 30, what="the turn of both messages")
    assert turns(events()) == ["turn_0"]
    shown = store.get("snapshot")["data"]["messages"]
    assert [message["role"] for message in shown].count("user") == 2

    assert store.call("compact")["status"] == "accepted"
    wait_for(
        lambda: sum(event["type"] == "session.waiting" for event in events()) == 2, 30, what="the end of the compaction"
    )
    assert store.call("clear")["status"] == "accepted"
    wait_for(lambda: types(events())[-2:] == ["context.cleared", "session.waiting"], 30, what="the end of the clear")

    long = store.ask("send", args=[{"message": saying(LONG)}])
    wait_for(lambda: store.get("snapshot")["status"] == "streaming", 30, what="the answer to begin")
    assert store.call("cancel")["status"] == "accepted"
    long.value()
    wait_for(lambda: ready(2), 30, what="the cancelled turn to end")
    assert types(events())[-2:] == ["turn.cancelled", "session.waiting"]

    retired = store.get("snapshot")["session"]["sessionId"]
    assert store.call("retire") == {"previousSessionId": retired, "status": "reset"}
    store.call("send", args=[{"message": saying("hello")}])
    wait_for(lambda: ready(1), 30, what="the turn of another session")
    assert store.get("snapshot")["session"]["sessionId"] != retired


# Refusals -------------------------------------------------------------------------------------------------------------


def test_the_agent_describes_itself(client: Client) -> None:
    info = client.info()
    assert info["agent"]["name"] == "load"
    assert {tool["name"] for tool in info["tools"]["static"]} == {"work", "crash", "linger", "sign", "ask_question"}


def refusal(call: Callable[[], object]) -> tuple[int | None, str | None]:
    """Status and code of a call that must be refused in the way that the client understands."""
    with pytest.raises(ClientFailed) as raised:
        call()
    assert raised.value.kind == "ClientError", raised.value
    assert raised.value.message
    assert raised.value.body["ok"] is False
    return raised.value.status, raised.value.code


def test_refusals_have_the_status_and_the_code_that_the_client_shows(client: Client) -> None:
    nobody = client.attach(NOBODY)
    assert refusal(lambda: nobody.send(saying("hello"))) == (409, "session_not_active")
    assert refusal(lambda: nobody.stream(**ONCE).all()) == (404, None)
    assert refusal(lambda: client.attach("nothing of ours").send(saying("hello"))) == (409, "session_not_active")
    assert refusal(lambda: client.create(""))[0] == 400
    assert refusal(lambda: client.create([{"type": "image", "image": "aGk="}]))[0] == 400
    assert refusal(lambda: client.prewarm().stream(startIndex=1.5, **ONCE).all())[0] == 400
    assert refusal(lambda: client.prewarm().cancel(turnId=""))[0] == 400
    assert refusal(lambda: client.prewarm().reset(reason=""))[0] == 400
    answers = [{"requestId": "r1", "optionId": "approve"}]
    assert refusal(lambda: nobody.call("respond", args=[answers])) == (409, "session_not_active")


def test_an_answer_to_a_request_that_nobody_made_is_refused(client: Client) -> None:
    session, response = client.create(saying("hello"))
    response.result()
    answers = [{"requestId": "r1", "optionId": "approve"}]
    assert refusal(lambda: session.call("respond", args=[answers])) == (409, "request_unknown")


def test_a_wrong_key_is_refused_at_every_door_but_health(site: Site, node: Node) -> None:
    if not site.key:
        return  # anybody on this machine may come in
    wrong: list[dict[str, Any]] = [{"bearer": "orc_wrong"}, {"basic": {"username": "a", "password": "b"}}]
    for options in ({}, *({"auth": auth} for auth in wrong)):
        client = node.client(site.url, **options)
        assert client.health()["ok"]
        session = client.attach(NOBODY)
        assert refusal(partial(client.create, saying("hello"))) == (401, "unauthorized")
        assert refusal(partial(session.send, saying("hello"))) == (401, "unauthorized")
        assert refusal(session.stream().all) == (401, "unauthorized")
        assert refusal(session.cancel) == (401, "unauthorized")
        assert refusal(client.info) == (401, "unauthorized")
