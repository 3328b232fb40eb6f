"""docs/states.md is the table of what a delivery means; here every cell of it is asked of the code."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.core import holds
from orchestrator.core.advance import Scene, advance, follow, has_work, judge, next_effect
from orchestrator.core.delivery import DeliveryKind, Envelope, Head
from orchestrator.core.effect import CallModel, Compact, Hold, RunTools, Wait
from orchestrator.core.fact import (
    AnswersTaken,
    CallsSettled,
    CallStarted,
    CancelAccepted,
    CompactionBegun,
    CompactionDue,
    CompactionLeft,
    ContextCleared,
    ControlKept,
    DeliveryDropped,
    DeliveryWaits,
    Fact,
    InputRequested,
    InputResolved,
    MessagesJoined,
    MessageSteers,
    ModelAnswered,
    ModelTryFailed,
    RequestsWithdrawn,
    SessionEnded,
    SessionEnding,
    StepCut,
    StepSettled,
    StepStarted,
    ToolReturned,
    TurnSettled,
    TurnStarted,
)
from orchestrator.core.names import CallId, DeliveryId, Millis, TurnId, call_id, request_id
from orchestrator.core.snapshot import EMPTY, Call, Gate, Phase, Principal, Request, RequestKind, Snapshot, Usage

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
STATES, HOLDS, WORDS = "## The table", "## What a hold is waiting for", "## How to read a cell"
TOPICS = {"requests", "runs", "subagents"}
NOW = Millis(1_000_000)
SCENE = Scene(at=NOW, agent="support", model="scripted", seq=40, events=90, all_in=True)
ASKED, OTHER = Principal("api-key", "service", "shop"), Principal("api-key", "service", "night")


# The page -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What the page says: `now` is in force ("" for nothing), `later` is the topic of what is not ("" for nothing)."""

    state: str
    column: str
    now: str
    later: str

    def __str__(self) -> str:
        return f"{self.state} | {self.column}"


def rows(heading: str) -> list[list[str]]:
    """The first table below a heading: its head, then its rows."""
    section = PAGE.read_text().split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [found[0], *found[2:]]


def read(state: str, column: str, text: str) -> Cell:
    """One cell by its grammar: `**word** text (later: topic) text`, either half may be absent."""
    match = re.fullmatch(r"(?:\*\*([a-z]+)\*\*(?: [^*(]+?)?)?\s*(?:\(later: ([a-z]+)\) ?[^*]*)?", text)
    assert match, f"{state} | {column}: {text!r} is no cell"
    assert match[1] or match[2], f"{state} | {column} says neither what is nor what will be"
    return Cell(state, column, match[1] or "", match[2] or "")


def cells() -> Iterator[Cell]:
    head, *body = rows(STATES)
    for row in body:
        assert len(row) == len(head), row
        yield from (read(row[0], column, text) for column, text in zip(head[1:], row[1:], strict=True))


CELLS = list(cells())


# The states, by hand ------------------------------------------------------------------------------------------------


def turned(*facts: Fact) -> Snapshot:
    """A session in its third turn, caused by ASKED, after these facts."""
    begun = TurnStarted(TurnId("turn_2"), 2, (DeliveryId("dlv_5"),), 5, 0, ASKED, "support", 30, NOW)
    made = advance(replace(EMPTY, started=True, next_turn=2, judged=4), begun)
    for fact in (StepStarted(TurnId("turn_2"), 0, "scripted", NOW), *facts):
        made = advance(made, fact)
    return made


def answered(count: int) -> ModelAnswered:
    made = tuple(Call(call_id(2, 0, place), f"p{place}", "find_order", "d") for place in range(count))
    return ModelAnswered(TurnId("turn_2"), 0, "tool-calls", Usage(10, 5), made, NOW)


def settled(place: int) -> ToolReturned:
    return ToolReturned(TurnId("turn_2"), 0, call_id(2, 0, place), "completed", NOW)


def failed(again: int) -> ModelTryFailed:
    return ModelTryFailed(TurnId("turn_2"), 0, "MODEL_CALL_FAILED", Millis(again), NOW)


def shorter_in_turn() -> Snapshot:
    """A turn that is about to ask its model and looks at its history first."""
    begun = TurnStarted(TurnId("turn_2"), 2, (DeliveryId("dlv_5"),), 5, 0, ASKED, "support", 30, NOW)
    made = advance(replace(EMPTY, started=True, next_turn=2, judged=4), begun)
    return advance(made, CompactionDue(None, 0, False, NOW))


