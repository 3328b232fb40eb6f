"""What a conversation looks like in a terminal, and what typed words mean in it: values in, values out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.cli.talk import Line, Order, Say, Talk, Unknown
from orchestrator.client import Answer
from orchestrator.client.events import parse

TURN = {"turnId": "turn_0", "sequence": 0, "stepIndex": 0}
APPROVAL = {
    "requestId": "req_1",
    "kind": "tool-approval",
    "prompt": "Refund 5 EUR?",
    "action": {"kind": "tool-call", "callId": "c", "toolName": "refund", "input": {"cents": 500}},
    "options": [{"id": "approve", "label": "Approve"}, {"id": "cancel", "label": "Cancel"}],
    "allowFreeform": False,
}
QUESTION = {
    "requestId": "req_2",
    "kind": "question",
    "prompt": "Which\none?",
    "options": [{"id": "1", "label": "red"}, {"id": "2", "label": "3"}],
    "allowFreeform": True,
}


def shown(talk: Talk, *told: tuple[str, dict[str, Any]], deliveries: tuple[str, ...] = ("dlv_1",)) -> list[str]:
    """The lines of some events."""
    lines: list[Line] = []
    for index, (kind, data) in enumerate(told):
        line = {"type": kind, "data": {**TURN, **data}, "meta": {"id": "evt_1", "deliveryIds": list(deliveries)}}
        lines += talk.take(parse(json.dumps(line), index))
    return [line.text for line in lines]


def test_words_are_shown_as_they_come_and_once() -> None:
    talk = Talk()
    assert shown(talk, ("message.appended", {"messageDelta": "One\ntwo"})) == ["One"]
    assert talk.partial == "two"
    assert shown(talk, ("message.appended", {"messageDelta": " three\n"})) == ["two three"]
    whole = {"message": "One\ntwo three\nfour", "finishReason": "stop"}
    last = ("message.appended", {"messageDelta": "four"})
    assert shown(talk, last, ("message.completed", whole)) == ["four"]
    assert talk.partial == ""


def test_an_answer_of_which_not_all_pieces_came_is_shown_whole() -> None:
    talk = Talk()
    whole = {"message": "Hello there", "finishReason": "stop"}
    assert shown(talk, ("message.appended", {"messageDelta": ""}), ("message.completed", whole)) == ["Hello there"]


def test_tools_are_shown_with_what_they_were_asked_and_gave() -> None:
    action = {"kind": "tool-call", "callId": "c", "toolName": "find", "input": {"x": 1}}
    result = {"kind": "tool-result", "callId": "c", "toolName": "find", "output": {"ok": True}}
    error = {"code": "E", "message": "broke"}
    assert shown(
        Talk(),
        ("actions.requested", {"actions": [action]}),
        ("action.result", {"result": result, "status": "completed"}),
        ("action.result", {"result": {**result, "isError": True}, "status": "failed", "error": error}),
    ) == ["  find(x=1)", '  → find: {"ok": true}', "  → find: broke"]


def test_nothing_that_is_said_can_move_the_terminal() -> None:
    lines = shown(Talk(), ("message.completed", {"message": "a\x1b[2Jb\u202ec", "finishReason": "stop"}))
    assert lines == ["a\\u001b[2Jb\\u202ec"]


def test_what_was_typed_here_is_not_shown_again_and_what_others_say_is() -> None:
    talk = Talk()
    talk.said(None)
    begun = [("session.started", {}), ("turn.started", {}), ("message.received", {"message": "mine"})]
    assert shown(talk, *begun) == []
    assert shown(talk, ("turn.started", {}), deliveries=("dlv_2",)) == []
    assert shown(talk, ("message.received", {"message": "of Ben"}), deliveries=("dlv_1", "dlv_2")) == ["> of Ben"]


def test_what_is_asked_says_how_to_answer() -> None:
    talk = Talk()
    assert shown(talk, ("input.requested", {"requests": [APPROVAL, QUESTION]})) == [
        "? Refund 5 EUR?",
        "  refund(cents=500)",
        "  1. Approve",
        "  2. Cancel",
        "  Type the number; other words take it back and are said instead. (1 more behind it)",
    ]
    assert talk.state == "waits for your answer"
    resolved = {"resolutions": [{"requestId": "req_1", "kind": "tool-approval", "outcome": "approved"}]}
    assert shown(talk, ("input.resolved", resolved)) == ["  (approved)"]
    assert [line.text for line in talk.asked()][-1] == "  Type the number, or your own words."


@pytest.mark.parametrize(
    ("request_", "typed", "meant"),
    [
        (APPROVAL, "1", Answer("req_1", "approve")),
        (APPROVAL, "Approve", Answer("req_1", "approve")),
        (APPROVAL, " cancel ", Answer("req_1", "cancel")),
        (APPROVAL, "y", Answer("req_1", "approve")),
        (APPROVAL, "No", Answer("req_1", "cancel")),
        (APPROVAL, "rather not, but show me", Say("rather not, but show me")),
        (QUESTION, "RED", Answer("req_2", "1")),
        (QUESTION, "2", Answer("req_2", "2")),
        (QUESTION, "3", Answer("req_2", "2")),
        (QUESTION, "yes", Answer("req_2", "", "yes")),
        (None, "1", Say("1")),
        (None, "  hello", Say("  hello")),
        (None, "/cancel", Order("/cancel")),
        (APPROVAL, "/cancel", Order("/cancel")),
        (None, "/nonsense", Unknown("/nonsense")),
        (None, "/usr/bin is what?", Say("/usr/bin is what?")),
        (None, "   ", None),
    ],
)
def test_what_is_typed_has_one_meaning(request_: dict[str, Any] | None, typed: str, meant: object) -> None:
    talk = Talk()
    if request_ is not None:
        shown(talk, ("input.requested", {"requests": [request_]}))
    assert talk.meaning(typed) == meant


def test_the_end_of_a_turn_is_known_and_a_failure_is_told() -> None:
    talk = Talk()
    assert shown(talk, ("turn.started", {})) == []
    assert talk.state.startswith("working")
    assert shown(talk, ("turn.failed", {"code": "MODEL_CALL_FAILED", "message": "No."})) == [
        "It failed: No. [MODEL_CALL_FAILED]"
    ]
    assert talk.state == "ready"
    assert shown(talk, ("session.completed", {})) == ["This session has ended. What you say next begins another."]
    assert talk.ended
