"""Coming in: the order in which deliver looks, what is counted, what is remembered, who is told."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import DeliveryId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import DeliveryKeyReused, InboxFull, SessionNotActive
from orchestrator.ids import keyed_delivery, new_session, principal_key
from orchestrator.journal import Done, News, Operation
from orchestrator.journal.calling import MOST_HEADS
from tests.journal.test_again_and_late import at_once
from tests.journal.world import DAY_MS, LABEL, START, Hand, changed, listening


def small(hand: Hand, limit: int = 2) -> Hand:
    return Hand(hand.client, waiting_limit=limit)


def end(hand: Hand, session: Any) -> None:
    owner = hand.owner(session, lost=True)
    n = int(hand.fields(session)["n"])
    assert isinstance(owner.commit(mode="end", turn=None, judged=n), Done)


def test_a_session_begins_with_its_first_message(hand: Hand) -> None:
    first = hand.message("hello", policy="queue")
    session = hand.create(first, agent="support", parent="", root="")
    fields = hand.fields(session)
    assert (fields["status"], fields["agent"], fields["waiting"], fields["n"]) == ("live", "support", "1", "1")
    assert (fields["created"], fields["root"]) == (str(START), session)
    (head,) = hand.reads.heads(session, 0)
    assert (head.id, head.n, head.at_seq, head.envelope) == (first.id, 1, 0, first.envelope)
    assert hand.reads.bodies(session, [first.id]) == {first.id: first.body}
    assert hand.due_at(session) == 2_000
    assert hand.reads.sessions() == [(session, START)]


def test_a_session_without_a_message_waits_for_one_and_wakes_nobody(hand: Hand) -> None:
    session = hand.create()
    assert hand.due_at(session) is None
    assert hand.wakes() == []
    assert hand.fields(session)["n"] == "0"


def test_a_delivery_is_stamped_with_its_number_and_the_position_it_saw(hand: Hand) -> None:
    first = hand.message()
    owner = hand.owner(hand.create(first))
    owner.use(first.id, facts=3)
    later = hand.message("later")
    assert hand.deliver(owner.session, later).n == 2
    (head,) = hand.reads.heads(owner.session, 1)
    assert (head.id, head.n, head.at_seq) == (later.id, 2, 3)


def test_the_order_is_gone_seen_ended_full_accepted(hand: Hand) -> None:
    hand = small(hand)
    with pytest.raises(SessionNotActive):
        hand.deliver(cast(Any, "ses_" + "0" * 28))
    one, two, three = hand.message(), hand.message(), hand.message()
    session = hand.create(one)
    assert not hand.deliver(session, two).again
    with pytest.raises(InboxFull) as full:
        hand.deliver(session, three)
    assert full.value.facts == {"session": session, "waiting": 2, "limit": 2}
    assert hand.deliver(session, two).again, "seen comes before full"
    end(hand, session)
    assert hand.deliver(session, two).again, "seen comes before ended"
    with pytest.raises(SessionNotActive):
        hand.deliver(session, three)  # ended comes before full


def test_answers_are_taken_beside_waiting_messages_and_are_bounded_too(hand: Hand) -> None:
    hand = small(hand)
    session = hand.create(hand.message())
    hand.deliver(session)
    for _ in range(2):
        hand.deliver(session, hand.control("answers"))
    with pytest.raises(InboxFull):
        hand.deliver(session, hand.control("answers"))
    assert hand.deliver(session, hand.control("cancel")).outcome == "cancelling"


def test_what_was_refused_is_not_remembered_as_seen(hand: Hand) -> None:
    hand = small(hand, 1)
    session, late = hand.asked(), hand.message()
    before = hand.everything()
    with pytest.raises(InboxFull):
        hand.deliver(session, late)
    assert changed(before, hand.everything()) == set()
    owner = hand.owner(session)
    owner.use(owner.granted.heads[0].id)
    assert not hand.deliver(session, late).again


def test_the_first_message_is_known_like_any_other(hand: Hand) -> None:
    for place in range(4):  # whatever the time's last two bits are
        hand.now = START + place
        first = hand.message()
        session = hand.create(first)
        repeated = hand.deliver(session, first)
        assert (repeated.again, repeated.outcome) == (True, "taken")
        hand.later(DAY_MS - 1)
        hand.deliver(session)
        assert hand.deliver(session, first).again
        hand.client.flushdb()


@pytest.mark.parametrize("now", [START, START + 3, 2**42])
def test_an_id_is_remembered_for_a_day_with_its_answer(hand: Hand, now: int) -> None:
    hand.now = now
    owner = hand.owner(hand.asked())
    owner.use(owner.granted.heads[0].id)
    said = {
        "cancelling": hand.control("cancel", "turn_0"),
        "other_turn": hand.control("cancel", "turn_9"),
        "taken": hand.message(),
    }
    for outcome, delivery in said.items():
        assert hand.deliver(owner.session, delivery).outcome == outcome
    hand.later(DAY_MS - 1)
    hand.deliver(owner.session)
    for outcome, delivery in said.items():
        repeated = hand.deliver(owner.session, delivery)
        assert (repeated.again, repeated.outcome) == (True, outcome)
    hand.later(2)
    hand.deliver(owner.session)
    assert hand.client.zcard(hand.journal.keys(owner.session).seen) == 2, "older ids are forgotten"


def test_cancels_and_other_controls_are_never_refused_for_fullness(hand: Hand) -> None:
    hand = small(hand, 1)
    session = hand.asked()
    with pytest.raises(InboxFull):
        hand.deliver(session)
    assert hand.deliver(session, hand.control()).outcome == "cancelling"
    assert hand.deliver(session, hand.control("tail_seen", "7")).n == 3
    assert hand.deliver(session, hand.control("of a newer version")).n == 4
    assert hand.fields(session)["waiting"] == "1"


def test_the_limit_counts_waiting_messages_and_goes_down_when_one_is_used(hand: Hand) -> None:
    hand = small(hand, 3)
    first = hand.message()
    session = hand.create(first)
    others = [hand.message(), hand.message()]
    for other in others:
        hand.deliver(session, other)
    hand.deliver(session, hand.control("tail_seen", "7"))
    with pytest.raises(InboxFull):
        hand.deliver(session)
    owner = hand.owner(session)
    owner.use(first.id)
    assert hand.fields(session)["waiting"] == "2"
    hand.deliver(session)
    with pytest.raises(InboxFull):
        hand.deliver(session)
    n = int(hand.fields(session)["n"])
    owner.commit(turn=1, judged=n, consumed=(others[0].id, others[1].id), used=2)
    assert hand.fields(session)["waiting"] == "1"


def test_a_used_delivery_leaves_nothing_in_the_box(hand: Hand) -> None:
    first = hand.message("a" * 1000)
    owner = hand.owner(hand.create(first))
    owner.use(first.id)
    keys = hand.journal.keys(owner.session)
    assert hand.client.exists(keys.inbox, keys.box) == 0


def test_a_cancel_hears_what_it_meets(hand: Hand) -> None:
    idle = hand.create()
    assert hand.deliver(idle, hand.control()).outcome == "nothing_runs"
    assert hand.deliver(idle, hand.control("cancel", "turn_0")).outcome == "other_turn"
    waiting = hand.asked()
    assert hand.deliver(waiting, hand.control()).outcome == "cancelling", "it meets the turn the message will start"
    owner = hand.owner(hand.asked())
    owner.use(owner.granted.heads[0].id)
    assert hand.deliver(owner.session, hand.control("cancel", "turn_1")).outcome == "other_turn"
    assert hand.deliver(owner.session, hand.control("cancel", "turn_0")).outcome == "cancelling"


def test_a_cancel_with_nothing_to_stop_leaves_nothing_but_its_answer(hand: Hand) -> None:
    session = hand.create()
    before = hand.everything()
    hand.deliver(session, hand.control())
    assert changed(before, hand.everything()) == {"seen"}


def test_a_hundred_cancels_in_a_row_are_one(hand: Hand) -> None:
    owner = hand.owner(hand.asked())
    owner.use(owner.granted.heads[0].id)
    outcomes = {hand.deliver(owner.session, hand.control()).outcome for _ in range(100)}
    assert outcomes == {"cancelling"}
    assert len(hand.reads.heads(owner.session, owner.judged)) == 1
    hand.deliver(owner.session)
    hand.deliver(owner.session, hand.control())
    assert len(hand.reads.heads(owner.session, owner.judged)) == 3, "a message lies between"


def test_the_owner_is_told_at_once_and_nobody_else_is_rung_for(hand: Hand) -> None:
    owner = hand.owner(hand.asked())
    hand.client.delete("orc.default")
    with listening(hand.client, hand.journal.keys(owner.session).news) as heard:
        hand.deliver(owner.session)
        hand.deliver(owner.session, hand.control())
    assert heard == [f"{owner.session} 2 message".encode(), f"{owner.session} 3 cancel".encode()]
    assert hand.wakes() == []
    assert hand.due_at(owner.session) == 10_000, "an owned session is looked at when its lease ends"


def test_a_wake_is_a_message_that_a_worker_can_read(hand: Hand) -> None:
    first = hand.message()
    session = hand.create(first, deployment="green")
    (text,) = hand.wakes("orc.green")
    message = json.loads(text)
    assert message["wake"] == {"number": 1, "at": START}
    assert json.loads(message["body"])[0] == [session, first.id]
    assert message["headers"]["task"] == "orchestrator.resume"
    assert message["headers"]["id"] == f"{session}/{first.id}"
    assert message["properties"]["delivery_info"]["routing_key"] == "orc.green"
    assert b"@" not in text
    assert b"hello" not in text


@pytest.mark.parametrize("odd", ["dlv_%1", "dlv_@SESSION@", "dlv_%d%%", "dlv_ü", "dlv_:", "dlv_1 2"])
def test_an_odd_id_is_only_an_id(hand: Hand, odd: str) -> None:
    delivery = hand.message()
    delivery = type(delivery)(DeliveryId(odd), delivery.envelope, delivery.body)
    session = hand.create()
    hand.deliver(session, delivery)
    assert hand.deliver(session, delivery).again
    (head,) = hand.owner(session).granted.heads
    assert head.id == odd
    assert hand.reads.bodies(session, [head.id]) == {odd: delivery.body}
    assert json.loads(json.loads(hand.wakes()[0])["body"])[0][1] == odd


@pytest.mark.parametrize("text", ["", "\x00", "'\"\\%@KEY@\r\n", "x" * 2_000_000])
def test_a_body_comes_back_as_it_was_sent(hand: Hand, text: str) -> None:
    one, other = hand.message(text), hand.message(text)
    session = hand.create(one)
    hand.deliver(session, other)
    body = Body((Part("text", text),))
    assert hand.reads.bodies(session, [one.id, other.id]) == {one.id: body, other.id: body}


def test_a_long_inbox_is_handed_out_in_pages(hand: Hand) -> None:
    session = hand.create()
    sent = [hand.message() for _ in range(2 * MOST_HEADS + 10)]
    for message in sent:
        hand.deliver(session, message)
    owner = hand.owner(session)
    found = list(owner.granted.heads)
    assert len(found) == MOST_HEADS
    while True:
        answer = owner.commit(judged=found[-1].n, mode="park")
        assert isinstance(answer, Done)
        if not answer.kept:
            break
        assert 0 < len(answer.heads) <= MOST_HEADS
        found += answer.heads
    assert [head.id for head in found] == [message.id for message in sent]
    assert [head.n for head in found] == list(range(1, len(sent) + 1))


def test_a_cancel_far_behind_a_page_of_messages_is_reached(hand: Hand) -> None:
    owner = hand.owner(hand.asked())
    owner.use(owner.granted.heads[0].id)
    for _ in range(MOST_HEADS + 5):
        hand.deliver(owner.session)
    hand.deliver(owner.session, hand.control())
    pages = 0
    while isinstance(answer := owner.commit(turn=None, conditional=True), News):
        pages += 1
        owner.judged = answer.heads[-1].n
    assert pages == 2
    assert isinstance(answer, Done)


def test_numbers_go_on_where_they_were(hand: Hand) -> None:
    session = hand.asked()
    numbers = [hand.deliver(session).n for _ in range(3)]
    owner = hand.owner(session)
    owner.commit(consumed=tuple(head.id for head in owner.granted.heads), used=4, judged=4, mode="park", turn=None)
    assert [*numbers, hand.deliver(session).n] == [2, 3, 4, 5]


def test_a_new_client_raises_what_a_worker_must_be_able_to_read(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    session = hand.create()
    for reads, needed in ((9, "9"), (10, "10"), (9, "10")):  # numbers, not texts
        monkeypatch.setattr("orchestrator.journal.admission.READS", reads)
        hand.deliver(session)
        assert hand.fields(session)["reads"] == needed


def test_what_nobody_has_read_yet_still_needs_who_can_read_it(hand: Hand) -> None:
    owner = hand.owner(hand.asked())
    owner.use(owner.granted.heads[0].id)
    hand.deliver(owner.session)
    hand.client.hset(hand.journal.keys(owner.session).own, "reads", 10)  # the sender was of a newer version
    owner.commit(reads=9)
    assert hand.fields(owner.session)["reads"] == "10"
    owner.commit(reads=11)
    assert hand.fields(owner.session)["reads"] == "11"
    owner.commit(reads=9, judged=2)
    assert hand.fields(owner.session)["reads"] == "9"


def test_the_servers_clock_is_asked_where_no_other_is_given(hand: Hand) -> None:
    hand = Hand(hand.client, clock=False)
    before = hand.journal.time()
    session = hand.create(hand.message())
    after = hand.journal.time()
    assert before <= int(hand.fields(session)["created"]) <= after
    due = cast(float, hand.client.zscore(hand.journal.keys(session).due, session))
    assert before <= due - 2_000 <= after
    assert hand.fields(session)["created"].isdigit()
    assert before <= hand.journal.heartbeat(LABEL, "worker00") <= after + 1_000


@pytest.mark.parametrize("kinds", [("clear",), ("compact",), ("clear", "compact"), ("clear", "cancel", "compact")])
def test_a_control_that_says_again_what_nobody_has_looked_at_yet_leaves_nothing_behind(
    hand: Hand, kinds: tuple[str, ...]
) -> None:
    session = hand.asked()
    for _ in range(20):
        for kind in kinds:
            assert hand.deliver(session, hand.control(kind)).outcome in ("taken", "cancelling")
    found = [head.envelope.kind for head in hand.reads.heads(session, 1)]
    assert found == list(kinds)


def test_a_control_behind_a_message_or_one_that_was_looked_at_is_kept(hand: Hand) -> None:
    session = hand.create()
    for kind in ("clear", "message", "clear"):
        hand.deliver(session, hand.message() if kind == "message" else hand.control(kind))
    assert [head.envelope.kind for head in hand.reads.heads(session, 0)] == ["clear", "message", "clear"]
    owner = hand.owner(session)
    owner.commit(judged=3)
    hand.deliver(session, hand.control("clear"))
    assert len(hand.reads.heads(session, 3)) == 1


# A caller's own keys ----------------------------------------------------------------------------------------------------

ADA, BOB = Principal("jwt", "user", "ada", issuer="one"), Principal("jwt", "user", "bob", issuer="one")


def test_a_key_makes_one_delivery_of_each_session_and_principal() -> None:
    ids = {
        keyed_delivery(scope, principal, key)
        for scope in ("ses_1", "ses_2")
        for principal in (ADA, BOB, Principal("jwt", "user", "ada", issuer="two"), None)
        for key in ("one", "two", "")
    }
    assert len(ids) == 2 * 4 * 3
    assert keyed_delivery("ses_1", Principal("jwt", "user", "ada", "one", {"mail": "x"}), "one") in ids
    assert {len(name) for name in ids} == {30}


@pytest.mark.parametrize("then", ["live", "ended"])
def test_another_body_under_the_same_key_is_refused_and_the_same_is_answered_again(hand: Hand, then: str) -> None:
    session, message = hand.create(), hand.message()
    hand.journal.deliver(session, message, digest="a" * 32)
    if then == "ended":
        hand.end(session)
    before = hand.everything()
    assert hand.journal.deliver(session, message, digest="a" * 32).again
    assert hand.journal.deliver(session, message).again, "no digest is not compared"
    with pytest.raises(DeliveryKeyReused, match=message.id):
        hand.journal.deliver(session, message, digest="b" * 32)
    assert changed(before, hand.everything()) == set()


def test_a_digest_is_compared_with_that_of_its_own_delivery(hand: Hand) -> None:
    session, one, other = hand.create(), hand.message(), hand.message()
    hand.journal.deliver(session, one, digest="a" * 32)
    hand.journal.deliver(session, other)
    assert hand.journal.deliver(session, other, digest="b" * 32).again, "it came without one, at the same moment"
    assert hand.journal.deliver(session, one, digest="a" * 32).again


def test_digests_are_forgotten_with_their_deliveries(hand: Hand) -> None:
    session = hand.create()
    hand.journal.deliver(session, hand.message(), digest="a" * 32)
    hand.later(DAY_MS + 1)
    hand.deliver(session)
    assert hand.client.zcard(hand.journal.keys(session).seen) == 1


def test_who_created_a_session_or_was_accepted_by_it_takes_part(hand: Hand) -> None:
    ada, bob = principal_key(ADA), principal_key(BOB)
    session = hand.create(who=ada)
    assert (hand.reads.takes_part(session, ada), hand.reads.takes_part(session, bob)) == (True, False)
    hand.journal.deliver(session, hand.control(), who=bob)
    assert hand.reads.takes_part(session, bob)


def test_who_was_refused_takes_no_part(hand: Hand) -> None:
    hand = small(hand, 0)
    session, bob = hand.create(), principal_key(BOB)
    with pytest.raises(InboxFull):
        hand.journal.deliver(session, hand.message(), who=bob)
    hand.reset(session)
    with pytest.raises(SessionNotActive):
        hand.journal.deliver(session, hand.message(), who=bob)
    assert not hand.reads.takes_part(session, bob)


# An operation -----------------------------------------------------------------------------------------------------------


OPERATION = Operation("op-1", ADA)


def operate(hand: Hand, operation: Operation = OPERATION) -> tuple[SessionId, bool]:
    admitted = hand.journal.create(
        new_session(hand.now, operation.shard),
        agent="support",
        deployment=LABEL,
        first=hand.message(),
        operation=operation,
    )
    return admitted.session, admitted.again


@pytest.mark.parametrize("then", ["live", "reset", "ended"])
def test_an_operation_creates_one_session_while_that_lives_and_for_a_day_at_least(hand: Hand, then: str) -> None:
    session, again = operate(hand)
    assert not again
    if then != "live":
        hand.reset(session)
    if then == "ended":
        hand.end(session)
    hand.later(DAY_MS - 1)
    before = hand.everything()
    assert operate(hand) == (session, True)
    assert changed(before, hand.everything()) == set()
    hand.later(1)
    if then == "live":
        assert operate(hand) == (session, True)
        assert hand.fields(session)["waiting"] == "1"
    else:
        assert operate(hand)[0] != session


def test_operations_of_others_and_other_operations_create_sessions_of_their_own(hand: Hand) -> None:
    sessions = {operate(hand, Operation(key, who))[0] for key in ("op-1", "op-2") for who in (ADA, BOB)}
    assert len(sessions) == 4


def test_an_operation_must_live_in_the_shard_of_its_session(hand: Hand) -> None:
    operation = Operation("op-1", ADA)
    with pytest.raises(ValueError, match="shard"):
        hand.create(session=new_session(hand.now, "1Z" if operation.shard != "1Z" else "0Z"), operation=operation)


def test_many_creations_of_one_operation_at_once_create_one_session(hand: Hand) -> None:
    answers = at_once(12, lambda _: operate(hand))
    assert len({session for session, _ in answers}) == 1
    assert sorted(again for _, again in answers) == [False] + [True] * 11
    assert len(hand.wakes()) == 1


def test_an_operations_name_is_not_stored(hand: Hand) -> None:
    operate(hand, Operation("the-name-of-it", ADA))
    assert b"the-name-of-it" not in repr(hand.everything()).encode()
    assert b"ada" not in repr(hand.client.keys("*")).encode()
