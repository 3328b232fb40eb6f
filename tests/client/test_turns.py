"""What becomes of a message, read from streams that were made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.client.errors import NoAnswer
from orchestrator.client.turns import Outcome, Watch
from orchestrator.client.values import Answer, Failure, Usage
from tests.client.logs import Log


def watched(log: Log, delivery: str | None, start: int = 0, tail: int = -1) -> tuple[Watch, list[int]]:
    """A watch that has seen the log until it had something to say, and which events were its turn's."""
    watch, ours = Watch("ses_1", delivery, start), []
    for event in log.read()[start:]:
        if watch.take(event, tail):
            ours.append(event.index)
        if watch.stops:
            break
    return watch, ours


def outcome(log: Log, delivery: str | None, tail: int = -1) -> Outcome:
    watch, _ = watched(log, delivery, tail=tail)
    assert watch.stops
    return watch.tell()


def test_the_turn_of_a_message_is_told_from_the_turns_around_it() -> None:
    log = Log().begin("a").says("first").ends().begin("b").says("second").ends().begin("c").says("third").ends()
    watch, ours = watched(log, "b")
    told = watch.outcome()
    assert (told.state, told.text, told.turn_id, told.cursor) == ("completed", "second", "turn_1", ours[-1] + 1)
    assert [log.events[index]["type"] for index in ours][:1] == ["turn.started"]
    assert {log.events[index]["data"].get("turnId", "turn_1") for index in ours} == {"turn_1"}
    assert log.events[ours[-1]]["type"] == "session.waiting"


def test_the_message_that_began_its_session_needs_no_name() -> None:
    log = Log().begin("a", "b").says("both").ends().begin("c").says("later").ends()
    told = outcome(log, None)
    assert (told.delivery_id, told.text, told.turn_id) == ("a", "both", "turn_0")


def test_a_message_that_steers_ends_with_the_turn_it_has_joined() -> None:
    log = Log().begin("a").says("between", "tool-calls").join("b").says("to both").ends()
    for delivery in ("a", "b"):
        assert outcome(log, delivery).text == "to both"
    _, ours = watched(log, "b")
    assert log.events[ours[0]]["type"] == "message.received"
    assert outcome(log, "b").usage == Usage(10, 5)
    assert outcome(log, "a").usage == Usage(20, 10)


def test_words_between_two_tools_are_no_answer() -> None:
    log = Log().begin("a").says("let me look", "tool-calls").says("here it is").ends()
    assert outcome(log, "a").text == "here it is"


def test_what_says_nothing_of_its_delivery_belongs_to_the_open_turn() -> None:
    log = Log().begin("a").says("x")
    log.add("message.appended", {**log.place, "messageDelta": ""}, known=False)
    log.ends()
    _, ours = watched(log, "a")
    assert ours == [*range(len(log.events))]


def test_a_turn_that_waits_for_people_says_what_it_asks() -> None:
    told = outcome(Log().begin("a").says("May I?", "tool-calls").asks("r1", "r2"), "a")
    assert (told.state, [request.request_id for request in told.requests]) == ("waiting", ["r1", "r2"])
    assert told.requests[0].approve("go on") == Answer("r1", "approve", "go on")
    assert told.requests[1].deny() == Answer("r2", "cancel")
    assert told.session_usage == Usage(100, 50, cost_usd=0.5)
    with pytest.raises(NoAnswer, match=r"r1, r2.*turn\.answer"):
        told.answer()


def test_a_wait_that_was_over_before_the_reader_came_is_passed_over() -> None:
    log = Log().begin("a").asks("r1").resolves("r1").says("done").ends()
    assert outcome(log, "a", tail=len(log.events) - 1).text == "done"


def test_a_wait_that_still_lasts_is_told_to_who_comes_later() -> None:
    log = Log().begin("a").asks("r1", "r2")
    log.add("approval.settled", {**log.place, "requestId": "r1", "outcome": "approved"}).parks()
    assert outcome(log, "a", tail=len(log.events) - 1).state == "waiting"


def test_a_wait_is_news_once_and_then_the_next_thing_is_waited_for() -> None:
    log = Log().begin("a").asks("r1")
    watch, _ = watched(log, "a")
    before, told, after = watch.has_news, watch.tell(), watch.has_news
    assert (before, told.state, after) == (True, "waiting", False)
    watch.go_on()
    assert not watch.stops
    log.resolves("r1", outcome="denied").says("Then not.").ends()
    for event in log.read()[watch.cursor :]:
        watch.take(event, -1)
    after, told = watch.has_news, watch.tell()
    assert (after, told.text, told.requests) == (True, "Then not.", ())


