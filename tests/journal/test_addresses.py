"""A session's addresses: taken if they lead to nobody who is live, listed before they are taken, dropped with its end."""

from __future__ import annotations

import pytest

from orchestrator.core.names import SessionId
from orchestrator.errors import AddressesFull, AddressTaken, BadRequest, JournalAway, SessionNotActive
from orchestrator.ids import shard_of
from orchestrator.journal import Address
from orchestrator.journal.scripts import Script
from tests.journal.test_again_and_late import at_once
from tests.journal.world import CHANNEL, DAY_MS, HERE, THERE, Command, Hand, Spoken, changed, verb_of


def here(hand: Hand) -> SessionId:
    """A session of the shard of `HERE`, which `THERE` is not of."""
    return hand.create(session=hand.candidate(HERE))


def take(hand: Hand, session: SessionId, at: str = HERE) -> None:
    hand.journal.take_address(session, CHANNEL, at)


def texts(hand: Hand, session: SessionId) -> list[str]:
    return [address.text for address in hand.journal.addresses(session)]


def where(hand: Hand, at: str = HERE) -> SessionId | None:
    return hand.journal.resolve(CHANNEL, at)


@pytest.mark.parametrize("at", [HERE, THERE])
def test_an_address_leads_to_the_session_that_took_it(hand: Hand, at: str) -> None:
    session = here(hand)
    assert where(hand, at) is None
    take(hand, session, at)
    assert where(hand, at) == session
    assert hand.reads.addresses(session) == [Address(CHANNEL, at, "channel")]
    before = hand.everything()
    take(hand, session, at)
    assert changed(before, hand.everything()) == set()


@pytest.mark.parametrize("at", [HERE, THERE])
def test_an_address_of_a_live_session_is_taken_from_nobody(hand: Hand, at: str) -> None:
    owner, other = here(hand), here(hand)
    take(hand, owner, at)
    with pytest.raises(AddressTaken, match=at):
        take(hand, other, at)
    assert where(hand, at) == owner
    assert texts(hand, other) == []


@pytest.mark.parametrize("at", [HERE, THERE])
@pytest.mark.parametrize("how", ["reset", "ended", "gone"])
def test_an_address_of_a_session_that_is_not_live_is_free(hand: Hand, at: str, how: str) -> None:
    owner, other = here(hand), here(hand)
    take(hand, owner, at)
    if how == "gone":
        hand.client.delete(hand.journal.keys(owner).own)
    else:
        hand.reset(owner)
    if how == "ended":
        hand.end(owner)
    take(hand, other, at)
    assert where(hand, at) == other
    hand.journal.drop_address(owner, CHANNEL, at)
    assert where(hand, at) == other, "the one before has no say any more"


@pytest.mark.parametrize("at", [HERE, THERE])
def test_a_dropped_address_leads_nowhere_and_may_be_taken_again(hand: Hand, at: str) -> None:
    session = here(hand)
    take(hand, session, at)
    hand.journal.drop_address(session, CHANNEL, at)
    assert (where(hand, at), texts(hand, session)) == (None, [])
    before = hand.everything()
    hand.journal.drop_address(session, CHANNEL, at)
    assert changed(before, hand.everything()) == set()
    take(hand, session, at)
    assert (where(hand, at), texts(hand, session)) == (session, [at])


def test_what_is_not_the_sessions_is_not_dropped(hand: Hand) -> None:
    owner, other = here(hand), here(hand)
    take(hand, owner)
    hand.journal.drop_address(other, CHANNEL, HERE)
    assert where(hand) == owner


def test_only_a_live_session_takes_an_address_and_every_address_has_a_text(hand: Hand) -> None:
    session = here(hand)
    with pytest.raises(BadRequest):
        take(hand, session, "")
    hand.reset(session)
    with pytest.raises(SessionNotActive):
        take(hand, session)
    with pytest.raises(SessionNotActive):
        take(hand, hand.candidate())
    assert not [key for key in hand.client.keys("*") if b"}:adr" in key]


