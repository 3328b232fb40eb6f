"""History rows: written whole, read for ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.core.event import Outcome
from orchestrator.models import Layer
from orchestrator.ports import AskedTool, Message, Result

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_row_that_was_ever_written_can_be_read(path: Path, layer: Layer) -> None:
    stored = json.loads(path.read_text())
    message = layer.read(json.dumps(stored["row"]).encode())
    assert message.kind == stored["kind"]
    assert [part.part_kind for part in message.parts] == stored["parts"]
    assert [[c.provider_id, c.tool, c.input] for c in layer.calls(message)] == stored["calls"]
    assert [part.content for part in message.parts if hasattr(part, "content")] == stored["contents"]


def test_there_are_golden_rows_of_every_kind() -> None:
    assert {path.stem.partition("-")[0] for path in GOLDEN} >= {
        "message",
        "pinned",
        "results",
        "answer",
        "scripted",
        "summary",
    }


def test_what_people_said_is_one_row(layer: Layer) -> None:
    row = layer.message_row([Message(("Speak French.",), pinned=True), Message(("one", "two")), Message(("three",))])
    message = layer.read(row)
    assert [part.content for part in message.parts] == ["Speak French.", ["one", "two"], "three"]
    assert message.metadata == {"pinned": [0]}


def test_results_keep_their_order_and_their_json(layer: Layer) -> None:
    values = [{"a": [1, None]}, [1, 2], "text", 3, None, True, {"kind": "image-url", "url": "http://127.0.0.1/x"}]
    results = [Result(f"c{n}", "find", Outcome("completed", value)) for n, value in enumerate(values)]
    message = layer.read(layer.results_row(results))
    assert [part.content for part in message.parts] == values
    assert [part.tool_call_id for part in message.parts] == [f"c{n}" for n in range(len(values))]


@pytest.mark.parametrize(
    ("outcome", "heard"),
    [
        (Outcome("failed", None, {"code": "X", "message": "no such order"}), "no such order"),
        (Outcome("failed", {"code": "X", "message": "from the output"}, {"code": "X"}), "from the output"),
        (Outcome("failed", "just text", {"code": "X", "message": ""}), "just text"),
        (Outcome("failed", None, {"code": "X"}), "The tool failed."),
        (Outcome("cancelled", None), "The call was cancelled."),
    ],
)
def test_a_call_that_did_not_complete_is_an_error_in_the_history(layer: Layer, outcome: Outcome, heard: str) -> None:
    (part,) = layer.read(layer.results_row([Result("c", "find", outcome)])).parts
    assert (part.content, part.outcome) == (heard, "failed")


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"{}",
        b"[]",
        b'{"kind":"novelty","parts":[]}',
        b'{"kind":"response","parts":[{"part_kind":"hologram","content":"x"}]}',
        b'{"kind":"request","parts":[{"part_kind":"user-prompt"',
    ],
)
def test_a_row_that_this_version_cannot_read_is_a_value_error(layer: Layer, row: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        layer.read(row)


def test_only_answers_have_calls(layer: Layer) -> None:
    assert layer.calls(layer.read(layer.message_row([Message(("hi",))]))) == ()


def test_calls_are_read_back_as_they_were_made(layer: Layer) -> None:
    row = (
        b'{"kind":"response","parts":[{"part_kind":"tool-call","tool_name":"a","args":"{\\"x\\":1}","tool_call_id":"1"},'
        b'{"part_kind":"text","content":"and"},'
        b'{"part_kind":"tool-call","tool_name":"b","args":{"y":2},"tool_call_id":"2"},'
        b'{"part_kind":"tool-call","tool_name":"c","args":"broken{","tool_call_id":"3"}]}'
    )
    assert layer.calls(layer.read(row)) == (
        AskedTool("1", "a", {"x": 1}),
        AskedTool("2", "b", {"y": 2}),
        AskedTool("3", "c", "broken{"),
    )
