"""Something comes to an address: to the session there, or it begins one; once by its keys, whatever has become of that session."""

from __future__ import annotations

import pytest

from orchestrator.core.names import SessionId
from orchestrator.errors import AddressTaken, BadRequest, DeliveryKeyReused, InboxFull, SessionNotActive
from orchestrator.ids import address_shard, new_session, shard_of
from orchestrator.journal import AdmissionKey, Arrived
from orchestrator.journal.scripts import script
from tests.journal.test_again_and_late import Forgetful, at_once, twice
from tests.journal.world import CHANNEL, DAY_MS, HERE, LABEL, START, THERE, Elsewhere, Hand, changed, verb_of

KEY = AdmissionKey("webhook-1", "digest-1")
IDENTITY = AdmissionKey("message-1")


def elsewhere(hand: Hand) -> SessionId:
    """A live session of another shard that has taken the address."""
    session = hand.create(session=hand.candidate(THERE))
    assert shard_of(session) != shard_of(hand.candidate(HERE))
    hand.journal.take_address(session, CHANNEL, HERE)
    return session


def inbox(hand: Hand, session: SessionId) -> list[str]:
    return [head.id for head in hand.reads.heads(session, 0)]


# Who gets it ------------------------------------------------------------------------------------------------------------


def test_the_first_message_starts_a_session_of_the_addresss_shard(hand: Hand) -> None:
    message, candidate = hand.message("hello"), hand.candidate()
    arrived = hand.arrive(message, candidate=candidate, who="a" * 32, life_ms=60_000)
    assert arrived == Arrived(candidate, message.id, started=True, again=False, outcome="taken", at=arrived.at)
    assert hand.journal.resolve(CHANNEL, HERE) == candidate
    assert inbox(hand, candidate) == [message.id]
    assert hand.reads.bodies(candidate, [message.id]) == {message.id: message.body}
    assert hand.reads.takes_part(candidate, "a" * 32)
    assert hand.fields(candidate)["deadline"] == str(START + 60_000)
    assert len(hand.wakes()) == 1


def test_the_next_message_goes_to_the_session_there(hand: Hand) -> None:
    session = hand.arrive().session
    message = hand.message()
    arrived = hand.arrive(message, who="b" * 32)
    assert (arrived.session, arrived.delivery, arrived.started, arrived.again) == (session, message.id, False, False)
    assert inbox(hand, session)[1] == message.id
    assert hand.reads.takes_part(session, "b" * 32)
    assert hand.fields(session)["waiting"] == "2"


def test_what_comes_to_a_session_at_work_is_told_to_its_owner_and_rings_for_nobody(hand: Hand) -> None:
    session = hand.arrive().session
    hand.owner(session)
    hand.arrive()
    assert len(hand.wakes()) == 1


@pytest.mark.parametrize("how", ["reset", "ended", "erased"])
def test_a_session_that_is_no_longer_live_is_nobody(hand: Hand, how: str) -> None:
    session = hand.arrive().session
    if how == "erased":
        while not hand.journal.erase(session):
            pass
    else:
        hand.reset(session)
    if how == "ended":
        hand.end(session)
    assert hand.journal.resolve(CHANNEL, HERE) is None
    arrived = hand.arrive()
    assert arrived.started
    assert arrived.session != session
    assert hand.journal.resolve(CHANNEL, HERE) == arrived.session


def test_the_late_end_of_the_one_before_leaves_the_address_to_the_next(hand: Hand) -> None:
    first = hand.arrive().session
    hand.reset(first)
    second = hand.arrive().session
    hand.end(first)
    while not hand.journal.erase(first):
        pass
    assert hand.journal.resolve(CHANNEL, HERE) == second


@pytest.mark.parametrize("kind", ["cancel", "clear", "compact", "reset"])
def test_a_control_starts_nothing(hand: Hand, kind: str) -> None:
    with pytest.raises(SessionNotActive):
        hand.arrive(hand.control(kind))
    assert hand.client.keys("*") == []