def test_a_session_has_at_most_256_addresses(hand: Hand) -> None:
    session = here(hand)
    for number in range(256):
        take(hand, session, f"t-{number}")
    with pytest.raises(AddressesFull, match="256"):
        take(hand, session, "one-more")
    assert where(hand, "one-more") is None
    take(hand, session, "t-7")
    hand.journal.drop_address(session, CHANNEL, "t-7")
    take(hand, session, "one-more")


def test_addresses_it_once_had_are_forgotten_when_there_are_too_many(hand: Hand) -> None:
    session = here(hand)
    for number in range(512):
        take(hand, session, f"t-{number}")
        hand.journal.drop_address(session, CHANNEL, f"t-{number}")
    with pytest.raises(AddressesFull):
        take(hand, session, "one-more")
    hand.later(DAY_MS + 10)
    take(hand, session, "one-more")
    assert hand.client.hlen(hand.journal.keys(session).adrs) <= 512


class Interrupted(Spoken):
    """The caller dies, or somebody comes in between, before its n-th call."""

    before = 0
    act = staticmethod(lambda: None)

    def call(self, verb: Script, command: Command) -> object:
        self.before -= 1
        if self.before == 0:
            self.act()
        return super().call(verb, command)


@pytest.mark.parametrize("call", [2, 3])
@pytest.mark.parametrize("at", [HERE, THERE])
def test_who_takes_an_address_while_the_session_ends_takes_nothing(hand: Hand, call: int, at: str) -> None:
    session, taker = here(hand), Hand(hand.client, kind=Interrupted)
    journal = taker.journal
    assert isinstance(journal, Interrupted)
    journal.before, journal.act = call, lambda: hand.end(session)
    with pytest.raises(SessionNotActive):
        take(taker, session, at)
    assert hand.client.keys("*adr:*") == []
    assert texts(hand, session) == []


def _die() -> None:
    raise JournalAway(reason="the caller died")


@pytest.mark.parametrize("call", [2, 3])
@pytest.mark.parametrize("at", [HERE, THERE])
@pytest.mark.parametrize("then", ["again", "end", "erase"])
def test_who_dies_while_taking_an_address_leaves_nothing_that_stays(hand: Hand, call: int, at: str, then: str) -> None:
    session, taker = here(hand), Hand(hand.client, kind=Interrupted)
    journal = taker.journal
    assert isinstance(journal, Interrupted)
    journal.before, journal.act = call, _die
    with pytest.raises(JournalAway):
        take(taker, session, at)
    if then == "again":
        take(hand, session, at)
        assert (where(hand, at), texts(hand, session)) == (session, [at])
        return
    if then == "end":
        hand.end(session)
        hand.journal.take_out(session, "holder", 1000)
    else:
        while not hand.journal.erase(session):
            pass
    assert hand.client.keys("*adr:*") == []


@pytest.mark.parametrize("call", [2, 3])
@pytest.mark.parametrize("at", [HERE, THERE])
def test_who_dies_while_dropping_an_address_leaves_it_to_the_end(hand: Hand, call: int, at: str) -> None:
    session, dropper = here(hand), Hand(hand.client, kind=Interrupted)
    take(hand, session, at)
    journal = dropper.journal
    assert isinstance(journal, Interrupted)
    journal.before, journal.act = call, _die
    with pytest.raises(JournalAway):
        dropper.journal.drop_address(session, CHANNEL, at)
    hand.end(session)
    hand.journal.take_out(session, "holder", 1000)
    assert hand.client.keys("*adr:*") == []


