"""Writing: all of it or nothing, and what becomes of the lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.event import Outcome, pack_outcome
from orchestrator.core.names import CallId
from orchestrator.core.snapshot import Position
from orchestrator.journal import Behind, Done, News, Refused, Superseded
from tests.journal.test_ownership import busy
from tests.journal.world import Hand, Owner, an_event, changed, listening, photo, rewind


def test_a_commit_writes_everything_it_was_given(hand: Hand) -> None:
    owner = busy(hand)
    lines = [an_event(hand.now, 1), an_event(hand.now, 2)]
    owner.commit(lines=lines, records=(("call_0_0_0", b"a"), ("call_0_0_1", b"b")), state=(("slot", b"1"),))
    owner.commit(folded=("call_0_0_0",), state=(("slot", b"2"), ("other", b"3")), rows=2, facts=2)
    keys, client = hand.journal.keys(owner.session), hand.client
    assert client.lrange(keys.fact, 0, -1) == [b"fact 0", b"fact 1", b"fact 2", b"fact 3"]
    assert client.lrange(keys.hist(0), 0, -1) == [b"row 0", b"row 1", b"row 2", b"row 3"]
    assert hand.reads.events(owner.session, 1)[:2] == [line.encode() for line in lines]
    assert client.hgetall(keys.rec) == {b"call_0_0_1": b"b"}
    assert hand.reads.state(owner.session) == {"slot": b"2", "other": b"3"}
    assert hand.reads.snapshot(owner.session) == owner.snapshot
    fields = hand.fields(owner.session)
    assert (fields["seq"], fields["events"], fields["rows"]) == ("4", str(client.llen(keys.evt)), "4")
    assert fields["attempt_key"] == "turn_0/0"


def test_a_reader_is_told_how_long_the_stream_is(hand: Hand) -> None:
    owner = busy(hand)
    with listening(hand.client, hand.journal.keys(owner.session).tail) as heard:
        owner.commit(lines=["{}", "{}"])
        owner.commit(lines=[])
        owner.append(3)
    assert heard == [f"{owner.session} 3".encode(), f"{owner.session} 6".encode()]


def test_old_facts_are_cut_off_where_the_commit_says(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(facts=10)
    facts = hand.journal.keys(owner.session).fact
    owner.commit(fact_base=9)
    assert hand.client.lrange(facts, 0, -1) == [b"fact 9", b"fact 10", b"fact 11"]
    owner.commit(fact_base=9)
    assert hand.client.lrange(facts, 0, 0) == [b"fact 9"]
    owner.commit(fact_base=12)
    assert hand.client.lrange(facts, 0, -1) == [b"fact 12", b"fact 13"]
    owner.release()
    assert hand.owner(owner.session).granted.fact_base == 12


def test_a_chain_gives_the_session_up_and_rings(hand: Hand) -> None:
    owner = busy(hand)
    hand.client.delete("orc.default")
    answer = owner.commit(mode="chain", what="turn_0/1")
    assert isinstance(answer, Done)
    assert not answer.kept
    (wake,) = hand.wakes()
    assert b'"task":"orchestrator.step"' in wake
    assert b"turn_0/1" in wake
    fields = hand.fields(owner.session)
    assert (fields["token"], fields["lease"], fields["left"]) == ("", "0", owner.token)
    assert hand.due_at(owner.session) == 2_000


def test_a_park_gives_the_session_up_and_rings_for_nobody(hand: Hand) -> None:
    owner = busy(hand)
    hand.client.delete("orc.default")
    answer = owner.commit(mode="park", turn=None)
    assert isinstance(answer, Done)
    assert not answer.kept
    assert hand.wakes() == []
    assert hand.due_at(owner.session) is None
    assert (hand.fields(owner.session)["token"], hand.fields(owner.session)["lease"]) == ("", "0")


def test_a_park_before_something_unread_keeps_the_lease_and_writes_the_rest(hand: Hand) -> None:
    owner = busy(hand)
    late = hand.message()
    hand.deliver(owner.session, late)
    hand.later(3_000)
    hand.client.delete("orc.default")
    answer = owner.commit(mode="park", turn=None)
    assert isinstance(answer, Done)
    assert answer.kept
    assert [head.id for head in answer.heads] == [late.id]
    assert hand.wakes() == []
    fields = hand.fields(owner.session)
    assert (fields["token"], fields["turn"], fields["seq"]) == (owner.token, "", "2")
    assert int(fields["lease"]) == hand.now + 10_000
    assert hand.due_at(owner.session) == 10_000
    assert isinstance(owner.commit(consumed=(late.id,), used=1, judged=2), Done)


def test_without_an_open_turn_all_that_waits_is_handed_back_together(hand: Hand) -> None:
    owner = busy(hand)
    hand.deliver(owner.session)
    owner.commit(judged=2)
    hand.deliver(owner.session)
    during = owner.commit(mode="park", judged=2)
    assert isinstance(during, Done)
    assert [head.n for head in during.heads] == [3]
    between = owner.commit(mode="park", judged=2, turn=None)
    assert isinstance(between, Done)
    assert [head.n for head in between.heads] == [2, 3]


@pytest.mark.parametrize("place", ["seq", "events", "gen", "rows"])
@pytest.mark.parametrize("believed", [9, 11])
def test_a_commit_is_done_only_where_it_believes_to_be(hand: Hand, place: str, believed: int) -> None:
    owner = busy(hand)
    keys = hand.journal.keys(owner.session)
    hand.client.hset(keys.own, mapping={"seq": 10, "events": 10, "gen": 10, "rows": 10})
    owner.position = replace(Position(10, 10, 10, 10), **{place: believed})  # type: ignore[arg-type]  # a number
    before = hand.everything()
    assert owner.commit() == (Superseded() if believed < 10 else Behind(10, 10))
    assert changed(before, hand.everything()) == set()
    owner.position = Position(10, 10, 10, 10)
    assert isinstance(owner.commit(), Done)


def test_a_park_with_work_that_only_a_newer_worker_can_do_is_looked_at_again(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", work=True, reads=2)
    assert hand.due_at(owner.session) == 5_000


def test_a_commit_that_does_not_know_the_last_cancel_is_refused_whole(hand: Hand) -> None:
    owner = busy(hand)
    cancel = hand.control()
    hand.deliver(owner.session, cancel)
    before = hand.everything()
    answer = owner.commit(mode="park", turn=None, conditional=True)
    assert isinstance(answer, News)
    assert [head.id for head in answer.heads] == [cancel.id]
    assert changed(before, hand.everything()) == set()
    done = owner.commit(mode="park", turn=None, conditional=True, judged=2, consumed=(cancel.id,))
    assert isinstance(done, Done)
    assert not done.kept


def test_a_message_is_no_reason_to_refuse_the_end_of_a_turn(hand: Hand) -> None:
    owner = busy(hand)
    for _ in range(11):  # 9 and 10 are numbers, not texts
        hand.deliver(owner.session)
    assert isinstance(owner.commit(turn=None, conditional=True), Done)


def test_a_cancel_is_looked_for_by_number(hand: Hand) -> None:
    owner = busy(hand)
    for _ in range(8):
        hand.deliver(owner.session)
    cancel = hand.control()
    assert hand.deliver(owner.session, cancel).n == 10
    assert isinstance(owner.commit(turn=None, conditional=True, judged=9), News)
    assert isinstance(owner.commit(turn=None, conditional=True, judged=10), Done)


def test_an_end_of_our_own_making_gives_way_to_what_has_come_in(hand: Hand) -> None:
    owner = busy(hand)
    hand.deliver(owner.session)
    before = hand.everything()
    answer = owner.commit(mode="end", turn=None)
    assert isinstance(answer, News)
    assert len(answer.heads) == 1
    assert changed(before, hand.everything()) == set()


def test_after_the_end_nobody_looks_and_nothing_is_leased(hand: Hand) -> None:
    owner = busy(hand)
    hand.deliver(owner.session)
    hand.client.delete("orc.default")
    answer = owner.commit(mode="end", turn=None, judged=2)
    assert isinstance(answer, Done)
    assert not answer.kept
    fields = hand.fields(owner.session)
    assert (fields["status"], fields["token"], fields["lease"]) == ("ended", "", "0")
    assert hand.due_at(owner.session) is None
    assert hand.wakes() == []
    assert hand.own(owner.session) == Refused("ended")
    hand.client.zadd(hand.journal.keys(owner.session).due, {owner.session: hand.now})
    assert hand.journal.due()[2] == 0
    assert hand.due_at(owner.session) is None


def test_the_first_look_at_a_stream_that_is_to_be_tidied_is_not_put_off(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(tidy=True)
    hand.later(400_000)
    owner.commit(tidy=True)
    hand.later(200_000)
    assert hand.journal.tidy(hand.now) == [owner.session]


def test_three_thousand_of_everything_fit_into_one_commit(hand: Hand) -> None:
    session = hand.create()
    waiting = [hand.message() for _ in range(1_100)]
    many = Hand(hand.client, waiting_limit=5_000)
    for message in waiting:
        many.deliver(session, message)
    owner = hand.owner(session)
    lines = [an_event(hand.now, place) for place in range(3_000)]
    calls = tuple((f"call_0_0_{place}", b"%d" % place) for place in range(3_001))
    slots = tuple((f"slot {place}", b"%d" % place) for place in range(2_999))
    answer = owner.commit(
        facts=3_000, rows=3_002, lines=lines, records=calls, state=slots,
        consumed=tuple(message.id for message in waiting), used=len(waiting), judged=1_100,
    )  # fmt: skip
    assert isinstance(answer, Done)
    keys, client = hand.journal.keys(session), hand.client
    assert client.lrange(keys.fact, 0, -1) == [b"fact %d" % place for place in range(3_000)]
    assert client.lrange(keys.hist(0), 0, -1) == [b"row %d" % place for place in range(3_002)]
    assert hand.reads.events(session, 0, 5_000) == [line.encode() for line in lines]
    assert client.hgetall(keys.rec) == {name.encode(): value for name, value in calls}
    assert hand.reads.state(session) == dict(slots)
    assert client.exists(keys.inbox, keys.box) == 0
    assert hand.fields(session)["waiting"] == "0"
    owner.commit(folded=tuple(name for name, _ in calls))
    assert client.exists(keys.rec) == 0
    assert owner.append(3_000).events == owner.position.events == 6_001


def test_a_row_of_two_megabytes_comes_back_as_it_was(hand: Hand) -> None:
    owner = busy(hand)
    big = bytes(range(256)) * 8_192
    owner.commit(owner.writes(records=(("call_0_0_0", big),)))
    assert hand.client.hget(hand.journal.keys(owner.session).rec, "call_0_0_0") == big


def test_bytes_that_look_like_anything_are_only_bytes(hand: Hand) -> None:
    owner = busy(hand)
    odd = ("", "0", "-1", "nan", "%s", "@KEY@", "'); error('", "\r\n$3\r\n")
    owner.commit(state=tuple((f"slot{name}", name.encode()) for name in odd), what="@AT@ %1", attempt_key="")
    assert hand.reads.state(owner.session) == {f"slot{name}": name.encode() for name in odd}


def test_recorded_results_are_read_by_their_call(hand: Hand) -> None:
    owner = busy(hand)
    outcome = Outcome("completed", {"n": 10**20})
    owner.commit(records=(("call_0_0_0", pack_outcome(outcome)),))
    assert hand.reads.records(owner.session, [CallId("call_0_0_0"), CallId("call_0_0_1")]) == {"call_0_0_0": outcome}


@pytest.mark.parametrize("mode", ["keep", "chain", "park", "end"])
def test_an_append_that_ran_on_makes_an_older_commit_fail(hand: Hand, mode: str) -> None:
    owner = busy(hand)
    writes = owner.writes(mode=mode, turn=None)
    owner.append()
    before = hand.everything()
    hand.journal.commit(owner.session, owner.token, writes)
    assert changed(before, hand.everything()) == set()


# A new generation of the history -----------------------------------------------------------------------------------------


def history(hand: Hand, owner: Owner, gen: int) -> list[bytes]:
    return hand.reads.rows(owner.session, gen, 0)


def test_the_rows_of_a_new_generation_are_its_first_and_the_one_before_is_let_go(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(rows=5)
    assert len(history(hand, owner, 0)) == 6
    assert isinstance(owner.commit(new_gen=1, rows=2), Done)
    assert (history(hand, owner, 0), history(hand, owner, 1)) == ([], [b"row 0", b"row 1"])
    assert (hand.fields(owner.session)["gen"], hand.fields(owner.session)["rows"]) == ("1", "2")
    assert isinstance(owner.commit(rows=1), Done)
    assert history(hand, owner, 1) == [b"row 0", b"row 1", b"row 2"]
    owner.release()
    assert hand.owner(owner.session).granted.position == owner.position


def test_a_generation_may_begin_empty(hand: Hand) -> None:
    owner = busy(hand)
    assert isinstance(owner.commit(new_gen=1, rows=0), Done)
    assert not [key for key in hand.everything() if b"}:hist:" in key]
    assert isinstance(owner.commit(rows=1), Done)
    assert history(hand, owner, 1) == [b"row 0"]


def test_who_is_of_the_generation_before_is_refused(hand: Hand) -> None:
    owner = busy(hand)
    late = owner.writes(rows=3)
    owner.commit(new_gen=1, rows=2)
    before = hand.everything()
    assert hand.journal.commit(owner.session, owner.token, late) == Superseded()
    assert changed(before, hand.everything()) == set()


def test_a_store_that_lost_a_generation_is_noticed(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(rows=3)
    then = photo(hand.client)
    owner.commit(new_gen=1, rows=1, facts=0, lines=())
    rewind(hand.client, then)
    assert isinstance(owner.commit(), Behind)


def test_what_is_posted_stands_in_the_outbox_in_order(hand: Hand) -> None:
    owner = busy(hand)
    assert getattr(owner.commit(out=(b"one",)), "out", None) == 1
    assert getattr(owner.commit(out=(b"two", b"three")), "out", None) == 3
    assert getattr(owner.commit(), "out", None) == 3
    assert hand.client.lrange(hand.journal.keys(owner.session).out, 0, -1) == [b"one", b"two", b"three"]
