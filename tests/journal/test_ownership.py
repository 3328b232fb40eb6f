"""Who owns a session: granted, refused, taken over, given back; what counts as an attempt and what does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.journal import Done, Granted, Refused, Superseded
from tests.journal.world import Hand, Owner, changed


def busy(hand: Hand) -> Owner:
    """An owner in the middle of a turn."""
    owner = hand.owner(hand.asked())
    assert isinstance(owner.use(owner.granted.heads[0].id), Done)
    return owner


def test_granted_says_all_that_is_needed_to_go_on(hand: Hand) -> None:
    owner = hand.owner(hand.asked())
    owner.use(owner.granted.heads[0].id, facts=3, lines=["{}", "{}"], rows=4)
    owner.append(5)
    hand.deliver(owner.session)
    owner.release()
    granted = hand.owner(owner.session).granted
    assert (granted.epoch, granted.attempt, granted.faults, granted.at) == (2, 0, 0, hand.now)
    assert (granted.position.seq, granted.position.events, granted.position.gen, granted.position.rows) == (3, 7, 0, 4)
    assert (granted.judged, granted.agent, granted.parent, granted.fact_base) == (1, "support", "", 0)
    assert granted.last_row == f"3.4.{owner.token[-6:]}"
    assert granted.snapshot == owner.snapshot
    assert [head.n for head in granted.heads] == [2], "the judged one is not handed out again"


def test_without_an_open_turn_the_judged_are_handed_out_too(hand: Hand) -> None:
    owner = busy(hand)
    hand.deliver(owner.session)
    owner.commit(judged=2)
    owner.commit(turn=None, judged=2, mode="chain", work=True)
    assert [head.n for head in hand.owner(owner.session).granted.heads] == [2]


def test_a_lease_counts_from_now_and_is_looked_at_when_it_ends(hand: Hand) -> None:
    owner = hand.owner(hand.asked())
    assert int(hand.fields(owner.session)["lease"]) == hand.now + 10_000
    assert hand.due_at(owner.session) == 10_000
    hand.later(1_000)
    owner.commit()
    assert int(hand.fields(owner.session)["lease"]) == hand.now + 10_000
    assert hand.due_at(owner.session) == 10_000
    hand.later(3_000)
    assert owner.renew() == "done"
    assert hand.due_at(owner.session) == 10_000


def test_many_leases_are_renewed_at_once_and_each_has_its_answer(hand: Hand) -> None:
    owners = [busy(hand) for _ in range(30)]
    owners[3].release()
    hand.client.delete(hand.journal.keys(owners[5].session).own)
    hand.later(1_000)
    answers = hand.journal.renew([(owner.session, owner.token) for owner in owners])
    assert [answers[owner.session] for owner in owners] == [
        {3: "superseded", 5: "gone"}.get(place, "done") for place in range(30)
    ]
    assert hand.journal.renew([]) == {}


# Refusals ----------------------------------------------------------------------------------------------------------------


def _leased(hand: Hand) -> tuple[Owner, Refused]:
    owner = busy(hand)
    hand.later(4_000)
    return owner, Refused("leased", 6_000)


def _idle(hand: Hand) -> tuple[Owner, Refused]:
    owner = busy(hand)
    owner.commit(mode="park", turn=None)
    return owner, Refused("idle")


def _timer_not_come(hand: Hand) -> tuple[Owner, Refused]:
    owner = busy(hand)
    owner.commit(mode="park", next_timer=hand.now + 60_000, work=False)
    return owner, Refused("idle")


def _ended(hand: Hand) -> tuple[Owner, Refused]:
    owner = busy(hand)
    owner.commit(mode="end", turn=None)
    return owner, Refused("ended")


def _too_new(hand: Hand) -> tuple[Owner, Refused]:
    owner = busy(hand)
    owner.commit(mode="chain", work=True, reads=2)
    return owner, Refused("too_new")


def _later(hand: Hand) -> tuple[Owner, Refused]:
    owner = busy(hand)
    hand.later(10_001)
    again = hand.owner(owner.session)
    hand.later(10_100)
    return again, Refused("later", 900)


REFUSALS = [_leased, _idle, _timer_not_come, _ended, _too_new, _later]
each_refusal = pytest.mark.parametrize("refuse", REFUSALS, ids=lambda refuse: refuse.__name__.lstrip("_"))
Refuse = Callable[[Hand], tuple[Owner, Refused]]


@each_refusal
def test_a_refusal_changes_nothing_but_the_wake_and_the_look(hand: Hand, refuse: Refuse) -> None:
    owner, refused = refuse(hand)
    hand.client.hset(hand.journal.keys(owner.session).own, "rung", 77)
    before = hand.everything()
    assert hand.own(owner.session) == refused
    assert changed(before, hand.everything()) <= {"own.rung", "own.rings", "due"}
    assert hand.fields(owner.session)["rung"] == "0", "the wake was heard"


@each_refusal
def test_after_a_refusal_nobody_looks_before_it_makes_sense(hand: Hand, refuse: Refuse) -> None:
    owner, refused = refuse(hand)
    hand.client.zadd(hand.journal.keys(owner.session).due, {owner.session: hand.now - 1})
    assert hand.own(owner.session) == refused
    due = hand.due_at(owner.session)
    expected = {"leased": 6_000, "later": 900, "too_new": 5_000, "ended": None, "idle": None}[refused.why]
    assert due == (60_000 if refuse is _timer_not_come else expected)


def test_a_timer_that_has_come_is_work(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", next_timer=hand.now + 60_000, work=False)
    hand.later(59_999)
    assert hand.own(owner.session) == Refused("idle")
    hand.later(1)
    assert isinstance(hand.own(owner.session), Granted)


def test_a_version_is_compared_as_a_number(hand: Hand) -> None:
    session = hand.asked()
    hand.client.hset(hand.journal.keys(session).own, "reads", "10")
    assert hand.own(session) == Refused("too_new")
    hand.client.hset(hand.journal.keys(session).own, "reads", "01")
    assert isinstance(hand.own(session), Granted)


# Taking over -------------------------------------------------------------------------------------------------------------


def test_the_longer_it_happens_the_longer_a_takeover_waits(hand: Hand) -> None:
    owner = busy(hand)
    for attempt, wait_ms in enumerate((0, 1_000, 5_000, 25_000, 25_000), 1):
        hand.later(9_999)
        assert hand.own(owner.session) == Refused("leased", 1)
        hand.later(1)
        if wait_ms:
            assert hand.own(owner.session) == Refused("later", wait_ms)
            hand.later(wait_ms - 1)
            assert hand.own(owner.session) == Refused("later", 1)
            assert hand.due_at(owner.session) == 1
            hand.later(1)
        owner = hand.owner(owner.session)
        assert owner.granted.attempt == attempt


def test_progress_begins_the_counting_anew(hand: Hand) -> None:
    owner = busy(hand)
    hand.journal.disown(owner.session, owner.token, fault=True)
    owner = hand.owner(owner.session)
    assert (owner.granted.attempt, owner.granted.faults) == (1, 1)
    owner.commit(progress=False)
    assert (hand.fields(owner.session)["attempt"], hand.fields(owner.session)["faults"]) == ("1", "1")
    owner.commit()
    assert (hand.fields(owner.session)["attempt"], hand.fields(owner.session)["faults"]) == ("0", "0")


def test_from_the_second_takeover_on_only_who_can_run_it_alone_gets_it(hand: Hand) -> None:
    owner = busy(hand)
    hand.later(10_000)
    owner = hand.owner(owner.session, alone=False)
    hand.later(11_000)
    assert hand.own(owner.session, alone=False) == Refused("later", 1_000)
    assert hand.due_at(owner.session) == 1_000
    assert hand.owner(owner.session, alone=True).granted.attempt == 2


def test_being_given_back_is_no_attempt(hand: Hand) -> None:
    owner = busy(hand)
    for place in range(6):
        if place % 2:
            owner.release()
        else:
            owner.commit(mode="chain", progress=False)
        owner = hand.owner(owner.session)
        assert owner.granted.attempt == 0


def test_giving_back_does_not_forget_the_attempts_so_far(hand: Hand) -> None:
    owner = busy(hand)
    hand.later(10_000)
    owner = hand.owner(owner.session)
    owner.release()
    assert hand.owner(owner.session).granted.attempt == 1


def test_a_dead_process_is_an_attempt_and_is_taken_over_at_once(hand: Hand) -> None:
    owner = busy(hand)
    hand.client.delete("orc.default")
    assert hand.journal.disown(owner.session, "worker00.")
    assert len(hand.wakes()) == 1
    granted = hand.own(owner.session)
    assert isinstance(granted, Granted)
    assert (granted.attempt, granted.faults) == (1, 0)


def test_who_is_known_to_be_dead_late_does_not_begin_the_wait_anew(hand: Hand) -> None:
    owner = busy(hand)
    hand.later(10_000)
    owner = hand.owner(owner.session)
    hand.later(10_600)
    assert hand.own(owner.session) == Refused("later", 400)
    assert hand.journal.disown(owner.session, owner.token)
    assert hand.own(owner.session) == Refused("later", 400)


@pytest.mark.parametrize("whose", ["", "worker0000.", "worker01.", "orker00."])
def test_only_a_prefix_of_the_owners_token_disowns_it(hand: Hand, whose: str) -> None:
    owner = busy(hand)
    before = hand.everything()
    assert not hand.journal.disown(owner.session, whose, fault=True)
    assert changed(before, hand.everything()) == set()


def test_a_session_that_nobody_owns_cannot_be_disowned(hand: Hand) -> None:
    owner = busy(hand)
    owner.release()
    before = hand.everything()
    for whose in ("", owner.token):
        assert not hand.journal.disown(owner.session, whose)
    assert changed(before, hand.everything()) == set()


def test_an_owner_that_was_thought_dead_may_still_write_until_another_has_come(hand: Hand) -> None:
    owner = busy(hand)
    hand.journal.disown(owner.session, owner.token)
    assert isinstance(owner.commit(), Done)
    assert hand.own(owner.session) == Refused("leased", 10_000)
    hand.later(10_001)
    hand.owner(owner.session)
    assert owner.commit() == Superseded()


def test_a_lease_that_is_over_refuses_no_write(hand: Hand) -> None:
    owner = busy(hand)
    hand.later(600_000)
    assert owner.append().events == owner.position.events
    assert isinstance(owner.commit(), Done)
    assert hand.due_at(owner.session) == 10_000


def test_two_owners_in_a_row_have_different_epochs(hand: Hand) -> None:
    owner = busy(hand)
    epochs = [owner.granted.epoch]
    for _ in range(12):
        owner.release()
        owner = hand.owner(owner.session)
        epochs.append(owner.granted.epoch)
    assert epochs == list(range(1, 14)), "9 and 10 are numbers, not texts"


# Giving back -------------------------------------------------------------------------------------------------------------


def test_giving_back_rings_if_there_is_more_to_do(hand: Hand) -> None:
    owner = busy(hand)
    hand.client.delete("orc.default")
    owner.release()
    assert len(hand.wakes()) == 1
    assert hand.due_at(owner.session) == 2_000
    assert hand.fields(owner.session)["lease"] == "0"


def test_giving_back_an_idle_session_rings_for_nobody(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(turn=None)
    hand.client.delete("orc.default")
    owner.release()
    assert hand.wakes() == []
    assert hand.due_at(owner.session) is None


def test_giving_back_a_session_with_a_timer_leaves_it_to_the_timer(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(work=False, next_timer=hand.now + 60_000)
    hand.client.delete("orc.default")
    owner.release()
    assert hand.wakes() == []
    assert hand.due_at(owner.session) == 60_000


def test_giving_back_rings_for_what_came_in_meanwhile(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(turn=None)
    hand.deliver(owner.session)
    hand.client.delete("orc.default")
    owner.release()
    assert len(hand.wakes()) == 1