@pytest.mark.parametrize("at", [HERE, THERE])
def test_what_runs_after_what_came_after_it_changes_nothing(hand: Hand, at: str) -> None:
    session = here(hand)
    hand.said.clear()
    take(hand, session, at)
    hand.journal.drop_address(session, CHANNEL, at)
    dropped, before = list(hand.said), hand.everything()
    for command in dropped:
        hand.again(command)
        assert changed(before, hand.everything()) == set(), verb_of(command)
    assert where(hand, at) is None
    take(hand, session, at)
    before = hand.everything()
    for command in dropped:
        hand.again(command, now=hand.now + 5_000)
        assert changed(before, hand.everything()) == set(), verb_of(command)
    assert (where(hand, at), texts(hand, session)) == (session, [at])


@pytest.mark.parametrize("at", [HERE, THERE])
def test_what_was_refused_and_runs_once_more_is_not_taken_late(hand: Hand, at: str) -> None:
    owner, other = here(hand), here(hand)
    take(hand, owner, at)
    hand.said.clear()
    with pytest.raises(AddressTaken):
        take(hand, other, at)
    refused = list(hand.said)
    hand.journal.drop_address(owner, CHANNEL, at)
    before = hand.everything()
    for command in refused:
        hand.again(command, now=hand.now + 5_000)
        assert changed(before, hand.everything()) <= {"adms"}, verb_of(command)
    assert hand.client.hlen(hand.journal.keys(other).adrs) == 0
    take(hand, other, at)
    assert (where(hand, at), texts(hand, other)) == (other, [at])


@pytest.mark.parametrize("at", [HERE, THERE])
@pytest.mark.parametrize("then", ["end", "erase"])
def test_what_runs_after_the_end_takes_nothing(hand: Hand, at: str, then: str) -> None:
    session = here(hand)
    hand.said.clear()
    take(hand, session, at)
    taken = list(hand.said)
    hand.end(session)
    hand.journal.take_out(session, "holder", 1_000)
    if then == "erase":
        while not hand.journal.erase(session):
            pass
    before = hand.everything()
    for command in taken:
        hand.again(command, now=hand.now + 5_000)
        assert changed(before, hand.everything()) == set(), verb_of(command)


def test_of_many_sessions_that_take_one_address_one_has_it(hand: Hand) -> None:
    hand = Hand(hand.client, clock=False)
    hand.journal.load_scripts()
    sessions = [hand.create() for _ in range(8)]
    assert len({shard_of(session) for session in sessions}) > 1

    def act(place: int) -> bool:
        try:
            take(hand, sessions[place])
        except AddressTaken:
            return False
        return True

    answers = at_once(8, act)
    assert answers.count(True) == 1
    winner = sessions[answers.index(True)]
    assert where(hand) == winner
    assert [texts(hand, session) for session in sessions] == [[HERE] if one == winner else [] for one in sessions]


# The end ------------------------------------------------------------------------------------------------------------------


def test_an_end_drops_the_addresses_of_its_shard_at_once_and_the_others_through_the_outbox(hand: Hand) -> None:
    session = hand.arrive(at=HERE).session
    take(hand, session, THERE)
    hand.reset(session)
    owner = hand.owner(session)
    n = int(hand.fields(session)["n"])
    names = tuple(head.id for head in owner.granted.heads)
    done = owner.commit(mode="end", turn=None, judged=n, consumed=names, used=1)
    assert getattr(done, "out", None) == 1
    there = hand.journal._door(CHANNEL, THERE)
    assert hand.client.keys("*adr:*") == [there.address.encode()]
    assert hand.journal.addresses(session) == []
    assert hand.due_at(session) == 2_000
    (taken,) = hand.journal.take_out(session, "holder", 1_000)
    assert taken.done
    assert hand.client.keys("*adr:*") == []
    assert hand.journal.settle_out(session, "holder", 1) == 0


def test_an_end_leaves_an_address_that_is_anothers_by_now(hand: Hand) -> None:
    session, other = here(hand), here(hand)
    for at in (HERE, THERE):
        take(hand, session, at)
    hand.reset(session)
    for at in (HERE, THERE):
        take(hand, other, at)
    hand.end(session)
    hand.journal.take_out(session, "holder", 1_000)
    assert (where(hand, HERE), where(hand, THERE)) == (other, other)
