"""The end of a session: a reset takes effect where it is admitted, a deadline when nothing else is to be done, and retention after that."""

from __future__ import annotations

import pytest

from orchestrator.errors import SessionNotActive
from orchestrator.journal import Done, Granted, News, Refused
from orchestrator.journal.tidying import tidy
from tests.journal.test_ownership import busy
from tests.journal.world import DAY_MS, START, Hand, an_event, changed, listening

LIFE = 60_000


# Reset ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["owned", "parked", "idle", "never worked on"])
def test_a_reset_takes_effect_at_once_in_whatever_state(hand: Hand, state: str) -> None:
    session = hand.create()
    if state == "owned":
        session = busy(hand).session
    elif state == "parked":
        owner = busy(hand)
        owner.commit(mode="park", next_timer=hand.now + DAY_MS, work=False)
        session = owner.session
    elif state == "idle":
        owner = busy(hand)
        owner.commit(mode="park", turn=None)
        session = owner.session
    reset = hand.reset(session)
    assert hand.reads.life(session) == "ending"
    before = hand.everything()
    for late in (hand.message(), hand.control(), hand.control("reset"), hand.control("tail_seen", "7")):
        with pytest.raises(SessionNotActive):
            hand.deliver(session, late)
    assert hand.deliver(session, reset).again
    assert changed(before, hand.everything()) == set()


def test_the_owner_of_a_session_that_was_reset_is_told(hand: Hand) -> None:
    owner = busy(hand)
    with listening(hand.client, hand.journal.keys(owner.session).news) as heard:
        hand.reset(owner.session)
    assert heard == [f"{owner.session} 2 reset".encode()]


def test_a_free_session_that_was_reset_is_rung_for(hand: Hand) -> None:
    session = hand.create()
    hand.reset(session)
    assert len(hand.wakes()) == 1
    assert hand.due_at(session) == 2_000


def test_the_owner_of_an_ending_session_sees_its_reset_before_all_that_waits(hand: Hand) -> None:
    session = hand.create()
    messages = [hand.message(str(number)) for number in range(100)]
    for message in messages:
        hand.deliver(session, message)
    reset = hand.reset(session)
    granted = hand.own(session)
    assert isinstance(granted, Granted)
    assert (granted.life, granted.heads[0].id, granted.heads[0].n) == ("ending", reset.id, 101)
    assert [head.id for head in granted.heads[1:]] == [message.id for message in messages[:64]]
    assert [head.id for head in hand.reads.heads(session, 0)] == [reset.id, *(message.id for message in messages)]
    assert [head.n for head in hand.reads.heads(session, 99)] == [101, 100]


@pytest.mark.parametrize("waiting", [0, 3, 700])
def test_all_heads_above_a_number_are_read_in_order(hand: Hand, waiting: int) -> None:
    hand = Hand(hand.client)
    session = hand.create()
    for _ in range(waiting):
        hand.deliver(session)
    assert [head.n for head in hand.reads.heads(session, 2)] == list(range(3, waiting + 1))


def test_no_conditional_commit_passes_a_reset_by(hand: Hand) -> None:
    owner = busy(hand)
    reset = hand.reset(owner.session)
    before = hand.everything()
    answer = owner.commit(turn=None, conditional=True)
    assert isinstance(answer, News)
    assert [head.id for head in answer.heads] == [reset.id]
    assert changed(before, hand.everything()) == set()


def test_an_ending_session_is_granted_and_rung_for_until_it_has_ended(hand: Hand) -> None:
    session = hand.create()
    reset = hand.reset(session)
    for _ in range(3):
        owner = hand.owner(session)
        assert isinstance(owner.commit(mode="keep", turn=None, judged=1, consumed=(reset.id,)), Done)
        hand.client.delete("orc.default")
        owner.release()
        assert len(hand.wakes()) == 1
        hand.client.delete("orc.default")
        hand.later(5_000)
        assert hand.journal.due()[2] == 1
    hand.end(session)
    hand.later(DAY_MS)
    assert hand.own(session) == Refused("ended")
    assert hand.journal.due()[2] == 0
    assert hand.due_at(session) is None


def test_an_end_leaves_no_work_no_timer_and_no_deadline(hand: Hand) -> None:
    session = hand.create(life_ms=LIFE)
    hand.reset(session)
    hand.end(session, next_timer=hand.now + 1_000, work=True)
    fields = hand.fields(session)
    assert (fields["status"], fields["work"], fields["next_timer"], fields["deadline"]) == ("ended", "0", "0", "0")
    assert hand.due_at(session) is None


# Deadline ---------------------------------------------------------------------------------------------------------------


def test_a_session_without_a_deadline_lives_for_ever(hand: Hand) -> None:
    session = hand.create()
    assert hand.fields(session)["deadline"] == "0"
    owner = hand.owner(session, lost=True)
    assert owner.granted.deadline == 0
    owner.commit(mode="park", turn=None)
    assert hand.due_at(session) is None