def held(kind: RequestKind, count: int = 1) -> Snapshot:
    """A turn that has asked its person something, so many times."""
    gate: Gate = "ask" if kind != "session-limit" else ""
    asks = {"tool-approval": "approval", "question": "question"}.get(kind, "")
    calls = tuple(
        Call(call_id(2, 0, place), f"p{place}", "pay", "d", asks=asks, gate=gate)  # type: ignore[arg-type]  # as above
        for place in range(count if gate else 0)
    )
    made = turned(ModelAnswered(TurnId("turn_2"), 0, "tool-calls", Usage(10, 5), calls, NOW))
    made = advance(made, StepSettled(TurnId("turn_2"), 0, "tool-calls", NOW))
    requests = tuple(
        Request(
            request_id("0" * 26, place), kind, calls[place].id if calls else CallId(""), 33,
            options=holds.OPTIONS.get(kind, ()), freeform=kind == "question",
        )
        for place in range(count)
    )  # fmt: skip
    return advance(made, InputRequested(TurnId("turn_2"), 1, requests, NOW))


# Several snapshots where a state has several: a decision must not depend on what the table does not name. What was shown of an
# answer is no part of a snapshot, so "called" and "begun" are one.
SITUATIONS: dict[str, Sequence[Snapshot]] = {
    "idle": [replace(EMPTY, started=True, next_turn=2, judged=4), replace(EMPTY, started=True, usage=Usage(9, 9))],
    "model called, no output yet": [turned(), turned(failed(NOW - 1))],
    "model output begun": [turned(), turned(failed(NOW - 1))],
    "waiting for the model's next try": [turned(failed(NOW + 500)), turned(failed(NOW - 1), failed(NOW + 60_000))],
    "inline tools running": [
        turned(answered(1)),
        turned(answered(3), settled(1)),
        turned(answered(2), CallStarted(TurnId("turn_2"), call_id(2, 0, 0), NOW)),
    ],
    "held by an approval": [held("tool-approval"), held("tool-approval", 2)],
    "held by a question": [held("question")],
    "held by a budget prompt": [held("session-limit")],
    "history made shorter in a turn": [
        shorter_in_turn(),
        advance(shorter_in_turn(), CompactionBegun("scripted", 9, NOW)),
    ],
    "history made shorter between turns": [
        advance(replace(EMPTY, started=True), CompactionDue(DeliveryId("dlv_1"), 1, True, NOW))
    ],
}


def head(kind: str, *, principal: Principal | None = ASKED, policy: str = "steer", guard: str = "", n: int = 9) -> Head:
    return Head(DeliveryId(f"dlv_{n}"), n, 35, Envelope(kind, principal, policy, guard, at=NOW, size=5))


DELIVERIES: dict[str, Sequence[Head]] = {
    "steer, same": [head("message")],
    "queue, same": [head("message", policy="queue")],
    "message, other": [
        head("message", principal=who, policy=policy) for who in (OTHER, None) for policy in ("steer", "queue")
    ],
    "cancel": [head("cancel"), head("cancel", principal=OTHER)],
    "cancel, another turn": [head("cancel", guard="turn_1"), head("cancel", guard="turn_7")],
    "clear, compact": [head("clear"), head("compact")],
    "reset": [head("reset"), head("reset", principal=OTHER)],
}


# What the words promise ---------------------------------------------------------------------------------------------


def starts(before: Snapshot, given: Head) -> None:
    fact = judge(before, given, SCENE)
    assert isinstance(fact, TurnStarted)
    assert (fact.number, fact.deliveries, fact.principal) == (before.next_turn, (given.id,), given.envelope.principal)
    after = advance(before, fact)
    assert after.judged == given.n
    assert after.waiting == before.waiting
    step = follow(after, SCENE)
    assert isinstance(step, StepStarted)
    assert isinstance(next_effect(advance(after, step), NOW), CallModel)


def waits(before: Snapshot, given: Head) -> None:
    fact = judge(before, given, SCENE)
    assert isinstance(fact, DeliveryWaits)
    after = advance(before, fact)
    # The turn does not notice, but for what must not be overtaken.
    followed = after.turn and replace(after.turn, followed=before.turn is not None and before.turn.followed)
    assert followed == before.turn
    assert (after.waiting, after.judged) == (before.waiting + 1, given.n)
    assert next_effect(after, NOW) == next_effect(before, NOW)
    over = after
    if before.turn is not None:
        over = advance(after, TurnSettled(before.turn.id, "completed", "", False, NOW))
    else:
        over = advance(after, CompactionLeft("nothing_to_do", Usage(), NOW))
    assert has_work(over, NOW)
    own = judge(over, given, SCENE)
    assert isinstance(own, TurnStarted)
    assert own.waited
    assert advance(over, own).waiting == before.waiting


def to_the_end(snapshot: Snapshot) -> tuple[Snapshot, list[type]]:
    """What comes before the end of a turn, and the kinds of all that follows."""
    kinds: list[type] = []
    while True:
        fact = follow(snapshot, SCENE)
        kinds.append(type(fact))
        if fact is None or isinstance(fact, TurnSettled):
            return snapshot, kinds
        snapshot = advance(snapshot, fact)