def test_waiting_for_something_else_than_people_is_passed_over() -> None:
    log = Log().begin("a")
    log.add("turn.waiting", {**log.place, "on": "tasks"}).says("done").ends()
    assert outcome(log, "a").state == "completed"


def test_a_failed_turn_says_why() -> None:
    log = Log().begin("a").ends("turn.failed", code="MODEL_CALL_FAILED", message="no", details={"status": 500})
    told = outcome(log, "a")
    assert (told.state, told.error) == ("failed", Failure("MODEL_CALL_FAILED", "no", {"status": 500}))
    with pytest.raises(NoAnswer, match="MODEL_CALL_FAILED: no") as raised:
        told.answer()
    assert raised.value.outcome is told


def test_a_session_that_fails_fails_its_turn() -> None:
    log = Log().begin("a").add("session.failed", {"code": "BROKEN", "message": "all of it", "sessionId": "ses_1"})
    assert outcome(log, "a").error == Failure("BROKEN", "all of it")


def test_a_cancelled_turn_has_no_answer_though_something_was_said() -> None:
    log = Log().begin("a").says("between two tools", "tool-calls").asks("r1").ends("turn.cancelled")
    told = outcome(log, "a", tail=len(log.events) - 1)
    assert (told.state, told.text, told.requests) == ("cancelled", "", ())
    with pytest.raises(NoAnswer, match="cancelled"):
        told.answer()


@pytest.mark.parametrize("named", [True, False])
def test_a_message_whose_session_ended_before_it_was_used_is_discarded(named: bool) -> None:
    log = Log().begin("a").says("x").ends()
    if named:
        log.add("message.discarded", {"deliveryId": "b", "reason": "session_ended"})
    log.add("session.completed", {})
    watch, ours = watched(log, "b")
    assert watch.tell().state == "discarded"
    assert watch.turn_id is None
    assert ours == [watch.cursor - 1]


def test_what_is_discarded_of_others_is_no_concern_of_ours() -> None:
    log = Log().add("message.discarded", {"deliveryId": "b"}).begin("a").says("x").ends()
    assert outcome(log, "a").state == "completed"


def test_events_of_others_within_a_turn_are_passed_over() -> None:
    log = Log().begin("a")
    log.deliveries = ["z"]
    log.add("message.completed", {**log.place, "message": "of z", "finishReason": "stop"})
    log.deliveries = ["a"]
    log.says("of a").ends()
    watch, ours = watched(log, "a")
    assert watch.outcome().text == "of a"
    assert [index for index in range(len(log.events)) if index not in ours] == [3]


@pytest.mark.parametrize("how", ["resolved", "started"])
def test_a_turn_that_goes_on_waits_for_nobody(how: str) -> None:
    log = Log().begin("a").asks("r1")
    if how == "resolved":
        log.resolves("r1")
    else:
        log.add("step.started", {**log.place, "modelId": "m"})
    watch, _ = watched(log, "a", tail=len(log.events) - 1)
    assert not watch.stops


def test_of_several_requests_those_that_have_ended_are_asked_no_more() -> None:
    log = Log().begin("a").asks("r1", "r2").resolves("r1").parks()
    assert [request.request_id for request in outcome(log, "a", tail=len(log.events) - 1).requests] == ["r2"]


def test_a_structured_result_is_told() -> None:
    log = Log().begin("a").says("{}")
    log.add("result.completed", {**log.place, "result": {"colour": "red"}}).ends()
    assert outcome(log, "a").result == {"colour": "red"}


def test_a_turn_whose_end_was_lost_is_not_waited_for() -> None:
    log = Log().begin("a").says("x").add("stream.lost", known=False).add("session.waiting", {"wait": "…"})
    told = outcome(log, "a")
    assert told.state == "failed"
    assert told.error is not None
    assert told.error.code == "stream_lost"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.integers(0, 7))
def test_whose_turn_an_event_is_does_not_depend_on_where_one_begins(order: list[str], which: int) -> None:
    log, names = Log(), [f"{who}{place}" for place, who in enumerate(order)]
    begins = []
    for name in names:
        begins.append(len(log.events))
        log.begin(name).says(f"to {name}").ends()
    name = names[which % len(names)]
    texts = {watched(log, name, start)[0].outcome().text for start in begins[: names.index(name) + 1]}
    assert texts == {f"to {name}"}
