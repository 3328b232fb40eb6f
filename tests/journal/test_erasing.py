"""Erasing a session: from the first word on it is gone for everybody, in the end nothing names it, and nothing late brings it back."""

from __future__ import annotations

import pytest

from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import JournalAway, SessionNotActive
from orchestrator.ids import new_session, principal_key
from orchestrator.journal import AdmissionKey, Arrived, Done, Gone, Operation, Refused, Superseded
from orchestrator.journal.scripts import Script
from orchestrator.journal.tidying import tidy
from tests.journal.test_again_and_late import at_once
from tests.journal.world import (
    CHANNEL,
    DAY_MS,
    HERE,
    LABEL,
    THERE,
    Command,
    Hand,
    Owner,
    Spoken,
    changed,
    listening,
    verb_of,
)

ADA = Principal("jwt", "user", "ada")
OPERATION = Operation("op-1", ADA)


def full(hand: Hand, *, at: str = HERE) -> Owner:
    """A session that has left something wherever a session can, at work."""
    first = hand.message()
    arrived = hand.arrive(first, AdmissionKey("webhook-1", "digest"), at=at, who=principal_key(ADA), life_ms=DAY_MS)
    session = arrived.session
    hand.journal.take_address(session, CHANNEL, THERE)
    hand.journal.take_address(session, CHANNEL, "once")
    hand.arrive(hand.message(), AdmissionKey("webhook-2"), at=THERE)
    hand.arrive(hand.message(), AdmissionKey("webhook-3"), at="once")
    hand.journal.drop_address(session, CHANNEL, "once")
    owner = hand.owner(session)
    owner.use(first.id, out=(b"post",), records=(("call_0_0_0", b"r"),), state=(("slot", b"s"),), tidy=True)
    owner.commit(new_gen=1, rows=2)
    owner.append()
    hand.journal.deliver(session, hand.message(), digest="d" * 32)
    assert len(hand.traces(session)) >= 20
    return owner


def erase(hand: Hand, session: SessionId) -> None:
    while not hand.journal.erase(session):
        pass


@pytest.mark.parametrize("state", ["owned", "free", "reset", "ended"])
def test_nothing_names_an_erased_session_any_more(hand: Hand, state: str) -> None:
    owner = full(hand)
    if state == "free":
        owner.commit(mode="park", turn=None)
        owner.release()
    if state in ("reset", "ended"):
        owner.release()
        hand.reset(owner.session)
    if state == "ended":
        hand.end(owner.session)
    erase(hand, owner.session)
    assert hand.traces(owner.session) == []
    # What is left for a day is made of hashes.
    names = {key.partition(b"}:")[2].partition(b":")[0] for key in hand.everything() if b"}:" in key}
    assert names <= {b"erased", b"adm", b"adms"}
    hand.later(DAY_MS)
    assert hand.arrive().started


def test_a_session_that_an_operation_made_is_erased_with_it(hand: Hand) -> None:
    session = new_session(hand.now, OPERATION.shard)
    hand.create(session=session, operation=OPERATION)
    erase(hand, session)
    assert hand.traces(session) == []
    again = new_session(hand.now, OPERATION.shard)
    assert not hand.journal.create(again, agent="support", deployment=LABEL, operation=OPERATION).again


def test_what_others_have_stays(hand: Hand) -> None:
    hand.arrive(at="neighbour")
    before = hand.everything()
    erase(hand, full(hand).session)
    names = changed(before, hand.everything())
    assert names <= {"erased", "adm", "adms", "orc:wakes", "orc.default"}


def test_keys_that_name_another_session_stay_at_the_door(hand: Hand) -> None:
    first = hand.arrive(hand.message(), AdmissionKey("webhook-1"))
    hand.reset(first.session)
    second = hand.arrive(hand.message(), AdmissionKey("webhook-2"))
    erase(hand, first.session)
    assert hand.journal.resolve(CHANNEL, HERE) == second.session
    assert hand.arrive(hand.message(), AdmissionKey("webhook-2")).again
    assert not hand.arrive(hand.message(), AdmissionKey("webhook-1")).again, "nobody remembers it"