def cancels(before: Snapshot, given: Head) -> None:
    assert before.turn is not None
    for guard in ("", before.turn.id):  # also when it names the turn it means
        fact = judge(before, replace(given, envelope=replace(given.envelope, guard=guard)), SCENE)
        assert isinstance(fact, CancelAccepted)
        told = advance(before, fact)
        asked = bool(before.turn.requests)
        told, ended = to_the_end(told)
        assert ended[:-1] == ([RequestsWithdrawn, InputResolved] if asked else [])
        end = follow(told, SCENE)
        assert isinstance(end, TurnSettled)
        assert end.outcome == "cancelled"
        assert end.cut == bool(before.turn.calls)  # calls without a result get one, so that the history pairs them
        after = advance(told, end)
        assert after.turn is None
        assert next_effect(after, NOW) is None
        assert not has_work(after, NOW)


def nothing(before: Snapshot, given: Head) -> None:
    fact = judge(before, given, SCENE)
    assert isinstance(fact, DeliveryDropped)
    after = advance(before, fact)
    assert after == replace(before, judged=given.n)


def joins(before: Snapshot, given: Head) -> None:
    """Behind what must come to its end first, and before the next model call."""
    assert before.turn is not None
    for call in ("silent", "speaking"):
        fact = judge(before, given, SCENE)
        assert isinstance(fact, MessageSteers)
        after = advance(before, fact)
        assert (after.waiting, after.judged) == (before.waiting + 1, given.n)
        facts = through(after, replace(SCENE, call=call))
        joined = next(fact for fact in facts if isinstance(fact, MessagesJoined))
        assert joined.deliveries == (given.id,)
        assert not any(isinstance(fact, StepStarted) for fact in facts[: facts.index(joined)])
        cut = any(isinstance(fact, StepCut) for fact in facts)
        assert cut == (call == "silent" and before.turn.step_open and before.turn.phase == "model")


def through(snapshot: Snapshot, scene: Scene) -> list[Fact]:
    """What follows until the next model call, when every effect comes to its end."""
    facts: list[Fact] = []
    while not (facts and isinstance(facts[-1], StepStarted)):
        fact = follow(snapshot, scene)
        if fact is None:
            turn = snapshot.turn
            assert turn is not None
            if snapshot.compacting is not None:
                fact = CompactionLeft("nothing_to_do", Usage(), NOW)
            elif turn.phase == "model":
                fact = replace(answered(0), step=turn.step, finish="stop")
            else:
                fact = settled(next(place for place, call in enumerate(turn.calls) if call.state != "settled"))
        facts.append(fact)
        snapshot = advance(snapshot, fact)
    return facts


def withdraws(before: Snapshot, given: Head) -> None:
    assert before.turn is not None
    fact = judge(before, given, SCENE)
    assert isinstance(fact, MessageSteers)
    assert fact.withdraws
    after = advance(before, fact)
    kinds = []
    while not isinstance(fact, StepStarted):
        found = follow(after, SCENE)
        assert found is not None
        fact = found
        kinds.append(type(fact))
        after = advance(after, fact)
    refused = [ToolReturned] * len(before.turn.calls)
    assert kinds == [RequestsWithdrawn, InputResolved, *refused, CallsSettled, MessagesJoined, StepStarted]
    assert all(request.state == "ignored" for request in after.turn.requests) if after.turn else False
    # What was said before it was asked takes nothing back.
    early = judge(before, replace(given, at_seq=32), SCENE)
    assert not (isinstance(early, MessageSteers) and early.withdraws)
    assert not isinstance(early, AnswersTaken)


def answers(before: Snapshot, given: Head) -> None:
    fact = judge(before, given, SCENE)
    assert isinstance(fact, AnswersTaken)
    assert fact.words
    assert [one.state for one in fact.decisions] == ["answered"]
    after = advance(before, fact)
    assert after.turn is not None
    assert not holds.open_requests(after.turn)
    assert after.judged == given.n
    assert not isinstance(judge(before, replace(given, at_seq=32), SCENE), AnswersTaken)


def now(before: Snapshot, given: Head) -> None:
    fact = judge(before, given, SCENE)
    if given.envelope.kind == "clear":
        assert isinstance(fact, ContextCleared)
        assert next_effect(advance(before, fact), NOW) is None
    else:
        assert isinstance(fact, CompactionDue)
        assert isinstance(next_effect(advance(before, fact), NOW), Compact)
    assert advance(before, fact).judged == given.n
    # On a session that has not begun there is nothing to do.
    assert isinstance(judge(EMPTY, given, SCENE), DeliveryDropped)