def test_a_cancel_by_address_says_what_it_found(hand: Hand) -> None:
    hand.arrive()
    cancel = hand.control()
    assert hand.arrive(cancel).outcome == "cancelling"
    again = hand.arrive(cancel)
    assert (again.again, again.outcome) == (True, "cancelling")


def test_a_reset_by_address_takes_effect_at_once(hand: Hand) -> None:
    session = hand.arrive().session
    assert hand.arrive(hand.control("reset")).session == session
    assert hand.arrive().session != session


def test_a_full_inbox_refuses_and_remembers_nothing(hand: Hand) -> None:
    hand = Hand(hand.client, waiting_limit=1)
    session = hand.arrive().session
    message = hand.message()
    before = hand.everything()
    with pytest.raises(InboxFull):
        hand.arrive(message, KEY)
    assert changed(before, hand.everything()) == set()
    owner = hand.owner(session)
    owner.use(owner.granted.heads[0].id)
    assert not hand.arrive(message, KEY).again


def test_an_address_must_have_a_text_and_a_candidate_of_its_shard(hand: Hand) -> None:
    with pytest.raises(BadRequest):
        hand.arrive(at="", candidate=hand.candidate())
    with pytest.raises(ValueError, match="shard"):
        hand.arrive(candidate=hand.candidate(THERE))


def test_with_another_broker_the_caller_publishes(hand: Hand) -> None:
    broker = Elsewhere()
    hand = Hand(hand.client, broker)
    message, another = hand.message(), hand.message()
    session = hand.arrive(message).session
    hand.owner(session).release()
    broker.published.clear()
    hand.arrive(message)
    assert broker.published == [], "an answer that is given again rings for nobody"
    hand.owner(session).commit(mode="park", turn=None, judged=1, consumed=(message.id,), used=1)
    hand.arrive(another)
    assert broker.published[-1] == ("orchestrator.resume", LABEL, session, another.id)


# Once by its keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [(), (KEY,), (KEY, IDENTITY), (IDENTITY,)], ids=["unkeyed", "key", "both", "identity"])
@pytest.mark.parametrize("how", ["live", "reset", "ended", "replaced"])
def test_a_repeat_gets_the_first_answer_whatever_has_become_of_its_session(
    hand: Hand, keys: tuple[AdmissionKey, ...], how: str
) -> None:
    message = hand.message()
    first = hand.arrive(message, *keys)
    if how != "live":
        hand.reset(first.session)
    if how == "ended":
        hand.end(first.session)
    if how == "replaced":
        hand.arrive()
    hand.later(DAY_MS - 1)
    before = hand.everything()
    again = hand.arrive(message, *keys)
    assert again == Arrived(first.session, first.delivery, started=True, again=True, outcome="taken", at=again.at)
    assert changed(before, hand.everything()) == set()


def test_a_repeat_under_another_delivery_id_is_the_same_message(hand: Hand) -> None:
    first = hand.arrive(hand.message(), KEY)
    again = hand.arrive(hand.message(), KEY)
    assert (again.session, again.delivery, again.again) == (first.session, first.delivery, True)
    assert hand.fields(first.session)["waiting"] == "1"


def test_another_digest_under_the_same_key_is_refused(hand: Hand) -> None:
    session = hand.arrive(hand.message(), KEY).session
    with pytest.raises(DeliveryKeyReused, match="webhook-1"):
        hand.arrive(hand.message(), AdmissionKey(KEY.key, "digest-2"))
    assert hand.arrive(hand.message(), AdmissionKey(KEY.key)).again, "no digest is not compared"
    assert hand.fields(session)["waiting"] == "1"


def test_the_same_message_in_another_webhook_is_known_by_its_identity_and_so_is_that_webhook_from_then_on(
    hand: Hand,
) -> None:
    first = hand.arrive(hand.message(), KEY, IDENTITY)
    other = AdmissionKey("webhook-2", "digest-2")
    assert hand.arrive(hand.message(), other, IDENTITY).delivery == first.delivery
    hand.later(DAY_MS - 1)
    assert hand.arrive(hand.message(), other).delivery == first.delivery