@pytest.mark.parametrize("how", ["created", "parked", "released", "asked for"])
def test_somebody_looks_at_a_session_at_rest_when_its_deadline_comes(hand: Hand, how: str) -> None:
    session = hand.create(life_ms=LIFE)
    if how != "created":
        owner = hand.owner(session, lost=True)
        assert owner.granted.deadline == START + LIFE
        if how == "released":
            owner.release()
        else:
            owner.commit(mode="park", turn=None)
    if how == "asked for":
        assert hand.own(session) == Refused("idle")
    assert hand.due_at(session) == LIFE
    hand.later(LIFE - 1)
    assert hand.own(session) == Refused("idle")
    hand.later(1)
    hand.client.delete("orc.default")
    assert hand.journal.due()[2] == 1
    assert isinstance(hand.own(session), Granted)


@pytest.mark.parametrize("timer", [5_000, LIFE + 5_000])
def test_what_has_begun_and_waits_for_its_timer_is_left_to_it_though_the_deadline_comes(hand: Hand, timer: int) -> None:
    session = hand.create(life_ms=LIFE)
    owner = hand.owner(session, lost=True)
    owner.commit(mode="park", work=False, next_timer=hand.now + timer)
    assert hand.due_at(session) == timer
    hand.later(timer - 1)
    assert hand.own(session) == Refused("idle")
    assert (hand.journal.due()[2], hand.due_at(session)) == (0, 1)
    hand.later(1)
    hand.owner(session).commit(mode="park", turn=None)
    assert hand.due_at(session) == LIFE - timer, "then it is the deadline's turn, also if that is over"


@pytest.mark.parametrize("how", ["parked", "released", "asked for"])
def test_nobody_looks_at_a_turn_that_waits_for_people_beyond_the_deadline(hand: Hand, how: str) -> None:
    session = hand.create(life_ms=LIFE)
    hand.owner(session, lost=True).commit(mode="park", work=False, hold="input")
    if how == "released":
        hand.owner(session, lost=True).release()
    if how == "asked for":
        assert hand.own(session) == Refused("idle")
    assert hand.due_at(session) is None
    hand.later(LIFE + 1)
    assert hand.own(session) == Refused("idle")
    hand.client.zadd(hand.journal.keys(session).due, {session: hand.now})
    assert (hand.journal.due()[2], hand.due_at(session)) == (0, None)
    hand.deliver(session)
    owner = hand.owner(session)
    owner.use(owner.granted.heads[0].id)
    owner.commit(mode="park", turn=None)
    assert hand.due_at(session) == -1, "the turn is over, and so is the session's time"


def test_a_deadline_never_moves(hand: Hand) -> None:
    session = hand.create(life_ms=LIFE)
    hand.later(5_000)
    hand.deliver(session)
    owner = hand.owner(session)
    owner.use(owner.granted.heads[0].id)
    owner.commit(mode="park", turn=None)
    assert hand.fields(session)["deadline"] == str(START + LIFE)
    assert hand.due_at(session) == LIFE - 5_000


def test_an_end_at_the_deadline_gives_way_to_a_message(hand: Hand) -> None:
    session = hand.create(life_ms=LIFE)
    hand.later(LIFE)
    owner = hand.owner(session)
    message = hand.message()
    hand.deliver(session, message)
    answer = owner.commit(mode="end", turn=None)
    assert isinstance(answer, News)
    assert [head.id for head in answer.heads] == [message.id]
    assert hand.reads.life(session) == "live"


# Retention --------------------------------------------------------------------------------------------------------------


def test_an_ended_session_is_erased_when_its_retention_is_over(hand: Hand) -> None:
    hand = Hand(hand.client, retention_ms=7 * DAY_MS)
    session = hand.asked()
    hand.end(session)
    hand.later(7 * DAY_MS - 1)
    assert hand.journal.tidy(hand.now) == []
    hand.later(1)
    assert hand.journal.tidy(hand.now) == [session]
    tidy(hand.journal, session, hand.now)
    assert hand.traces(session) == []
    assert not hand.reads.exists(session)


def test_a_session_whose_retention_is_for_ever_is_kept(hand: Hand) -> None:
    hand = Hand(hand.client, retention_ms=0)
    session = hand.asked()
    hand.end(session)
    hand.later(1000 * DAY_MS)
    assert hand.journal.tidy(hand.now) == []
    assert hand.reads.exists(session)


def test_pruning_does_not_lose_the_day_of_the_erasure(hand: Hand) -> None:
    hand = Hand(hand.client, retention_ms=7 * DAY_MS)
    session = hand.create()
    owner = hand.owner(session, lost=True)
    owner.commit(tidy=True, lines=[an_event(hand.now, 1)])
    owner.commit(mode="end", turn=None)
    hand.later(600_001)
    assert hand.journal.tidy(hand.now) == [session]
    tidy(hand.journal, session, hand.now)
    assert hand.journal.tidy(START + 7 * DAY_MS - 1) == []
    assert hand.journal.tidy(START + 7 * DAY_MS) == [session]


def test_an_end_that_was_said_twice_keeps_its_day(hand: Hand) -> None:
    session = hand.create()
    hand.end(session)
    before = hand.everything()
    assert hand.again(hand.said[-1], now=hand.now + 5_000)[0] == b"landed"
    assert changed(before, hand.everything()) == set()
