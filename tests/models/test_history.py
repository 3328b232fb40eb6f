"""A history is repaired before every request, and what is settled is not looked at again."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)

from orchestrator.models import history as histories
from orchestrator.models.history import Repairs


def said(text: str) -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def asked(*ids: str) -> ModelResponse:
    return ModelResponse([ToolCallPart("find", {"x": 1}, name) for name in ids])


def returned(*ids: str) -> ModelRequest:
    return ModelRequest([ToolReturnPart("find", f"of {name}", name) for name in ids])


def told(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


def turn(number: int) -> list[ModelMessage]:
    """A turn that is as it should be. Its call id is that of every other turn."""
    return [said(f"question {number}"), asked("c"), returned("c"), told(f"answer {number}")]


BROKEN: dict[str, list[ModelMessage]] = {
    "a call without its result, then a new message": [said("a"), asked("c1", "c2"), returned("c1"), said("b")],
    "a call without any result": [said("a"), asked("c1"), said("b"), told("ok")],
    "a result that nobody asked for": [said("a"), told("b"), returned("c9"), said("c")],
    "two messages in a row": [said("a"), said("b"), told("ok")],
    "results and a message": [said("a"), asked("c1"), returned("c1"), said("b"), told("ok")],
    "the same id again": [said("a"), asked("c"), said("b"), asked("c"), returned("c"), told("ok")],
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_history_that_grows_is_sent_as_if_it_were_repaired_whole(name: str, where: str) -> None:
    broken = BROKEN[name]
    whole = {
        "first": [*broken, *turn(1), *turn(2)],
        "middle": [*turn(1), *broken, *turn(2)],
        "last": [*turn(1), *broken],
    }
    history = whole[where] + turn(3)
    repairs = Repairs()
    for end in range(1, len(history) + 1):
        if isinstance(history[end - 1], ModelRequest):
            assert repairs.sendable("s", history[:end]) == repair_messages(history[:end]), end


@pytest.mark.parametrize("name", BROKEN)
def test_another_worker_sends_the_same_as_the_one_that_saw_it_grow(name: str) -> None:
    history = [*turn(1), *BROKEN[name], *turn(2), said("last")]
    grown = Repairs()
    at_last: list[ModelMessage] = []
    for end in range(1, len(history) + 1):
        at_last = grown.sendable("s", history[:end])
    assert Repairs().sendable("s", history) == at_last


def test_instructions_are_sent_and_never_stored() -> None:
    history = [*turn(0), said("last")]
    sent = Repairs().sendable("s", history, "Be kind.")
    assert [getattr(m, "instructions", None) for m in sent] == [None, None, None, None, "Be kind."]
    assert all(getattr(m, "instructions", None) is None for m in history)


def test_what_is_settled_is_sent_as_it_is_and_not_repaired_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(messages: Any) -> list[ModelMessage]:
        seen.append(len(messages))
        return repair_messages(messages)

    monkeypatch.setattr(histories, "repair_messages", counting)
    history = [message for number in range(50) for message in turn(number)]
    repairs = Repairs()
    repairs.sendable("s", [*history, said("first")])
    seen.clear()
    longer = [*history, said("first"), asked("c"), returned("c")]
    sent = repairs.sendable("s", longer)
    assert max(seen) <= 4
    assert all(a is b for a, b in zip(sent, history, strict=False))


def test_a_history_that_was_replaced_is_not_taken_for_the_old_one() -> None:
    repairs = Repairs()
    repairs.sendable("s", [*turn(0), *BROKEN["a call without any result"], *turn(1), said("x")])
    other: list[ModelMessage] = [*turn(0), said("a"), told("b"), *turn(1), *turn(2), said("x")]
    assert repairs.sendable("s", other) == other


def test_a_new_generation_is_looked_at_anew_even_where_it_shares_messages_with_the_old_one() -> None:
    broken = BROKEN["a call without any result"]
    old: list[ModelMessage] = [*broken, *turn(1), *broken, *turn(2)]
    last = said("x")
    repairs = Repairs()
    for place, message in enumerate(old):
        repairs.sendable("s", [*old, last])
        new = list(old)
        # As capping does it: the same message with less in it, in the same place; the others are the same objects.
        new[place] = capped(message)
        assert new[place] != message
        assert repairs.sendable("s", [*new, last]) == repair_messages([*new, last]), place


def capped(message: Any) -> ModelMessage:
    short = [replace(part, **{"args" if isinstance(part, ToolCallPart) else "content": "{}"}) for part in message.parts]
    made: ModelMessage = replace(message, parts=short)
    return made


def test_a_history_that_was_summed_up_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(messages: Any) -> list[ModelMessage]:
        seen.append(len(messages))
        return repair_messages(messages)

    monkeypatch.setattr(histories, "repair_messages", counting)
    repairs = Repairs()
    old = [*turn(0), *BROKEN["a call without its result, then a new message"], *turn(1), *turn(2)]
    last = said("x")
    repairs.sendable("s", [*old, last])
    # As many messages as before and the last ones the same: only the first one tells.
    new: list[ModelMessage] = [said("summary"), *old[1:]]
    seen.clear()
    assert repairs.sendable("s", [*new, last]) == repair_messages([*new, last])
    assert max(seen) >= len(old) - 2


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("after", ["an answer", "results", "nothing"])
def test_messages_in_a_row_are_sent_as_one_request_with_the_results_first(count: int, after: str) -> None:
    before: dict[str, list[ModelMessage]] = {
        "an answer": [said("q"), told("a")],
        "results": [said("q"), asked("c1", "c2"), returned("c1", "c2")],
        "nothing": [],
    }
    rows = [said(f"steer {number}") for number in range(count)]
    repairs = Repairs()
    history = list(before[after])
    sent: list[ModelMessage] = []
    for row in rows:
        history.append(row)
        sent = repairs.sendable("s", history)
        kinds = [message.kind for message in sent]
        assert all(a != b for a, b in pairwise(kinds)), kinds
    results = ["tool-return", "tool-return"] if after == "results" else []
    assert [part.part_kind for part in sent[-1].parts] == [*results, *["user-prompt"] * count]
    history += [told("ok"), said("next")]
    assert repairs.sendable("s", history) == repair_messages(history)


def test_unsigned_thinking_of_a_cut_answer_is_not_sent() -> None:
    cut = ModelResponse([ThinkingPart("hm"), TextPart("half of")], state="interrupted")
    only = ModelResponse([ThinkingPart("hm")], state="incomplete")
    whole = ModelResponse([ThinkingPart("hm"), TextPart("all")])
    signed = ModelResponse([ThinkingPart("hm", signature="s"), TextPart("half")], state="interrupted")
    history: list[ModelMessage] = [said("a"), cut, said("b"), only, said("c"), whole, said("d"), signed, said("e")]
    sent = Repairs().sendable("s", history)
    kinds = [[part.part_kind for part in message.parts] for message in sent if isinstance(message, ModelResponse)]
    assert kinds == [["text"], ["thinking", "text"], ["thinking", "text"]]


def test_forgetting_a_session_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "SESSIONS_KEPT", 2)
    repairs = Repairs()
    history = [*turn(0), *BROKEN["a call without any result"], *turn(1), said("x")]
    for name in ("a", "b", "c", "a"):
        assert repairs.sendable(name, history) == repair_messages(history)


def test_a_long_history_costs_what_copying_it_costs() -> None:
    history = [message for number in range(1250) for message in turn(number)]
    repairs = Repairs()
    now = [*history, said("last")]
    repairs.sendable("s", now)

    def microseconds(work: Any) -> float:
        best = 1e9
        for _ in range(30):
            begun = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - begun)
        return best * 1e6

    copying = microseconds(lambda: [*now[:5000], *now[5000:]])
    ours = microseconds(lambda: repairs.sendable("s", now, "Be kind."))
    assert ours < copying + 150, f"{ours:.0f} µs against {copying:.0f} µs for a copy"