def test_a_key_is_forgotten_after_a_day_and_leaves_nothing_behind(hand: Hand) -> None:
    hand.arrive(hand.message(), KEY)
    door = next(key for key in hand.everything() if b"}:adm:" in key)
    hand.later(DAY_MS)
    second = hand.arrive(hand.message(), KEY)
    assert not second.again
    hand.later(DAY_MS)
    hand.arrive(hand.message(), IDENTITY)
    assert len(hand.client.hkeys(door)) == 1
    assert hand.client.zcard(hand.journal.keys(second.session).adms) == 1


def test_doors_where_nothing_comes_any_more_are_emptied_by_what_comes_to_others(hand: Hand) -> None:
    texts = [f"t-{number}" for number in range(4000)]
    shard = shard_of(hand.candidate(HERE))
    others = [text for text in texts if shard_of(hand.candidate(text)) == shard][:40]
    for text in others:
        hand.arrive(at=text)
    hand.later(DAY_MS)
    for _ in range(2):
        hand.arrive()
    assert [key for key in hand.everything() if b"}:adm:" in key] == [
        f"orc:{{{shard}}}:adm:{hand.journal._door(CHANNEL, HERE).key}".encode()
    ]


def test_a_key_of_one_address_is_none_of_another(hand: Hand) -> None:
    first = hand.arrive(hand.message(), KEY)
    assert hand.arrive(hand.message(), KEY, at=THERE).session != first.session


def test_no_key_has_a_time_to_live(hand: Hand) -> None:
    elsewhere(hand)
    hand.arrive(hand.message(), KEY)
    hand.arrive(at=THERE)
    hand.journal.reserve(CHANNEL, "webhook-1", "digest-1")
    assert {hand.client.ttl(key) for key in hand.client.keys("*")} == {-1}


# At another shard -------------------------------------------------------------------------------------------------------


def test_what_comes_to_an_alias_goes_to_its_session(hand: Hand) -> None:
    session = elsewhere(hand)
    message = hand.message()
    arrived = hand.arrive(message, KEY, who="c" * 32)
    assert (arrived.session, arrived.delivery, arrived.started, arrived.again) == (session, message.id, False, False)
    assert inbox(hand, session) == [message.id]
    assert hand.reads.takes_part(session, "c" * 32)
    again = hand.arrive(hand.message(), KEY)
    assert (again.session, again.delivery, again.again) == (session, message.id, True)
    with pytest.raises(DeliveryKeyReused):
        hand.arrive(hand.message(), AdmissionKey(KEY.key, "digest-2"))


@pytest.mark.parametrize("end", [False, True])
def test_what_an_alias_has_delivered_is_known_after_its_session_was_reset(hand: Hand, end: bool) -> None:
    session = elsewhere(hand)
    message = hand.message()
    hand.arrive(message, KEY)
    hand.reset(session)
    if end:
        hand.end(session)
    again = hand.arrive(hand.message(), KEY)
    assert (again.session, again.delivery, again.again) == (session, message.id, True)
    assert hand.arrive(hand.message()).started


def test_where_the_session_of_an_alias_has_ended_the_address_starts_another(hand: Hand) -> None:
    session = elsewhere(hand)
    hand.reset(session)
    message = hand.message()
    arrived = hand.arrive(message, KEY)
    assert arrived.started
    assert shard_of(arrived.session) == shard_of(hand.candidate(HERE))
    again = hand.arrive(hand.message(), KEY)
    assert (again.session, again.delivery, again.started, again.again) == (arrived.session, message.id, True, True)


def test_what_went_elsewhere_and_was_not_heard_of_goes_there_again_whoever_has_the_address_then(hand: Hand) -> None:
    session, message = elsewhere(hand), hand.message()
    asked = Hand(hand.client)
    asked.arrive(message, KEY)
    said = next(command for command in asked.said if verb_of(command) == "arrive")
    # As if the caller had died before it delivered there.
    hand.client.flushdb()
    session = elsewhere(hand)
    assert hand.again(said)[0] == b"elsewhere"
    hand.journal.drop_address(session, CHANNEL, HERE)
    newcomer = hand.arrive().session
    again = hand.arrive(hand.message(), KEY)
    assert (again.session, again.delivery) == (session, message.id)
    assert inbox(hand, session) == [message.id]
    assert message.id not in inbox(hand, newcomer)


