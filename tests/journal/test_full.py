"""The server's memory is full: nothing new is taken in, nothing is half written, and what was begun can end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.errors import JournalFull
from orchestrator.ids import new_session
from orchestrator.journal import Admitted, Appended, Done, Granted
from orchestrator.journal.stubs import stub
from tests.journal.test_ownership import busy
from tests.journal.world import CHANNEL, HERE, LABEL, QUEUE, Hand, a_delta, an_event, changed, first_id


@contextmanager
def full(hand: Hand) -> Iterator[None]:
    """No memory is left meanwhile."""
    hand.journal.load_scripts()
    hand.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        hand.client.config_set("maxmemory", 0)


def test_admission_is_refused_whole(hand: Hand) -> None:
    session, message, fresh = hand.create(), hand.message(), new_session(hand.now)
    before = hand.everything()
    with full(hand):
        with pytest.raises(JournalFull):
            hand.create(hand.message(), session=fresh)
        with pytest.raises(JournalFull):
            hand.deliver(session, message)
        for delivery in (message, hand.control("reset")):
            with pytest.raises(JournalFull):
                hand.arrive(delivery)
        with pytest.raises(JournalFull):
            hand.journal.reserve(CHANNEL, "webhook-1")
        assert changed(before, hand.everything()) == set()
        with pytest.raises(JournalFull):
            hand.journal.take_address(session, CHANNEL, HERE)
        assert hand.journal.resolve(CHANNEL, HERE) is None
    assert isinstance(hand.deliver(session, message), Admitted)


def test_deltas_are_refused_whole_and_only_the_stream_lacks_them(hand: Hand) -> None:
    owner, other = busy(hand), busy(hand)
    commands = []
    for one in (owner, other):
        lines = [a_delta(hand.now, "some text")]
        commands.append(
            hand.journal.append_command(one.session, one.token, one.position.events, first_id(lines), lines)
        )
    before = hand.everything()
    with full(hand):
        with pytest.raises(JournalFull):
            owner.append()
        assert hand.journal.append_many(commands) == [None, None]
        assert changed(before, hand.everything()) == set()
        assert isinstance(owner.commit(), Done)
    assert hand.journal.append_many(commands)[1] == Appended(2, 1)


def test_work_that_was_begun_can_end(hand: Hand) -> None:
    waiting, owner, dead, idle = hand.asked(), busy(hand), busy(hand), busy(hand)
    delta = a_delta(hand.now, "some text")
    owner.commit(lines=[delta])
    place = owner.position.events - 1
    with full(hand):
        assert isinstance(hand.own(waiting), Granted)
        assert owner.renew() == "done"
        assert isinstance(owner.commit(rows=5, lines=[an_event(hand.now, 1)] * 5), Done)
        assert hand.journal.prune(owner.session, 1, 0, [(place, stub(delta.encode()) or "")]) == 1
        assert isinstance(owner.commit(mode="chain"), Done)
        assert hand.journal.disown(dead.session, dead.token)
        idle.release()
        assert hand.journal.heartbeat(LABEL, "worker00") == hand.now
        hand.client.delete(QUEUE)
        hand.later(2_000)
        assert hand.journal.due()[2] == 3
        assert isinstance(hand.own(dead.session), Granted)


def test_scripts_that_the_server_does_not_know_yet_can_be_given_to_it_all_the_same(hand: Hand) -> None:
    owner = busy(hand)
    with full(hand):
        hand.client.script_flush()
        assert isinstance(owner.commit(), Done)
        hand.client.script_flush()
        with pytest.raises(JournalFull):
            owner.append()
