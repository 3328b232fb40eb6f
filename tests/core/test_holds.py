"""What answers mean: which of them count, for what, and from whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import codec, holds
from orchestrator.core.advance import advance, judge
from orchestrator.core.delivery import Answered, Envelope, Head
from orchestrator.core.fact import AnswersTaken, CandidateJudged, DeliveryDropped, DeliveryWaits, InputRequested
from orchestrator.core.names import DeliveryId, Millis, RequestId, TurnId, call_id, request_id
from orchestrator.core.snapshot import MAX_CALLS, MAX_DELIVERIES, Call, Principal, Request, Snapshot, Turn
from tests.core.test_states import ASKED, NOW, OTHER, SCENE, held

ONE, TWO = RequestId("req_" + "0" * 26), RequestId("req_" + "0" * 25 + "1")


def given(*answers: Answered, who: Principal | None = ASKED, at_seq: int = 35) -> Head:
    return Head(DeliveryId("dlv_9"), 9, at_seq, Envelope("answers", who, at=NOW, answers=answers))


def test_an_answer_that_came_in_before_its_request_counts_for_nothing() -> None:
    before = held("tool-approval")
    assert isinstance(judge(before, given(Answered(ONE, "approve")), SCENE), AnswersTaken)
    assert isinstance(judge(before, given(Answered(ONE, "approve"), at_seq=32), SCENE), DeliveryDropped)


def test_only_who_caused_the_turn_or_has_the_link_answers() -> None:
    before, link = held("tool-approval"), Principal("link", "link", ONE)
    for who, counts in ((ASKED, True), (link, True), (OTHER, False), (None, False)):
        fact = judge(before, given(Answered(ONE, "approve"), who=who), SCENE)
        assert isinstance(fact, AnswersTaken) == counts


def test_of_two_answers_to_one_request_in_one_delivery_the_first_counts() -> None:
    fact = judge(held("tool-approval"), given(Answered(ONE, "cancel"), Answered(ONE, "approve")), SCENE)
    assert isinstance(fact, AnswersTaken)
    assert [one.state for one in fact.decisions] == ["denied"]


def test_answers_for_a_batch_are_taken_one_by_one() -> None:
    fact = judge(held("tool-approval", 2), given(Answered(TWO, "approve"), Answered(ONE, "cancel")), SCENE)
    assert isinstance(fact, AnswersTaken)
    assert {one.request: one.state for one in fact.decisions} == {ONE: "denied", TWO: "approved"}


@pytest.mark.parametrize(
    ("kind", "option", "state"), [("tool-approval", "maybe", "invalid"), ("question", "9", "invalid")]
)
def test_an_option_that_was_not_offered_is_invalid(kind: str, option: str, state: str) -> None:
    fact = judge(held(kind), given(Answered(ONE, option)), SCENE)  # type: ignore[arg-type]  # one of the kinds
    assert isinstance(fact, AnswersTaken)
    assert [one.state for one in fact.decisions] == [state]


def test_a_budget_takes_only_its_own_options() -> None:
    assert isinstance(judge(held("session-limit"), given(Answered(ONE, "maybe")), SCENE), DeliveryDropped)
    assert isinstance(judge(held("session-limit"), given(Answered(ONE, "stop")), SCENE), AnswersTaken)


def judged_by_a_policy(count: int) -> Snapshot:
    before = held("tool-approval", count)
    assert before.turn is not None
    requests = tuple(replace(request, who="policy") for request in before.turn.requests)
    return replace(before, turn=replace(before.turn, requests=requests))


@pytest.mark.parametrize("known", [100, 4_000])
def test_answers_that_wait_for_a_policy_have_a_room_and_those_without_one_are_stale(known: int) -> None:
    boss, before = Principal("jwt", "user", "boss", extra={"groups": "x" * known}), judged_by_a_policy(2)
    taken: list[int] = []
    for n in range(9, 300):
        head = replace(given(Answered(ONE, "approve"), Answered(TWO, "cancel"), who=boss), id=DeliveryId(f"d{n}"), n=n)
        fact = judge(before, head, SCENE)
        assert isinstance(fact, AnswersTaken)
        assert len(fact.decisions) + len(fact.stale) == 2
        taken.append(len(fact.decisions))
        before = advance(before, fact)
    assert len(codec.pack_snapshot(before)) < codec.SNAPSHOT_LIMIT
    assert taken[0] == 2
    assert taken == sorted(taken, reverse=True)
    assert taken[-1] == 0
    words = Envelope("message", boss, at=NOW, size=7, words="approve")
    fact = judge(before, Head(DeliveryId("dlv_A"), 300, 35, words), SCENE)
    assert isinstance(fact, AnswersTaken), "it is an answer all the same, and begins no turn"
    assert (fact.decisions, fact.stale, fact.words) == ((), (ONE,), True)


def test_a_turn_at_all_its_limits_still_fits_into_a_snapshot_and_can_be_answered() -> None:
    boss = Principal("jwt", "user", "boss", extra={"groups": "x" * 4_000})
    names = [call_id(12, 30, place) for place in range(MAX_CALLS)]
    calls = tuple(Call(name, "p" * 62, "p" * 48, "0" * 16, "ask", asks="approval", gate="ask") for name in names)
    dues = tuple(DeliveryId(f"dlv_{n:026}") for n in range(MAX_DELIVERIES))
    turn = Turn(
        TurnId("turn_12"), 12, dues[:32], boss, "support", NOW, step=31, calls=calls, finish="tool-calls",
        joining=dues[32:],
    )  # fmt: skip

    def batch(of: str) -> InputRequested:
        requests = tuple(
            Request(
                request_id(of * 26, place), "tool-approval", name, 33, options=holds.OPTIONS["tool-approval"],
                who="policy", expires=Millis(NOW + 1000),
            )
            for place, name in enumerate(names)
        )  # fmt: skip
        return InputRequested(TurnId("turn_12"), 31, requests, NOW)

    before = advance(Snapshot(started=True, turn=turn, marks=tuple(range(10**6, 10**6 + 16))), batch("0"))
    assert before.turn is not None
    over = tuple(replace(one, state="approved", option="approve", told=True) for one in before.turn.requests)
    before = advance(replace(before, turn=replace(before.turn, requests=over)), batch("1"))
    taken = 0
    for n in range(9, 40):
        answers = tuple(Answered(request_id("1" * 26, place), "approve") for place in range(64))
        fact = judge(before, replace(given(*answers, who=boss), id=DeliveryId(f"dlv_{n:026}"), n=n), SCENE)
        assert isinstance(fact, AnswersTaken)
        taken += len(fact.decisions)
        before = advance(before, fact)
    assert taken >= 1
    assert len(codec.pack_snapshot(before)) <= codec.SNAPSHOT_LIMIT


def test_words_that_a_policy_refuses_fill_no_turn_without_end() -> None:
    before, taken = judged_by_a_policy(1), 0
    for n in range(9, 200):
        words = Envelope("message", Principal("jwt", "user", f"person {n}"), at=NOW, size=7, words="approve")
        fact = judge(before, Head(DeliveryId(f"dlv_{n}"), n, 35, words), SCENE)
        before = advance(before, fact)
        if isinstance(fact, DeliveryWaits):
            continue
        assert isinstance(fact, AnswersTaken)
        taken += 1
        refused = CandidateJudged(fact.turn, fact.step, ONE, fact.delivery, "rejected", NOW)
        before = advance(before, refused)
    assert before.turn is not None
    assert (taken, len(before.turn.deliveries)) == (MAX_DELIVERIES - 1, MAX_DELIVERIES)


def test_a_late_answer_that_waited_and_is_dropped_after_all_waits_no_more() -> None:
    before = Snapshot(judged=9, waiting=1)
    assert advance(before, DeliveryDropped(DeliveryId("dlv_9"), 9, "not_open", NOW)).waiting == 0
    assert advance(before, DeliveryDropped(DeliveryId("dlv_10"), 10, "not_open", NOW)).waiting == 1