def kept(before: Snapshot, given: Head) -> None:
    fact = judge(before, given, SCENE)
    assert isinstance(fact, ControlKept)
    after = advance(before, fact)
    assert after.pending == (given.envelope.kind,)
    assert advance(after, replace(fact, n=10)).pending == after.pending, "once"
    assert (after.turn, next_effect(after, NOW)) == (before.turn, next_effect(before, NOW))
    if before.turn is not None:
        over = advance(after, TurnSettled(before.turn.id, "completed", "", False, NOW))
    else:
        over = advance(after, CompactionLeft("nothing_to_do", Usage(), NOW))
    done = follow(over, SCENE)
    assert isinstance(done, ContextCleared | CompactionDue)
    assert advance(over, done).pending == ()


def ends(before: Snapshot, given: Head) -> None:
    fact = judge(before, given, SCENE)
    assert isinstance(fact, SessionEnding)
    after = advance(before, fact)
    for kind in ("message", "clear", "cancel", "reset"):
        assert isinstance(judge(after, head(kind, n=11), SCENE), DeliveryDropped)
    if before.turn is not None:
        after, _ = to_the_end(after)
        end = follow(after, SCENE)
        assert isinstance(end, TurnSettled)
        assert end.outcome == "cancelled"
        after = advance(after, end)
    assert next_effect(after, NOW) is None
    assert has_work(after, NOW), "somebody has to write the last events"
    assert follow(after, replace(SCENE, all_in=False)) is None, "what still waits is named first"
    assert isinstance(follow(after, SCENE), SessionEnded)


PROMISES = {
    check.__name__: check for check in (starts, joins, waits, withdraws, answers, cancels, nothing, now, kept, ends)
}
DUE = {"idle": type(None), "model": CallModel, "wait": Wait, "tools": RunTools, "shorter": Compact, "held": Hold}


# The tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.now], ids=str)
def test_the_code_does_what_the_table_says(cell: Cell) -> None:
    assert cell.state in SITUATIONS, f"no snapshot is known for {cell.state!r}"
    for before in SITUATIONS[cell.state]:
        if cell.column == "due":
            assert isinstance(next_effect(before, NOW), DUE[cell.now])
            continue
        for given in DELIVERIES[cell.column]:
            PROMISES[cell.now](before, given)


def test_every_cell_is_checked_or_marked_later() -> None:
    assert {cell.later for cell in CELLS} <= {*TOPICS, ""}
    assert {cell.state for cell in CELLS if cell.now} == set(SITUATIONS)
    for cell in CELLS:
        # A state is possible in this version or it is not: all of its cells say the same.
        assert bool(cell.now) == (cell.state in SITUATIONS), cell
    assert {cell.column for cell in CELLS} == {"due", *DELIVERIES}
    assert len({str(cell) for cell in CELLS}) == len(CELLS)


def test_the_table_has_a_row_for_every_state_a_snapshot_can_be_in() -> None:
    # A new phase or kind of delivery has to be put into the table, and then into the lists above.
    assert set(typing.get_args(Phase)) == {"model", "tools"}
    assert set(typing.get_args(DeliveryKind)) == {
        "message",
        "answers",
        "cancel",
        "clear",
        "compact",
        "reset",
        "tail_seen",
    }


def test_the_words_are_explained_on_the_page() -> None:
    explained = set(re.findall(r"\*\*([a-z]+)\*\*", "\n".join(row[0] for row in rows(WORDS)[1:])))
    assert explained == {*PROMISES, *DUE}
    assert {cell.now for cell in CELLS} - {""} == explained


def test_every_hold_of_the_second_table_is_a_row_of_the_first() -> None:
    head_row, *rows_of_holds = rows(HOLDS)
    assert len(head_row) == 4
    later = {cell.state: cell.later for cell in CELLS if not cell.now}
    now = {cell.state for cell in CELLS if cell.now}
    told = {row[0]: read(row[0], "request", row[1]).later for row in rows_of_holds if "(later" in row[1]}
    assert told == later
    assert {row[0] for row in rows_of_holds if "(later" not in row[1]} <= now


@pytest.mark.parametrize(
    "text", ["", "waits", "**waits** **starts**", "(later) joins", "joins (later: steering)", "**Waits**"]
)
def test_a_cell_that_nobody_can_read_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        read("idle", "cancel", text)


def test_a_wrong_word_is_found() -> None:
    with pytest.raises(AssertionError):
        waits(SITUATIONS["idle"][0], head("message"))
    with pytest.raises(AssertionError):
        cancels(SITUATIONS["inline tools running"][0], head("message"))


def test_a_cancel_counts_at_its_place_in_the_order() -> None:
    early, message, late = head("cancel", n=1), head("message", n=2), head("cancel", n=3)
    first = judge(EMPTY, early, SCENE)
    assert isinstance(first, DeliveryDropped)
    begun = advance(advance(EMPTY, first), judge(advance(EMPTY, first), message, SCENE))
    assert isinstance(judge(begun, late, SCENE), CancelAccepted)