def test_what_went_elsewhere_and_came_too_late_goes_to_whoever_has_the_address_then(hand: Hand) -> None:
    asked = Hand(hand.client)
    elsewhere(asked)
    message = hand.message()
    asked.arrive(message, KEY)
    said = next(command for command in asked.said if verb_of(command) == "arrive")
    hand.client.flushdb()
    session = elsewhere(hand)
    hand.again(said)
    hand.end(session)
    newcomer = hand.arrive().session
    again = hand.arrive(hand.message(), KEY)
    assert (again.session, again.delivery, again.again) == (newcomer, message.id, False)
    assert inbox(hand, newcomer)[1:] == [message.id]
    assert hand.arrive(hand.message(), KEY).again


def test_what_one_key_knows_as_done_is_not_done_again_for_another_that_went_elsewhere(hand: Hand) -> None:
    session = elsewhere(hand)
    hand.arrive(hand.message(), KEY, IDENTITY)
    said = next(command for command in hand.said if verb_of(command) == "arrive")
    hand.client.flushdb()
    session = elsewhere(hand)
    assert hand.again(said)[0] == b"elsewhere"
    hand.end(session)
    first = hand.arrive(hand.message(), AdmissionKey("webhook-2"), IDENTITY)
    assert first.started
    hand.reset(first.session)
    again = hand.arrive(hand.message(), KEY, IDENTITY)
    assert (again.session, again.delivery, again.again) == (first.session, first.delivery, True)


def test_a_control_that_came_too_late_for_an_alias_is_forgotten(hand: Hand) -> None:
    hand.reset(elsewhere(hand))
    with pytest.raises(SessionNotActive):
        hand.arrive(hand.control("clear"), KEY)
    assert hand.arrive(hand.message(), KEY).started


# Replies that are lost, and many at once -----------------------------------------------------------------------------------


def test_an_arrival_whose_reply_was_lost_is_answered_again(hand: Hand) -> None:
    hand = Hand(hand.client, kind=Forgetful)
    message, candidate = hand.message(), hand.candidate()
    lost, heard = twice(hand, lambda: hand.arrive(message, candidate=candidate))
    assert (lost[0], heard[0]) == (b"started", b"again")
    assert lost[3:7] == heard[3:7]
    assert len(hand.wakes()) == 1


@pytest.mark.parametrize("lost_call", ["arrive", "deliver"])
def test_an_arrival_at_an_alias_whose_reply_was_lost_is_one_message(hand: Hand, lost_call: str) -> None:
    session = elsewhere(hand)
    hand = Hand(hand.client, kind=Forgetful)
    message = hand.message()
    if lost_call == "arrive":
        twice(hand, lambda: hand.arrive(message))
    else:
        hand.arrive(message)
        hand.again(hand.said[-1])
        hand.arrive(message)
    assert inbox(hand, session) == [message.id]


def test_an_arrival_that_runs_late_starts_nothing_after_its_session_was_erased(hand: Hand) -> None:
    session = hand.arrive().session
    said = hand.said[-1]
    while not hand.journal.erase(session):
        pass
    before = hand.everything()
    assert hand.again(said) == [b"gone"]
    assert changed(before, hand.everything()) == set()


def test_fifty_first_messages_at_once_are_one_session_with_fifty_messages(hand: Hand) -> None:
    hand = Hand(hand.client, clock=False)
    hand.journal.load_scripts()
    messages = [hand.message(str(place)) for place in range(50)]
    answers = at_once(50, lambda place: hand.arrive(messages[place]))
    (session,) = {arrived.session for arrived in answers}
    assert sorted(arrived.started for arrived in answers) == [False] * 49 + [True]
    assert sorted(inbox(hand, session)) == sorted(message.id for message in messages)
    assert [key for key in hand.client.keys("*") if b"}:own:" in key] == [hand.journal.keys(session).own.encode()]
    assert len(hand.wakes()) == 1


