"""The outbox: written with a commit, taken by one at a time, settled in order, looked at until it is empty."""

from __future__ import annotations

import pytest

from orchestrator.journal import Done, Granted, Out, Refused
from tests.journal.test_again_and_late import at_once
from tests.journal.test_ownership import busy
from tests.journal.world import CHANNEL, DAY_MS, HERE, THERE, Hand, Owner, changed

LEASE = 5_000


def with_posts(hand: Hand, *entries: bytes, mode: str = "park") -> Owner:
    owner = busy(hand)
    done = owner.commit(mode=mode, turn=None, out=entries or (b"one", b"two", b"three"))
    assert isinstance(done, Done)
    assert done.out == len(entries or (1, 2, 3))
    return owner


def take(hand: Hand, owner: Owner, holder: str = "holder", most: int = 64) -> list[bytes]:
    return [out.entry for out in hand.journal.take_out(owner.session, holder, LEASE, most)]


def test_what_was_committed_is_taken_in_order_and_stays_until_it_is_settled(hand: Hand) -> None:
    owner = with_posts(hand)
    taken = hand.journal.take_out(owner.session, "holder", LEASE, 2)
    assert taken == [Out(0, b"one", False, 1), Out(1, b"two", False, 1)]
    assert hand.journal.settle_out(owner.session, "holder", 2) == 1
    assert hand.journal.take_out(owner.session, "next", LEASE) == [Out(2, b"three", False, 1)]
    assert hand.journal.settle_out(owner.session, "next", 1) == 0
    assert take(hand, owner) == []
    fields = hand.fields(owner.session)
    assert {name: value for name, value in fields.items() if name.startswith("out")} == {
        "out_base": "3",
        "out_turn": "2",
    }


def test_one_holds_it_at_a_time_and_a_dead_one_not_for_ever(hand: Hand) -> None:
    owner = with_posts(hand)
    assert take(hand, owner, most=1) == [b"one"]
    assert take(hand, owner, "another") == []
    before = hand.everything()
    assert take(hand, owner, most=1) == [b"one"], "who asks again is answered again"
    assert changed(before, hand.everything()) == set()
    hand.later(LEASE)
    (out,) = hand.journal.take_out(owner.session, "another", LEASE, 1)
    assert (out.entry, out.tries) == (b"one", 2)
    assert hand.journal.settle_out(owner.session, "holder", 1) == 0, "it is not his any more"
    assert take(hand, owner, "another", 1) == [b"one"]


def test_a_settlement_said_twice_settles_once(hand: Hand) -> None:
    owner = with_posts(hand)
    take(hand, owner)
    hand.journal.settle_out(owner.session, "holder", 1)
    before = hand.everything()
    hand.journal.settle_out(owner.session, "holder", 1)
    assert changed(before, hand.everything()) == set()
    assert take(hand, owner, "next") == [b"two", b"three"]


def test_the_next_try_is_waited_for_and_counted(hand: Hand) -> None:
    owner = with_posts(hand)
    take(hand, owner)
    assert hand.journal.settle_out(owner.session, "holder", 0, retry_in_ms=60_000) == 3
    assert take(hand, owner, "next") == []
    hand.later(59_999)
    assert take(hand, owner, "next") == []
    hand.later(1)
    taken = hand.journal.take_out(owner.session, "next", LEASE)
    assert [(out.entry, out.tries) for out in taken] == [(b"one", 2), (b"two", 1), (b"three", 1)]
    hand.journal.settle_out(owner.session, "next", 1)
    assert hand.journal.take_out(owner.session, "third", LEASE)[0].tries == 1


def test_of_many_that_take_one_has_it(hand: Hand) -> None:
    owner = with_posts(hand)
    answers = at_once(8, lambda place: take(hand, owner, f"holder-{place}"))
    assert sorted(map(len, answers)) == [0] * 7 + [3]


def test_a_session_that_is_idle_and_has_posts_is_looked_at_until_it_has_none(hand: Hand) -> None:
    owner = with_posts(hand)
    assert hand.due_at(owner.session) == 2_000
    hand.later(2_000)
    hand.client.delete("orc.default")
    assert hand.journal.due()[2] == 1
    assert len(hand.wakes()) == 1
    assert hand.own(owner.session) == Refused("idle", out=3)
    assert hand.due_at(owner.session) == 2_000, "should the one that was told so die"
    take(hand, owner)
    assert hand.journal.settle_out(owner.session, "holder", 1, retry_in_ms=30_000) == 2
    hand.later(2_000)
    assert hand.journal.due()[2] == 0
    assert hand.due_at(owner.session) == 28_000
    hand.later(28_000)
    assert hand.journal.due()[2] == 1
    take(hand, owner, "next")
    hand.journal.settle_out(owner.session, "next", 2)
    assert hand.own(owner.session) == Refused("idle")
    assert hand.due_at(owner.session) is None


