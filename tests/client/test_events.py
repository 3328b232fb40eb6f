"""Events as values: each type that the server writes has a class, and what nobody knows yet comes through."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.client import events
from orchestrator.client.events import CLASSES, Event, parse
from orchestrator.client.shapes import Misfit, read
from orchestrator.client.values import Action, Failure, RequestRecord, SessionRecord, ToolResult, Usage

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text()
PLACE = {"turnId": "turn_2", "sequence": 2, "stepIndex": 1}
META = {"id": "evt_1", "at": "2026-03-01T09:15:02.114Z", "attempt": 2, "deliveryIds": ["dlv_1"]}


def line(kind: str, data: object, **meta: object) -> bytes:
    return json.dumps({"type": kind, "data": data, "meta": {**META, **meta}}).encode()


def test_every_event_that_the_page_lists_has_a_class_and_no_other() -> None:
    rows = re.search(r"\| event \| when \|\n(.*?)\n\n", PAGE, re.DOTALL)
    assert rows is not None
    listed = {name for row in rows[1].splitlines() for name in re.findall(r"`([a-z.]+)`", row.split("|")[1])}
    assert set(CLASSES) == listed


def test_every_class_says_what_it_means() -> None:
    assert all(inspect.getdoc(kind) for kind in CLASSES.values())
    assert len(set(CLASSES.values())) == len(CLASSES)


def test_an_event_has_its_place_its_stamp_and_its_words() -> None:
    event = parse(line("message.appended", {**PLACE, "messageDelta": "hi"}), 7)
    match event:
        case events.MessageAppended(turn_id="turn_2", step_index=1, message_delta="hi", index=7):
            pass
        case _:
            pytest.fail(repr(event))
    assert (event.id, event.attempt, event.deliveries) == ("evt_1", 2, ("dlv_1",))
    with pytest.raises(FrozenInstanceError):
        event.index = 8  # type: ignore[misc]  # what is tested


def test_what_is_inside_of_an_event_has_a_class_too() -> None:
    result = {"kind": "tool-result", "callId": "c1", "toolName": "find", "output": {"a": [1]}, "isError": True}
    error = {"code": "QUOTA", "message": "too much", "name": "QuotaError"}
    told = parse(line("action.result", {**PLACE, "result": result, "status": "failed", "error": error}), 0)
    assert isinstance(told, events.ActionResult)
    assert told.result == ToolResult("tool-result", "c1", "find", {"a": [1]}, is_error=True)
    assert told.error == Failure("QUOTA", "too much")
    action = {"kind": "tool-call", "callId": "c1", "toolName": "find", "input": {}}
    request = {"requestId": "r1", "kind": "tool-approval", "prompt": "?", "action": action, "options": [{"id": "x"}]}
    asked = parse(line("input.requested", {**PLACE, "requests": [request]}), 0)
    assert isinstance(asked, events.InputRequested)
    assert asked.requests[0].action == Action("tool-call", "c1", "find", {})
    assert asked.requests[0].options[0].id == "x"


def test_a_span_that_does_not_count_is_named_by_its_ends() -> None:
    told = parse(line("step.superseded", {**PLACE, "from": 4, "to": 9}), 0)
    assert isinstance(told, events.StepSuperseded)
    assert (told.first, told.last) == (4, 9)


def test_a_cost_may_be_a_whole_number() -> None:
    told = parse(line("session.waiting", {"wait": "…", "usage": {"inputTokens": 1, "costUsd": 2}}), 0)
    assert isinstance(told, events.SessionWaiting)
    assert told.usage == Usage(1, cost_usd=2.0)


def test_a_type_of_tomorrow_is_an_event_with_its_data() -> None:
    told = parse(line("hologram.appended", {**PLACE, "photons": 3}), 4)
    assert type(told) is Event
    assert (told.type, told.index, told.data["photons"]) == ("hologram.appended", 4, 3)


def test_fields_of_tomorrow_are_left_in_the_data() -> None:
    told = parse(line("turn.completed", {**PLACE, "mood": "good"}), 0)
    assert isinstance(told, events.TurnCompleted)
    assert told.data["mood"] == "good"


@pytest.mark.parametrize("data", [{}, [], None, {**PLACE, "message": ["a", "list"]}, {**PLACE, "turnId": None}])
def test_a_known_type_of_another_shape_comes_through_as_an_event(data: object) -> None:
    told = parse(line("message.received", data), 0)
    assert type(told) is Event
    assert told.type == "message.received"


def test_events_without_stamps_are_read() -> None:
    told = parse(b'{"type":"session.completed"}', 3)
    assert isinstance(told, events.SessionCompleted)
    assert (told.id, told.deliveries, told.attempt) == ("", (), 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
known_keys = sorted(
    {"turnId", "sequence", "stepIndex", "message", "usage", "requests", "result", "code", "error", "on"}
)


@given(
    st.sampled_from(sorted(CLASSES)),
    st.dictionaries(st.sampled_from(known_keys), json_values),
    st.dictionaries(st.sampled_from(sorted(META)), json_values),
)
def test_whatever_is_in_an_event_it_is_told_and_its_data_is_whole(kind: str, data: Any, meta: Any) -> None:
    told = parse(json.dumps({"type": kind, "data": data, "meta": meta}), 1)
    assert (told.type, told.index, told.data) == (kind, 1, data)


@pytest.mark.parametrize("given", [b"", b"null", b"7", b"[]", b"{}", b'{"type":null}', b"{", b"\xff"])
def test_what_is_no_event_is_not_taken_for_one(given: bytes) -> None:
    with pytest.raises(Misfit):
        parse(given, 0)


def test_records_are_read_by_their_names_in_json() -> None:
    seen = read(SessionRecord, {"sessionId": "s", "agent": "a", "status": "idle", "events": 3, "turnId": None, "x": 1})
    assert seen == SessionRecord("s", "a", "idle", 3)
    wrong: list[object] = [{}, [], {"sessionId": 1, "agent": "a", "status": "idle", "events": 3}]
    for broken in wrong:
        with pytest.raises(Misfit):
            read(SessionRecord, broken)
    with pytest.raises(Misfit):
        read(RequestRecord, {"requestId": "r", "kind": "k", "state": "open", "askedMs": True})