def test_one_message_that_comes_twenty_times_at_once_is_one_message(hand: Hand) -> None:
    hand = Hand(hand.client, clock=False)
    hand.journal.load_scripts()
    answers = at_once(20, lambda _: hand.arrive(hand.message(), KEY))
    assert len({(arrived.session, arrived.delivery) for arrived in answers}) == 1
    assert sorted(arrived.again for arrived in answers) == [False] + [True] * 19


def test_what_comes_to_an_alias_while_its_session_is_reset_is_lost_nowhere_and_never_doubled(hand: Hand) -> None:
    hand = Hand(hand.client, clock=False)
    hand.journal.load_scripts()
    session = elsewhere(hand)
    messages = [hand.message(str(place)) for place in range(24)]

    def act(place: int) -> Arrived | None:
        if place == 12:
            hand.reset(session)
            return None
        return hand.arrive(messages[place])

    answers = [arrived for arrived in at_once(24, act) if arrived is not None]
    homes = {arrived.session for arrived in answers}
    assert len(homes - {session}) <= 1
    held = [name for home in homes for name in inbox(hand, home)]
    for arrived in answers:
        assert held.count(arrived.delivery) == 1
        assert arrived.delivery in inbox(hand, arrived.session)


# A channel as a whole ---------------------------------------------------------------------------------------------------


def test_a_webhook_is_new_once_and_another_body_under_its_id_is_refused(hand: Hand) -> None:
    reserve = hand.journal.reserve
    assert reserve(CHANNEL, "webhook-1", "digest-1") == "new"
    before = hand.everything()
    assert reserve(CHANNEL, "webhook-1", "digest-1") == "again"
    assert reserve(CHANNEL, "webhook-1") == "again"
    with pytest.raises(DeliveryKeyReused, match="webhook-1"):
        reserve(CHANNEL, "webhook-1", "digest-2")
    assert changed(before, hand.everything()) == set()
    assert reserve("another", "webhook-1", "digest-2") == "new"
    hand.later(DAY_MS)
    assert reserve(CHANNEL, "webhook-1", "digest-2") == "new"


def test_what_is_stored_of_a_webhook_does_not_tell_its_id(hand: Hand) -> None:
    hand.journal.reserve(CHANNEL, "secret-webhook")
    hand.arrive(hand.message(), AdmissionKey("secret-webhook"))
    assert b"secret-webhook" not in repr(hand.everything()).encode()


def test_the_shards_of_lua_and_python_are_the_same(hand: Hand) -> None:
    made = script("commit").text.split("\n")[1]
    part = made[made.index("local function shard_of_address") :]
    for number in range(256):
        key = f"{number:02x}" + "0" * 30
        told = hand.client.eval(f"{part} return shard_of_address(ARGV[1])", 0, key)
        assert told.decode() == shard_of(new_session(START, address_shard(key)))


# Only to their own ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
def test_who_may_only_reach_their_own_is_told_that_the_address_is_taken(hand: Hand, there: bool) -> None:
    ann, ben = "a" * 32, "b" * 32
    if there:
        hand.journal.take_address(hand.create(hand.message(), session=hand.candidate(THERE), who=ann), CHANNEL, HERE)
    else:
        hand.arrive(who=ann, only=ann)
    before = hand.everything()
    with pytest.raises(AddressTaken):
        hand.arrive(who=ben, only=ben)
    assert there or changed(before, hand.everything()) == set()
    assert not hand.arrive(who=ann, only=ann).started
    assert not hand.arrive(who=ben).started, "others may"


def test_of_people_who_come_at_once_one_begins_and_the_others_are_told_that_it_is_taken(hand: Hand) -> None:
    def come(number: int) -> str:
        who = f"{number}" * 32
        try:
            return "started" if hand.arrive(who=who, only=who).started else "joined"
        except AddressTaken:
            return "taken"

    found = at_once(8, come)
    assert sorted(found) == ["started", *["taken"] * 7]
