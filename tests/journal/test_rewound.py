"""The store loses its tail: whoever is ahead of it is told so, whatever token it has, and can go on from what is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.journal import Behind, Done, Granted, Refused, Superseded
from tests.journal.test_ownership import busy
from tests.journal.world import Hand, Owner, changed, photo, rewind


def _one_commit(owner: Owner) -> None:
    owner.commit()


def _only_a_fact(owner: Owner) -> None:
    owner.commit(lines=[], rows=0)


def _only_a_row(owner: Owner) -> None:
    owner.commit(lines=[], facts=0)


def _only_deltas(owner: Owner) -> None:
    owner.append(3)


def _many_commits(owner: Owner) -> None:
    for _ in range(11):
        owner.commit()
        owner.append()


LOST = [_one_commit, _only_a_fact, _only_a_row, _only_deltas, _many_commits]
each_loss = pytest.mark.parametrize("write", LOST, ids=lambda write: write.__name__.lstrip("_"))
Write = Callable[[Owner], None]


@each_loss
@pytest.mark.parametrize("before_writes", [0, 8])
def test_a_commit_ahead_of_the_store_is_behind(hand: Hand, write: Write, before_writes: int) -> None:
    owner = busy(hand)
    for _ in range(before_writes):
        owner.commit()
    kept, at = photo(hand.client), owner.position
    write(owner)
    rewind(hand.client, kept)
    before = hand.everything()
    assert owner.commit() == Behind(at.seq, at.events)
    assert changed(before, hand.everything()) == set()


def test_an_append_ahead_of_the_store_is_behind(hand: Hand) -> None:
    owner = busy(hand)
    kept, at = photo(hand.client), owner.position
    owner.append(2)
    rewind(hand.client, kept)
    before = hand.everything()
    assert owner.append() == Behind(at.seq, at.events)
    assert changed(before, hand.everything()) == set()


@each_loss
def test_who_is_ahead_is_behind_also_where_another_owns_the_session(hand: Hand, write: Write) -> None:
    owner = busy(hand)
    owner.release()
    kept = photo(hand.client)
    late = hand.owner(owner.session)
    at = late.position
    write(late)
    rewind(hand.client, kept)
    other = hand.owner(owner.session)
    assert other.token != late.token
    assert late.commit() == Behind(at.seq, at.events)
    if late.position.events > at.events:
        assert late.append() == Behind(at.seq, at.events)
    other.commit()


def test_once_the_new_owner_is_as_far_the_old_one_is_superseded(hand: Hand) -> None:
    owner = busy(hand)
    owner.release()
    kept = photo(hand.client)
    late = hand.owner(owner.session)
    late.commit()
    rewind(hand.client, kept)
    other = hand.owner(owner.session)
    other.commit()
    assert late.position == other.position
    assert late.commit() == Superseded(), "equal places in two timelines: the token tells them apart"
    assert late.append() == Superseded()


def test_the_owner_takes_the_session_again_and_goes_on_from_what_is_there(hand: Hand) -> None:
    owner = busy(hand)
    kept, at = photo(hand.client), owner.position
    for _ in range(3):
        owner.commit()
    rewind(hand.client, kept)
    assert isinstance(owner.commit(), Behind)
    again = hand.owner(owner.session, instead=owner.token, lost=True)
    assert again.granted.position == at
    assert again.granted.attempt == 0, "nobody died"
    assert again.granted.snapshot.at == at
    assert owner.commit() in (Superseded(), Behind(at.seq, at.events))
    assert isinstance(again.commit(), Done)


def test_a_session_that_is_idle_again_is_granted_to_who_asks_what_was_lost(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", turn=None)
    kept = photo(hand.client)
    hand.deliver(owner.session)
    late = hand.owner(owner.session)
    late.use(late.granted.heads[0].id)
    rewind(hand.client, kept)
    assert isinstance(late.commit(), Behind)
    assert hand.own(owner.session) == Refused("idle")
    assert isinstance(hand.own(owner.session, instead=late.token, lost=True), Granted)


def test_asking_what_was_lost_takes_nothing_from_an_owner_that_lives(hand: Hand) -> None:
    owner = busy(hand)
    assert hand.own(owner.session, instead="worker00.x", lost=True) == Refused("leased", 10_000)
    assert hand.own(owner.session, instead="", lost=True) == Refused("leased", 10_000)
    assert isinstance(owner.commit(), Done)


def test_asking_twice_what_was_lost_is_asking_once(hand: Hand) -> None:
    owner = busy(hand)
    token = hand.token()
    first = hand.own(owner.session, token, instead=owner.token, lost=True)
    before = hand.everything()
    assert hand.own(owner.session, token, instead=owner.token, lost=True) == first
    assert changed(before, hand.everything()) == set()


def test_a_lost_renewal_is_no_loss(hand: Hand) -> None:
    owner = busy(hand)
    kept = photo(hand.client)
    hand.later(3_000)
    owner.renew()
    rewind(hand.client, kept)
    assert owner.renew() == "done"
    assert isinstance(owner.commit(), Done)


def test_a_lost_grant_leaves_its_owner_superseded_and_the_session_free(hand: Hand) -> None:
    session = hand.asked()
    kept = photo(hand.client)
    owner = hand.owner(session)
    rewind(hand.client, kept)
    assert owner.renew() == "superseded"
    assert owner.commit() == Superseded()
    assert isinstance(hand.own(session), Granted)


def test_a_generation_ahead_of_the_store_is_behind(hand: Hand) -> None:
    owner = busy(hand)
    keys = hand.journal.keys(owner.session)
    hand.client.hset(keys.own, "gen", 9)
    owner.position = type(owner.position)(owner.position.seq, owner.position.events, 10, 0)
    assert isinstance(owner.commit(), Behind)
    owner.position = type(owner.position)(owner.position.seq, owner.position.events, 8, 100)
    assert owner.commit() == Superseded(), "rows of another generation say nothing"


def test_a_delivery_that_was_lost_is_accepted_again(hand: Hand) -> None:
    session = hand.create()
    message = hand.message()
    kept = photo(hand.client)
    hand.deliver(session, message)
    rewind(hand.client, kept)
    assert not hand.deliver(session, message).again
