"""What a whole stream and a whole history must look like, read from their beginning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.core.fact import AnswersTaken, DeliveryDropped, Fact, MessagesJoined, TurnStarted
from orchestrator.journal.stubs import restore
from tests.worlds import counted, grammar

TERMINAL = ("turn.completed", "turn.failed", "turn.cancelled")
BETWEEN = ("session.started",)


def check_stream(lines: Sequence[bytes], facts: Sequence[Fact], outcomes: Mapping[str, str]) -> None:
    """Fails if the stream is not in order, or does not say what the facts say."""
    events = [json.loads(line) for line in lines]
    names = [event["meta"]["id"] for event in events]
    assert len(set(names)) == len(names), "two events have one id"
    grammar(events)
    _check_delivery_ids(counted(events), facts)
    ended = [(e["data"]["turnId"], e["type"].removeprefix("turn.")) for e in events if e["type"] in TERMINAL]
    assert ended == list(outcomes.items()), f"{ended} is told of {outcomes}"
    told = [event["data"]["deliveryId"] for event in events if event["type"] == "message.discarded"]
    dropped = [fact.delivery for fact in facts if isinstance(fact, DeliveryDropped) and fact.reason == "session_ended"]
    assert told == dropped, f"{told} were named of {dropped}"


def _check_delivery_ids(events: Iterable[Any], facts: Sequence[Fact]) -> None:
    """Every event of a turn names the messages that had joined it by then, the closing boundary too; others name none."""
    first = {fact.turn: list[str](fact.deliveries) for fact in facts if isinstance(fact, TurnStarted)}
    later: dict[str, list[Sequence[str]]] = {}
    silent: set[str] = set()
    for fact in facts:
        if isinstance(fact, MessagesJoined):
            later.setdefault(fact.turn, []).append(fact.deliveries)
        elif isinstance(fact, AnswersTaken) and fact.words:
            # The words of an answer; those that only chose an option are not shown.
            later.setdefault(fact.turn, []).append((fact.delivery,))
            silent.add(fact.delivery)
    turn, told, received, is_open = "", list[str](), 0, False
    for event in events:
        kind, named = event["type"], event["meta"].get("deliveryIds")
        if kind == "turn.started":
            turn, is_open = event["data"]["turnId"], True
            told, received = first[turn], len(first[turn])
        if not is_open:
            assert named is None or kind in BETWEEN, f"{kind} between two turns: {event['meta']}"
            continue
        then = next(iter(later.get(turn, ())), ())
        if kind != "message.received" and then and silent.issuperset(then) and named == [*told, *then]:
            told = [*told, *later[turn].pop(0)]
        if kind == "message.received":
            received -= 1
            if received < 0:
                more = later[turn].pop(0)
                told, received = [*told, *more], len(more) - 1
        assert named == told, f"{kind} of {turn}: {event['meta']}, {told} had joined"
        is_open = kind != "session.waiting"


def unpaired(rows: Sequence[bytes]) -> str:
    """What is wrong with a history in which nothing is open: calls without results, results without calls, a row that is there twice."""
    read = [json.loads(row) for row in rows]
    if len({row["id"] for row in read}) != len(read):
        return "two rows have one id"
    before: list[str] = []
    for row in read:
        parts = row["m"]["parts"]
        results = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-return"]
        if results != before:
            return f"results {results} for calls {before}"
        before = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-call"]
    return f"calls without results: {before}" if before else ""


def is_same_event(stored: bytes, told: bytes) -> bool:
    """Whether a stored line is the one that was told, or a stub of it."""
    if stored[:1] == b"{":
        return stored == told
    one, other = json.loads(restore(stored)), json.loads(told)
    places = ("turnId", "sequence", "stepIndex")
    same = [one["data"][place] == other["data"][place] for place in places]
    return bool(one["type"] == other["type"] and one["meta"]["id"] == other["meta"]["id"] and all(same))
