"""What a session costs: small values in a packed hash, and commits that do not grow with what is there already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
import redis

from orchestrator.core.names import Token
from orchestrator.ids import ulid
from orchestrator.journal import Done
from orchestrator.journal.stubs import stub
from tests.conftest import MakeServer
from tests.journal.world import Hand, Owner, a_delta, an_event, size
from tests.servers import Kind, wait_for

LONGEST = "abcdefghijklmnopqrstuvwxyz.0123456789_-abcdefghi"
"""An agent's name or a label may have 48 characters."""


def look_at_the_hash(hand: Hand, owner: Owner) -> None:
    own = hand.journal.keys(owner.session).own
    assert cast("dict[bytes, bytes]", hand.client.hgetall(own))
    too_long = {name: value for name, value in hand.fields(owner.session).items() if len(value.encode()) > 64}
    assert too_long == {}
    assert hand.client.object("ENCODING", own) == b"listpack"


def test_the_own_hash_stays_packed_over_a_long_life(hand: Hand) -> None:
    first = hand.message()
    session = hand.create(first, agent=LONGEST, deployment=LONGEST, parent="ses_" + "Z" * 28, root="ses_" + "Z" * 28)
    token = Token(f"worker00zzzzzz.{ulid(hand.now)}")
    owner = hand.owner(session, token=token)
    look_at_the_hash(hand, owner)
    # As far into its life as anybody will ever come.
    far: Mapping[Any, Any] = {
        "seq": 10**12,
        "events": 10**12,
        "rows": 10**12,
        "n": 10**12,
        "epoch": 10**12,
        "fact_base": 10**12,
    }
    hand.client.hset(hand.journal.keys(session).own, mapping=far)
    owner.position = type(owner.position)(10**12, 10**12, 0, 10**12)
    assert isinstance(owner.commit(turn=123_456_789, fact_base=10**12, judged=10**12), Done)
    look_at_the_hash(hand, owner)
    hand.journal.disown(session, token, fault=True)
    look_at_the_hash(hand, owner)
    hand.later(20_000)
    owner = hand.owner(session, token=Token(f"worker01zzzzzz.{ulid(hand.now)}"))
    look_at_the_hash(hand, owner)
    hand.deliver(session, hand.control())
    hand.journal.prune(session, 10**12, 0, [])
    owner.release()
    look_at_the_hash(hand, owner)
    owner = hand.owner(session)
    assert isinstance(
        owner.commit(
            mode="park", judged=10**12 + 1, next_timer=hand.now + 10**10, work=False, new_gen=10**6, out=(b"p",) * 3
        ),
        Done,
    )
    look_at_the_hash(hand, owner)
    hand.client.hset(hand.journal.keys(session).own, "out_base", 10**12)
    hand.journal.take_out(session, token, 10**6)
    look_at_the_hash(hand, owner)
    hand.journal.settle_out(session, token, 1, retry_in_ms=10**6)
    look_at_the_hash(hand, owner)
    hand.reset(session)
    look_at_the_hash(hand, owner)
    owner = hand.owner(session, token=token)
    assert isinstance(owner.commit(mode="end", turn=None, judged=int(hand.fields(session)["n"])), Done)
    look_at_the_hash(hand, owner)
    hand.journal._erase(session, "begin")
    look_at_the_hash(hand, owner)


def test_numbers_stay_whole_however_large_they_are(hand: Hand) -> None:
    owner = hand.owner(hand.asked())
    far: Mapping[Any, Any] = {"seq": 10**14, "events": 10**15, "rows": 2**52, "n": 2**52}
    hand.client.hset(hand.journal.keys(owner.session).own, mapping=far)
    owner.position = type(owner.position)(10**14, 10**15, 0, 2**52)
    assert isinstance(owner.commit(), Done)
    assert hand.deliver(owner.session).n == 2**52 + 1
    fields = hand.fields(owner.session)
    assert (fields["seq"], fields["events"], fields["rows"]) == (str(10**14 + 1), str(10**15 + 1), str(2**52 + 1))


def busy_with(hand: Hand, rows: int) -> Owner:
    """An owner with a history, with messages that wait, and with results that were settled before."""
    many = Hand(hand.client, waiting_limit=10_000)
    many.now = hand.now
    owner = many.owner(many.asked())
    owner.commit(rows=rows, facts=rows, lines=[an_event(hand.now, place) for place in range(rows)])
    owner.commit(records=tuple((f"call_0_0_{place}", b"r" * 100) for place in range(rows)))
    for _ in range(rows):
        many.deliver(owner.session)
    owner.commit(judged=int(many.fields(owner.session)["n"]))
    return owner


def test_a_commands_bytes_do_not_grow_with_what_is_there_already(hand: Hand) -> None:
    sizes = []
    for rows in (10, 2_000):
        owner = busy_with(hand, rows)
        owner.commit(records=(("call_0_1_0", b"r" * 500),))
        sizes.append(size(owner.hand.said[-1]))
    assert 0 <= sizes[1] - sizes[0] <= 40, "only numbers have more digits"


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_what_a_commit_writes_to_disk_does_not_grow_with_what_is_there_already(
    make_server: MakeServer, kind: Kind
) -> None:
    server = make_server(kind, "--auto-aof-rewrite-percentage", "0", appendonly=True, appendfsync="no")
    with redis.Redis.from_url(server.url) as client:
        hand = Hand(client)

        def on_disk() -> int:
            wait_for(lambda: client.info("persistence")["aof_buffer_length"] == 0)
            return int(client.info("persistence")["aof_current_size"])

        grown = []
        for rows in (10, 2_000):
            owner = busy_with(hand, rows)
            before = on_disk()
            owner.commit(records=(("call_0_1_0", b"r" * 500),))
            owner.append()
            owner.commit(mode="chain")
            grown.append(on_disk() - before)
        assert grown[0] > 1_000
        assert abs(grown[1] - grown[0]) <= 0.02 * grown[0]


def test_a_stub_is_a_seventh_of_a_delta() -> None:
    line = a_delta(1_800_000_000_000, "some text")
    assert len(stub(line.encode()) or "") <= 35
