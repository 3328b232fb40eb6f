"""Ringing: only where nobody holds the lease, once, into the right queue; and again when a wake was lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import cast

import pytest
import redis

from orchestrator.core.names import SessionId
from orchestrator.envelope import RESUME, STEP
from orchestrator.ids import new_session, shards
from orchestrator.journal.keys import shard_key
from orchestrator.wake import AtomicWake
from tests.journal.test_ownership import busy
from tests.journal.world import QUEUE, Elsewhere, Hand, Owner, changed
from tests.servers import Server


def number(wake: bytes) -> int:
    return cast(int, json.loads(wake)["wake"]["number"])


def numbers(hand: Hand, queue: str = QUEUE) -> list[int]:
    return [number(wake) for wake in hand.wakes(queue)]


def rung(hand: Hand, session: SessionId) -> int:
    return int(hand.fields(session)["rung"])


def look(hand: Hand) -> int:
    """What the keeper does: how many it rang for."""
    _, more, taken = hand.journal.due()
    assert not more
    return taken


def key_names(hand: Hand) -> set[str]:
    return {key.decode() for key in cast("list[bytes]", hand.client.keys("*"))}


def looks_ahead(hand: Hand) -> list[int]:
    """When the keeper will look, in ms from now."""
    pipe = hand.client.pipeline(transaction=False)
    for shard in shards():
        pipe.zrange(shard_key(hand.journal.prefix, shard, "due"), 0, -1, withscores=True)
    return [int(score) - hand.now for found in pipe.execute() for _, score in found]


# Once, and only where nobody looks already --------------------------------------------------------------------------------


def test_a_thousand_messages_ring_once(hand: Hand) -> None:
    many = Hand(hand.client, waiting_limit=2_000)
    session = many.create()
    for _ in range(1_000):
        many.deliver(session)
    assert numbers(hand) == [1]
    assert rung(hand, session) == 1


def test_a_wake_that_was_heard_may_be_followed_by_another(hand: Hand) -> None:
    session = hand.asked()
    owner = hand.owner(session)
    assert rung(hand, session) == 0
    owner.use(owner.granted.heads[0].id)
    owner.commit(mode="park", turn=None)
    hand.deliver(session)
    assert numbers(hand) == [1, 2]
    assert rung(hand, session) == 2


def test_wake_numbers_of_a_queue_only_grow(hand: Hand) -> None:
    for place in range(12):
        hand.create(hand.message(), deployment=("green", "blue")[place % 2])
    assert numbers(hand, "orc.green") == numbers(hand, "orc.blue") == [1, 2, 3, 4, 5, 6]


def test_nothing_that_an_owner_does_rings_while_it_holds_the_lease(hand: Hand) -> None:
    owner = busy(hand)
    hand.client.delete(QUEUE)
    hand.deliver(owner.session)
    owner.commit(work=True)
    owner.append()
    owner.renew()
    owner.commit(mode="park")  # something is unread: it keeps the lease
    hand.later(5_000)
    look(hand)
    assert hand.wakes() == []
    assert hand.fields(owner.session)["token"] == owner.token


# The keeper ---------------------------------------------------------------------------------------------------------------


def test_a_wake_that_is_still_in_its_queue_is_left_alone(hand: Hand) -> None:
    sessions = [hand.asked() for _ in range(5)]
    for _ in range(10):
        hand.later(2_000)
        assert look(hand) == 0
    assert numbers(hand) == [1, 2, 3, 4, 5]
    assert [hand.due_at(session) for session in sessions] == [2_000] * 5


def test_a_lost_wake_is_noticed_while_the_queue_is_long(hand: Hand) -> None:
    lost, *waiting = [hand.asked() for _ in range(12)]
    hand.client.rpop(QUEUE)  # a worker took it, and died
    hand.later(2_000)
    assert look(hand) == 1
    assert numbers(hand) == list(range(2, 14))
    assert json.loads(json.loads(hand.wakes()[-1])["body"])[0][0] == lost
    assert [rung(hand, session) for session in waiting] == list(range(2, 13))
    hand.later(2_000)
    assert look(hand) == 0, "the new one is in the queue"


def test_a_wake_that_is_lost_twice_is_missed_sooner(hand: Hand) -> None:
    session = hand.asked()
    for ahead in (2_000, 250, 250, 250, 500, 1_000, 2_000, 2_000):
        hand.client.delete(QUEUE)
        assert hand.due_at(session) == ahead
        hand.later(ahead)
        assert look(hand) == 1
    hand.own(session)
    assert hand.fields(session)["rings"] == "0"


def test_a_wake_that_nobody_ever_heard_does_not_silence_the_session(hand: Hand) -> None:
    owner = busy(hand)
    hand.journal.disown(owner.session, owner.token)
    owner.commit(mode="park", turn=None)  # it was alive after all
    hand.client.delete(QUEUE)
    assert rung(hand, owner.session) > 0
    hand.later(60_000)
    look(hand)
    hand.deliver(owner.session)
    assert hand.due_at(owner.session) == 2_000
    hand.later(2_000)
    assert look(hand) == 1


def test_numbers_are_compared_as_numbers(hand: Hand) -> None:
    hand.client.hset("orc:wakes", QUEUE, 8)
    first, second = hand.asked(), hand.asked()
    hand.client.rpop(QUEUE)
    hand.later(2_000)
    assert look(hand) == 1
    assert (rung(hand, first), rung(hand, second)) == (11, 10)


def test_a_queue_that_was_deleted_is_filled_again(hand: Hand) -> None:
    for _ in range(3):
        hand.asked()
    hand.client.delete(QUEUE)
    hand.later(1_999)
    assert look(hand) == 0
    hand.later(1)
    assert look(hand) == 3
    assert sorted(numbers(hand)) == [4, 5, 6]


def test_messages_of_others_in_the_queue_do_not_stop_the_keeper(hand: Hand) -> None:
    session = hand.asked()
    hand.client.delete(QUEUE)
    hand.client.lpush(QUEUE, '{"body": "somebody else", "number": "7"}', "not even json")
    hand.later(2_000)
    assert look(hand) == 1
    assert rung(hand, session) == 2


def test_two_keepers_ring_once(hand: Hand) -> None:
    for _ in range(20):
        hand.asked()
    hand.client.delete(QUEUE)
    hand.later(2_000)
    taken: list[int] = []
    keepers = [threading.Thread(target=lambda: taken.append(hand.journal.due()[2])) for _ in range(4)]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.join()
    assert sum(taken) == 20
    assert len(hand.wakes()) == 20


def test_a_keeper_takes_no_more_at_once_than_it_was_told(hand: Hand) -> None:
    for _ in range(25):
        hand.asked()
    hand.client.delete(QUEUE)
    hand.later(2_000)
    answers = [hand.journal.due(limit=10)[1:] for _ in range(3)]
    assert answers == [(True, 10), (True, 10), (False, 5)]
    assert look(hand) == 0


def test_a_dead_owner_is_noticed_when_its_lease_is_over(hand: Hand) -> None:
    owner = busy(hand)
    hand.client.delete(QUEUE)
    hand.later(9_999)
    assert look(hand) == 0
    hand.later(1)
    assert look(hand) == 1
    assert b'"task":"orchestrator.step"' in hand.wakes()[0]
    assert b"turn_0/0" in hand.wakes()[0]
    assert rung(hand, owner.session) == number(hand.wakes()[0])


def test_while_leases_cannot_be_trusted_none_counts_as_over(hand: Hand) -> None:
    owner, waiting = busy(hand), hand.asked()
    hand.client.delete(QUEUE)
    hand.later(10_000)
    assert hand.journal.due(pause=True)[2] == 1, "who waits for no lease is rung for all the same"
    assert hand.due_at(owner.session) == 10_000
    assert hand.due_at(waiting) == 250, "a wake that was lost once is missed sooner"
    hand.later(10_000)
    hand.own(waiting)
    assert look(hand) == 1


def test_a_timer_rings_when_it_has_come(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", work=False, next_timer=hand.now + 60_000)
    hand.client.delete(QUEUE)
    hand.later(59_999)
    assert look(hand) == 0
    hand.later(1)
    assert look(hand) == 1


def _queued(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="chain")


def _owned(hand: Hand, owner: Owner) -> None:
    owner.commit()


def _idle(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="park", turn=None)


def _timer(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="park", work=False, next_timer=hand.now + 100_000)


def _timer_long_past(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="park", work=False, next_timer=1)


def _negative_timer(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="park", turn=None, next_timer=-5)


def _ended(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="end", turn=None)


def _gone(hand: Hand, owner: Owner) -> None:
    hand.client.delete(hand.journal.keys(owner.session).own)


def _too_new(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="chain", reads=2)


def _idle_with_a_message(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="park", turn=None)
    hand.deliver(owner.session)


def _idle_with_a_judged_message(hand: Hand, owner: Owner) -> None:
    hand.deliver(owner.session)
    owner.commit(mode="park", turn=None, judged=2)


def _disowned(hand: Hand, owner: Owner) -> None:
    hand.journal.disown(owner.session, owner.token)


STATES = [
    _queued, _owned, _idle, _timer, _timer_long_past, _negative_timer, _ended, _gone, _too_new, _idle_with_a_message,
    _idle_with_a_judged_message, _disowned,
]  # fmt: skip


@pytest.mark.parametrize("asks", [False, True], ids=["nobody asks", "a worker asks"])
@pytest.mark.parametrize("broker", ["here", "elsewhere"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__.lstrip("_"))
def test_whatever_a_session_is_the_keeper_does_not_look_at_it_all_the_time(
    hand: Hand, state: Callable[[Hand, Owner], None], broker: str, asks: bool
) -> None:
    hand = hand if broker == "here" else Hand(hand.client, Elsewhere())
    owner = busy(hand)
    state(hand, owner)
    for wait_ms, pause in ((0, False), (1, True), (2_000, False), (10_001, True), (10_001, False)):
        hand.later(wait_ms)
        hand.client.zadd(hand.journal.keys(owner.session).due, {owner.session: hand.now - 1})
        hand.client.delete(QUEUE)
        _, more, taken = hand.journal.due(pause=pause)
        assert not more
        assert taken <= 1
        assert all(ahead > 0 for ahead in looks_ahead(hand))
        if asks:
            hand.own(owner.session)
            assert all(ahead > 0 for ahead in looks_ahead(hand))


@pytest.mark.parametrize("state", [_queued, _timer_long_past, _idle_with_a_message, _disowned])
def test_whatever_a_session_is_somebody_looks_in_time(hand: Hand, state: Callable[[Hand, Owner], None]) -> None:
    """Invariant 19, with every wake lost."""
    owner = busy(hand)
    state(hand, owner)
    for _ in range(5):
        hand.client.delete(QUEUE)
        ahead = hand.due_at(owner.session)
        assert ahead is not None
        hand.later(max(ahead, 0))
        assert ahead <= 10_000
        assert look(hand) == 1


def test_a_worker_that_is_told_later_is_not_rung_for_meanwhile(hand: Hand) -> None:
    owner = busy(hand)
    hand.later(10_000)
    hand.owner(owner.session)
    hand.later(10_000)
    hand.own(owner.session)
    hand.client.delete(QUEUE)
    hand.later(999)
    assert look(hand) == 0
    hand.later(1)
    assert look(hand) == 1


def test_a_delivery_does_not_put_off_a_look_that_is_due_sooner(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", work=False, next_timer=hand.now + 500)
    hand.deliver(owner.session)
    assert hand.due_at(owner.session) == 500


# Another broker -----------------------------------------------------------------------------------------------------------


def test_with_another_broker_the_caller_publishes_after_the_script(hand: Hand) -> None:
    wake = Elsewhere()
    hand = Hand(hand.client, wake)
    first, second = hand.message(), hand.message()
    session = hand.create(first, deployment="green")
    assert wake.published == [(RESUME, "green", session, first.id)]
    hand.deliver(session)
    assert len(wake.published) == 1, "it rings already"
    owner = hand.owner(session)
    owner.use(*(head.id for head in owner.granted.heads))
    owner.commit(mode="chain", what="turn_0/1")
    owner = hand.owner(session)
    owner.release()
    owner = hand.owner(session)
    hand.journal.disown(session, owner.token, what="turn_0/1")
    assert wake.published[1:] == [(STEP, "green", session, "turn_0/1")] * 3
    owner = hand.owner(session)
    owner.commit(mode="park", turn=None)
    hand.deliver(session, second)
    assert wake.published[4:] == [(RESUME, "green", session, second.id)]
    assert {name.partition(":")[0] for name in key_names(hand)} == {"orc"}
    assert hand.client.exists("orc:wakes", QUEUE) == 0


def test_with_another_broker_the_keeper_rings_more_and_more_seldom(hand: Hand) -> None:
    wake = Elsewhere()
    hand = Hand(hand.client, wake)
    hand.asked()
    begun, rings = hand.now, []
    while hand.now < begun + 250_000:
        hand.later(1_000)
        if look(hand):
            rings.append((hand.now - begun) // 1_000)
    assert [after - before for before, after in zip([0, *rings], rings, strict=False)] == [
        2,
        2,
        4,
        8,
        16,
        32,
        60,
        60,
        60,
    ]
    assert len(wake.published) == 1 + len(rings)


def test_with_another_broker_a_worker_that_has_looked_begins_it_anew(hand: Hand) -> None:
    hand = Hand(hand.client, Elsewhere())
    session = hand.asked()
    for _ in range(200):
        hand.later(500)
        look(hand)
    owner = hand.owner(session)
    owner.commit(mode="chain")
    assert hand.due_at(session) == 2_000
    hand.later(2_000)
    assert look(hand) == 1
    assert hand.due_at(session) == 2_000


def test_with_another_broker_many_keepers_publish_once(hand: Hand) -> None:
    wake = Elsewhere()
    hand = Hand(hand.client, wake)
    sessions = [hand.asked() for _ in range(3)]
    hand.later(2_000)
    assert [look(hand), look(hand)] == [3, 0]
    assert sorted(name for _, _, name, _ in wake.published[3:]) == sorted(sessions)


# Where to ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("broker_db", "journal_db"), [(3, 0), (0, 3), (5, 3)])
def test_wakes_go_into_the_brokers_database(server: Server, hand: Hand, broker_db: int, journal_db: int) -> None:
    base = server.url.rpartition("/")[0]
    with (
        redis.Redis.from_url(f"{base}/{journal_db}") as journal,
        redis.Redis.from_url(f"{base}/{broker_db}") as broker,
    ):
        hand = Hand(journal, AtomicWake(broker_db=broker_db, journal_db=journal_db))

        def pushed() -> list[int]:
            found = cast("list[bytes]", broker.lrange(QUEUE, 0, -1))
            broker.delete(QUEUE)
            return [number(wake) for wake in found]

        session = hand.asked()
        assert pushed() == [1]
        owner = hand.owner(session)
        owner.use(owner.granted.heads[0].id)
        owner.commit(mode="chain")
        assert pushed() == [2]
        owner = hand.owner(session)
        owner.release()
        assert pushed() == [3]
        owner = hand.owner(session)
        hand.journal.disown(session, owner.token)
        assert pushed() == [4]
        owner = hand.owner(session)
        owner.commit(mode="park", turn=None)
        hand.deliver(session)
        hand.later(2_000)
        assert look(hand) == 0, "it sees that the wake is in the other database"
        assert pushed() == [5]
        hand.later(2_000)
        assert look(hand) == 1
        assert pushed() == [6]
        assert broker.keys("*") == [], "nothing of the journal is there"
        assert QUEUE.encode() not in cast("list[bytes]", journal.keys("*"))


def test_keys_carry_the_prefix_and_the_queue_its_own(hand: Hand) -> None:
    hand = Hand(hand.client, AtomicWake(prefix="team", key_prefix="host-"), prefix="team")
    session = hand.asked()
    owner = hand.owner(session)
    owner.use(owner.granted.heads[0].id, tidy=True, records=(("c", b"r"),), state=(("s", b"v"),))
    hand.deliver(session)
    owner.commit(mode="chain", judged=2)
    hand.journal.heartbeat("default", "worker00")
    hand.later(2_000)
    assert look(hand) == 0
    names = key_names(hand)
    assert "host-orc.default" in names
    assert all(name.startswith("team:") for name in names - {"host-orc.default"})
    assert json.loads(hand.wakes("host-orc.default")[0])["properties"]["delivery_info"]["routing_key"] == QUEUE
    hand.client.delete("host-orc.default")
    hand.later(2_000)
    assert look(hand) == 1
    hand.own(session)


def test_the_keys_of_a_session_share_its_shard(hand: Hand) -> None:
    shard = "0Z"
    session = new_session(hand.now, shard)
    hand.create(hand.message(), session=session)
    names = key_names(hand) - {"orc:wakes", QUEUE}
    assert all(name.startswith("orc:{0Z}:") for name in names)


def test_every_shard_is_looked_at(hand: Hand) -> None:
    for shard in shards():
        hand.create(hand.message(), session=new_session(hand.now, shard))
    hand.client.delete(QUEUE)
    hand.later(2_000)
    assert look(hand) == 64


# Beats ---------------------------------------------------------------------------------------------------------------------


def test_a_worker_beats_and_leaves(hand: Hand) -> None:
    begun = hand.now
    assert hand.journal.heartbeat("green", "worker00", digest="d1") == begun
    hand.later(5_000)
    hand.journal.heartbeat("green", "worker00", digest="d2")
    hand.journal.heartbeat("green", "worker01", digest="d2")
    assert hand.reads.workers("green") == {"worker00": hand.now, "worker01": hand.now}
    known = hand.reads.deployments()["green"]
    assert (known["rank"], known["digest"]) == (begun, "d2"), "the rank is the first beat"
    hand.journal.heartbeat("green", "worker00", leave=True)
    assert hand.reads.workers("green") == {"worker01": hand.now}


def test_a_worker_without_a_digest_beats_as_well(hand: Hand) -> None:
    hand.journal.heartbeat("green", "worker00")
    known = hand.reads.deployments()["green"]
    assert (known["rank"], known["reads"], known["digest"]) == (hand.now, 1, "")


def test_those_that_never_said_goodbye_are_forgotten_by_the_next_newcomer(hand: Hand) -> None:
    for place in range(5):
        hand.journal.heartbeat("green", f"dead000{place}")
    hand.later(3_600_001)
    hand.journal.heartbeat("green", "worker00")
    assert set(hand.reads.workers("green")) == {"worker00"}


def test_looking_changes_nothing_where_nothing_is_due(hand: Hand) -> None:
    busy(hand)
    before = hand.everything()
    look(hand)
    assert changed(before, hand.everything()) == set()