def test_erasing_what_is_not_there_is_done(hand: Hand) -> None:
    assert hand.journal.erase(new_session(hand.now))
    assert hand.client.keys("*") == []


def test_it_is_done_in_pages(hand: Hand) -> None:
    session = hand.create(session=hand.candidate(HERE))
    for number in range(40):
        hand.journal.take_address(session, CHANNEL, f"t-{number}")
    hand.client.hset(hand.journal.keys(session).own, "gen", 1_200)
    hand.client.rpush(hand.journal.keys(session).hist(1_200), "row")
    for _ in range(500):
        hand.arrive(at="t-1")
    hand.said.clear()
    answers: list[bool] = []
    while not (answers and answers[-1]):
        answers.append(hand.journal.erase(session))
    assert answers == [False, False, True]
    assert sum(verb_of(command) == "erase" for command in hand.said) >= 8
    assert hand.traces(session) == []


# From the first word on ---------------------------------------------------------------------------------------------------


def begun(hand: Hand) -> Owner:
    """A session that somebody has begun to erase, and its owner, who does not know."""
    owner = full(hand)
    hand.journal._erase(owner.session, "begin")
    return owner


def test_its_owner_is_fenced_and_told(hand: Hand) -> None:
    owner = full(hand)
    with listening(hand.client, hand.journal.keys(owner.session).news) as heard:
        hand.journal._erase(owner.session, "begin")
    assert [said.split()[2] for said in heard] == [b"erased"]
    before = hand.everything()
    assert owner.commit() == Superseded()
    assert owner.append() == Superseded()
    assert owner.renew() == "superseded"
    owner.release()
    assert not hand.journal.disown(owner.session, owner.token, fault=True)
    assert changed(before, hand.everything()) == set()


def test_it_is_gone_for_everybody(hand: Hand) -> None:
    session = begun(hand).session
    before = hand.everything()
    assert not hand.reads.exists(session)
    assert (hand.reads.view(session), hand.reads.place(session), hand.reads.tail(session)) == (None, None, None)
    assert hand.own(session) == Refused("gone")
    for delivery in (hand.message(), hand.control("reset")):
        with pytest.raises(SessionNotActive):
            hand.deliver(session, delivery)
    with pytest.raises(SessionNotActive):
        hand.journal.take_address(session, CHANNEL, "another")
    assert hand.journal.resolve(CHANNEL, HERE) is None
    assert hand.journal.take_out(session, "holder", 1_000) == []
    hand.later(DAY_MS)
    assert hand.journal.due()[2] == 0
    assert changed(before, hand.everything()) == set()


def test_who_holds_its_outbox_settles_nothing_any_more(hand: Hand) -> None:
    session = full(hand).session
    hand.journal.take_out(session, "holder", 1_000)
    hand.journal._erase(session, "begin")
    before = hand.everything()
    assert hand.journal.settle_out(session, "holder", 0, retry_in_ms=5_000) == 0
    assert changed(before, hand.everything()) == set()


def test_its_address_starts_another_at_once(hand: Hand) -> None:
    session = begun(hand).session
    other = hand.arrive(hand.message()).session
    assert other != session
    erase(hand, session)
    assert hand.journal.resolve(CHANNEL, HERE) == other


class Mortal(Spoken):
    """The caller dies before its n-th call."""

    left = 1_000

    def call(self, verb: Script, command: Command) -> object:
        self.left -= 1
        if self.left < 0:
            raise JournalAway(reason="the caller died")
        return super().call(verb, command)