def test_while_another_holds_it_nobody_is_rung_for_it(hand: Hand) -> None:
    owner = with_posts(hand)
    take(hand, owner)
    hand.own(owner.session)
    assert hand.due_at(owner.session) == LEASE
    following = hand.owner(owner.session, lost=True)
    following.commit(mode="park", turn=None, out=(b"four",))
    assert hand.due_at(owner.session) == LEASE


def test_a_retry_does_not_put_off_what_else_is_due(hand: Hand) -> None:
    owner = with_posts(hand)
    hand.deliver(owner.session)
    take(hand, owner)
    hand.journal.settle_out(owner.session, "holder", 0, retry_in_ms=DAY_MS)
    assert hand.due_at(owner.session) == 2_000
    hand.owner(owner.session)
    take(hand, owner, "next")
    assert hand.due_at(owner.session) == 10_000, "a session that is owned is looked at when its lease ends"


def test_the_posts_of_a_session_that_is_busy_for_long_are_others_business_too(hand: Hand) -> None:
    owner = with_posts(hand, mode="keep")
    assert hand.due_at(owner.session) == 2_000
    hand.later(1_000)
    owner.renew()
    assert hand.due_at(owner.session) == 1_000
    hand.later(1_000)
    hand.client.delete("orc.default")
    assert hand.journal.due()[2] == 1
    assert len(hand.wakes()) == 1
    assert hand.own(owner.session) == Refused("leased", 9_000, 3)
    assert hand.due_at(owner.session) == 2_000
    take(hand, owner)
    hand.journal.settle_out(owner.session, "holder", 3)
    hand.later(2_000)
    assert hand.journal.due()[2] == 0
    assert hand.due_at(owner.session) == 7_000, "when its lease ends"


def test_who_takes_it_after_having_settled_holds_nothing(hand: Hand) -> None:
    owner = with_posts(hand)
    take(hand, owner, most=1)
    taken = hand.said[-1]
    for holder in ("holder", "next"):
        take(hand, owner, holder, most=1)
        hand.journal.settle_out(owner.session, holder, 1)
        before = hand.everything()
        assert hand.again(taken, now=hand.now + 5_000) == [b"late"]
        assert changed(before, hand.everything()) == set()


def test_a_drop_among_the_entries_has_its_own_number(hand: Hand) -> None:
    session = hand.arrive(at=HERE).session
    hand.journal.take_address(session, CHANNEL, THERE)
    hand.owner(session).commit(out=(b"one",), mode="keep", turn=None, judged=0)
    hand.later(20_000)
    hand.end(session)
    hand.later(3_000)
    assert [(out.number, out.done) for out in hand.journal.take_out(session, "holder", LEASE)] == [
        (0, False),
        (1, True),
    ]


@pytest.mark.parametrize("mode", ["keep", "chain", "park"])
def test_granted_says_how_much_is_in_it(hand: Hand, mode: str) -> None:
    owner = with_posts(hand, mode=mode)
    if mode == "keep":
        owner.release()
    granted = hand.own(owner.session, lost=True)
    assert isinstance(granted, Granted)
    assert granted.out == 3


def test_a_session_that_has_ended_is_looked_at_for_its_posts_alone(hand: Hand) -> None:
    owner = with_posts(hand, mode="end")
    assert hand.due_at(owner.session) == 2_000
    hand.later(2_000)
    assert hand.journal.due()[2] == 1
    assert hand.own(owner.session) == Refused("ended", out=3)
    assert hand.due_at(owner.session) == 2_000, "should the one that was told so die"
    take(hand, owner)
    hand.journal.settle_out(owner.session, "holder", 3)
    assert hand.own(owner.session) == Refused("ended")
    assert hand.due_at(owner.session) is None


def test_a_commit_whose_reply_was_lost_posts_once(hand: Hand) -> None:
    owner = with_posts(hand)
    answer = hand.again(hand.said[-1])
    assert (answer[0], answer[6]) == (b"landed", 3)
    assert take(hand, owner) == [b"one", b"two", b"three"]


def test_an_outbox_that_nobody_has_costs_nothing(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", turn=None)
    assert not [name for name in hand.fields(owner.session) if name.startswith("out")]
    assert take(hand, owner) == []
    assert hand.journal.take_out(hand.candidate(), "holder", LEASE) == []
    assert hand.journal.settle_out(hand.candidate(), "holder", 1) == 0