@pytest.mark.parametrize("calls", [1, 2, 5, 9, 12])
def test_the_keeper_goes_on_where_the_caller_died(hand: Hand, calls: int) -> None:
    session = full(hand).session
    caller = Hand(hand.client, kind=Mortal)
    assert isinstance(caller.journal, Mortal)
    caller.journal.left = calls
    with pytest.raises(JournalAway):
        erase(caller, session)
    assert hand.traces(session) != []
    assert hand.journal.tidy(hand.now) == [session]
    tidy(hand.journal, session, hand.now)
    assert hand.traces(session) == []
    assert hand.journal.tidy(hand.now + DAY_MS) == []


def test_many_that_erase_at_once_are_all_done(hand: Hand) -> None:
    session = full(hand).session
    at_once(4, lambda _: erase(hand, session))
    assert hand.traces(session) == []


def test_what_comes_meanwhile_is_left_nowhere(hand: Hand) -> None:
    hand = Hand(hand.client, clock=False)
    hand.journal.load_scripts()
    session = full(hand).session

    def act(place: int) -> Arrived | None:
        if place == 4:
            erase(hand, session)
            return None
        return hand.arrive(at=(HERE, THERE, "once")[place % 3])

    answers = at_once(12, act)
    assert hand.traces(session) == []
    for arrived in answers:
        if arrived is not None and arrived.session != session:
            assert arrived.delivery in [head.id for head in hand.reads.heads(arrived.session, 0)]


# Afterwards -------------------------------------------------------------------------------------------------------------


def test_nothing_that_was_said_before_brings_it_back(hand: Hand) -> None:
    owner = full(hand)
    owner.commit()
    hand.journal.prune(owner.session, 1, hand.now, [(0, "m" + "0" * 26 + "0:0")])
    hand.journal.take_out(owner.session, "holder", 1_000)
    hand.journal.settle_out(owner.session, "holder", 0)
    owner.release()
    hand.reset(owner.session)
    hand.end(owner.session)
    erase(hand, owner.session)
    said = list(hand.said)
    assert {verb_of(command) for command in said} >= {
        "arrive",
        "deliver",
        "commit",
        "append",
        "own",
        "list_address",
        "erase",
    }
    for command in said:
        hand.again(command)
        assert hand.traces(owner.session) == [], verb_of(command)


def test_a_creation_that_runs_late_brings_nothing_back(hand: Hand) -> None:
    session = hand.create(hand.message(), session=new_session(hand.now, OPERATION.shard), operation=OPERATION)
    created = hand.said[-1]
    erase(hand, session)
    before = hand.everything()
    assert hand.again(created, now=hand.now + DAY_MS - 1) == [b"gone"]
    with pytest.raises(SessionNotActive):
        hand.create(session=session)
    assert changed(before, hand.everything()) == set()


def test_what_is_remembered_of_an_erasure_is_forgotten_after_a_day(hand: Hand) -> None:
    first, second = (hand.create(session=hand.candidate(HERE)) for _ in range(2))
    erase(hand, first)
    erased = hand.journal.keys(first).erased
    assert hand.client.zcard(erased) == 1
    hand.later(DAY_MS)
    erase(hand, second)
    assert hand.client.zcard(erased) == 1


def test_where_it_was_every_verb_says_gone(hand: Hand) -> None:
    owner = full(hand)
    erase(hand, owner.session)
    before = hand.everything()
    assert owner.commit() == Gone()
    assert owner.commit(mode="end", turn=None, out=(b"post",), new_gen=7) == Gone()
    assert owner.append() == Gone()
    assert owner.renew() == "gone"
    assert hand.own(owner.session) == Refused("gone")
    assert hand.journal.settle_out(owner.session, "holder", 1) == 0
    hand.journal.drop_address(owner.session, CHANNEL, HERE)
    assert changed(before, hand.everything()) == set()


def test_a_full_server_erases(hand: Hand) -> None:
    owner = full(hand)
    hand.client.config_set("maxmemory", 1)
    try:
        erase(hand, owner.session)
    finally:
        hand.client.config_set("maxmemory", 0)
    assert hand.traces(owner.session) == []
    assert isinstance(hand.owner(hand.asked()).commit(), Done)
