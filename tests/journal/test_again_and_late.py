"""Each verb said twice, with its reply lost, by a stale owner, and too late: the first answer, and nothing changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from orchestrator.core.names import DeliveryId, Millis, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import JournalAway, SessionNotActive
from orchestrator.ids import address_key, new_link, new_session, shard_of
from orchestrator.journal import AdmissionKey, Appended, Done, Gone, Granted, Operation, Refused, Superseded
from orchestrator.journal.scripts import VERBS, Script
from orchestrator.journal.stubs import stub
from tests.journal.world import CHANNEL, HERE, LABEL, THERE, Command, Hand, Owner, Spoken, a_delta, changed, verb_of


def busy(hand: Hand) -> Owner:
    """An owner in the middle of a turn."""
    owner = hand.owner(hand.asked())
    assert isinstance(owner.use(owner.granted.heads[0].id), Done)
    return owner


def _create(hand: Hand) -> None:
    hand.asked()


def _create_empty(hand: Hand) -> None:
    hand.create()


def _deliver(hand: Hand) -> None:
    hand.deliver(hand.create())


def _deliver_cancel(hand: Hand) -> None:
    assert hand.deliver(busy(hand).session, hand.control()).outcome == "cancelling"


def _deliver_idle_cancel(hand: Hand) -> None:
    assert hand.deliver(hand.create(), hand.control()).outcome == "nothing_runs"


def _own(hand: Hand) -> None:
    hand.owner(hand.asked())


def _own_dead(hand: Hand) -> None:
    owner = busy(hand)
    hand.later(10_001)
    assert hand.owner(owner.session).granted.attempt == 1


def _keep(hand: Hand) -> None:
    assert isinstance(busy(hand).commit(records=(("call_0_0_0", b"r"),), state=(("slot", b"s"),), tidy=True), Done)


def _park(hand: Hand) -> None:
    assert isinstance(busy(hand).commit(mode="park", turn=None), Done)


def _chain(hand: Hand) -> None:
    assert isinstance(busy(hand).commit(mode="chain", work=True), Done)


def _end(hand: Hand) -> None:
    assert isinstance(busy(hand).commit(mode="end", turn=None), Done)


def _park_with_news(hand: Hand) -> None:
    owner = busy(hand)
    hand.deliver(owner.session)
    answer = owner.commit(mode="park", turn=None)
    assert isinstance(answer, Done)
    assert answer.heads


def _park_behind_waiting_messages(hand: Hand) -> None:
    owner = busy(hand)
    hand.deliver(owner.session)
    owner.commit(judged=2)
    assert isinstance(owner.commit(turn=None), Done)


def _append(hand: Hand) -> None:
    busy(hand).append(3)


def _renew(hand: Hand) -> None:
    assert busy(hand).renew() == "done"


def _release(hand: Hand) -> None:
    busy(hand).release()


def _disown(hand: Hand) -> None:
    owner = busy(hand)
    assert hand.journal.disown(owner.session, owner.token, fault=True)


def _due(hand: Hand) -> None:
    hand.asked()
    hand.later(2_001)
    hand.client.delete("orc.default")
    assert hand.journal.due()[2] == 1


def _prune(hand: Hand) -> None:
    owner = busy(hand)
    line = a_delta(hand.now, "some text")
    owner.commit(lines=[line], tidy=True)
    at = owner.position.events - 1
    assert hand.journal.prune(owner.session, at + 1, 0, [(at, stub(line.encode()) or "")], seen=at + 1) == 1


def _heartbeat(hand: Hand) -> None:
    hand.journal.heartbeat(LABEL, "worker00")


def _leave(hand: Hand) -> None:
    hand.journal.heartbeat(LABEL, "worker00")
    hand.journal.heartbeat(LABEL, "worker00", leave=True)


def _reset(hand: Hand) -> None:
    hand.reset(busy(hand).session)


def _create_operation(hand: Hand) -> None:
    operation = Operation("op-1", Principal("jwt", "user", "ada"))
    hand.create(hand.message(), session=new_session(hand.now, operation.shard), operation=operation)


def _next_generation(hand: Hand) -> None:
    owner = busy(hand)
    assert isinstance(owner.commit(rows=2, new_gen=1, out=(b"post",)), Done)
    assert owner.position.gen == 1


def _arrive(hand: Hand) -> None:
    assert hand.arrive().started


def _arrive_there(hand: Hand) -> None:
    hand.arrive()
    assert not hand.arrive(hand.message(), AdmissionKey("webhook-1", "digest")).started


def _arrive_elsewhere(hand: Hand) -> None:
    hand.journal.take_address(hand.create(session=hand.candidate(THERE)), CHANNEL, HERE)
    hand.arrive()
    hand.said.pop()


def _reserve(hand: Hand) -> None:
    assert hand.journal.reserve(CHANNEL, "webhook-1", "digest") == "new"


def _take_address(hand: Hand) -> None:
    hand.journal.take_address(hand.create(session=hand.candidate(THERE)), CHANNEL, HERE)
    hand.said.pop()


def _list_address(hand: Hand) -> None:
    hand.journal.take_address(hand.create(session=hand.candidate(THERE)), CHANNEL, HERE)


def _drop_address(hand: Hand) -> None:
    session = hand.create(session=hand.candidate(THERE))
    hand.journal.take_address(session, CHANNEL, HERE)
    hand.journal.drop_address(session, CHANNEL, HERE)
    hand.said.pop()


def _list_dropped_address(hand: Hand) -> None:
    session = hand.create(session=hand.candidate(THERE))
    hand.journal.take_address(session, CHANNEL, HERE)
    hand.journal.drop_address(session, CHANNEL, HERE)


def _end_with_addresses(hand: Hand) -> None:
    owner = hand.owner(hand.arrive().session)
    hand.journal.take_address(owner.session, CHANNEL, THERE)
    assert isinstance(owner.use(owner.granted.heads[0].id, mode="end", turn=None), Done)


def _take_out(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", turn=None, out=(b"one", b"two"))
    assert len(hand.journal.take_out(owner.session, "holder", 1_000)) == 2


def _settle_out(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(mode="park", turn=None, out=(b"one", b"two"))
    hand.journal.take_out(owner.session, "holder", 1_000)
    assert hand.journal.settle_out(owner.session, "holder", 1, retry_in_ms=5_000) == 1


def _claim(hand: Hand) -> None:
    owner = busy(hand)
    token = new_link(shard_of(owner.session))
    owner.commit(mode="park", hold="input", requests=(("req_1", b"note"),), links=((token, "req_1"),))
    assert hand.journal.claim(token, DeliveryId("dlv_1")).delivery == "dlv_1"


def _deliver_file(hand: Hand) -> None:
    hand.deliver(busy(hand).session, hand.message(blobs={"b1": b"bytes"}))


def _create_with_file(hand: Hand) -> None:
    hand.create(hand.message(blobs={"b1": b"bytes"}))


def _arrive_with_file(hand: Hand) -> None:
    hand.arrive(hand.message(blobs={"b1": b"bytes"}))


def _use_file(hand: Hand) -> None:
    owner = hand.owner(hand.create(hand.message(blobs={"b1": b"bytes"})))
    assert isinstance(owner.use(owner.granted.heads[0].id, rows=1, blobs=("b1",)), Done)


def _let_file_go(hand: Hand) -> None:
    owner = hand.owner(hand.create(hand.message(blobs={"b1": b"bytes"})))
    owner.use(owner.granted.heads[0].id, rows=1, blobs=("b1",))
    assert isinstance(owner.commit(rows=1, new_gen=1), Done)
    assert hand.journal.blobs(owner.session, ["b1"]) == {}


def _keep_blob(hand: Hand) -> None:
    owner = busy(hand)
    hand.journal.write_blobs(owner.session, {"b1": b"+bytes"})
    assert hand.journal.keep_blobs(owner.session, owner.token, ["b1", "b2"]) == ["b2"]


def _forget(hand: Hand) -> None:
    session = hand.arrive().session
    hand.journal._forget_door(session, address_key(CHANNEL, HERE))


def _begin_to_erase(hand: Hand) -> None:
    owner = busy(hand)
    hand.journal._erase(owner.session, "begin")


def _erase(hand: Hand) -> None:
    assert hand.journal.erase(hand.arrive().session)


Act = Callable[[Hand], None]
ACTS: list[Act] = [
    _create, _create_empty, _deliver, _deliver_cancel, _deliver_idle_cancel, _own, _own_dead, _keep, _park, _chain, _end,
    _park_with_news, _park_behind_waiting_messages, _append, _renew, _release, _disown, _due, _prune, _heartbeat, _leave,
    _reset, _create_operation, _next_generation, _arrive, _arrive_there, _arrive_elsewhere, _reserve, _take_address, _list_address,
    _drop_address, _list_dropped_address, _end_with_addresses, _take_out, _settle_out, _claim, _forget, _begin_to_erase, _erase,
    _deliver_file, _create_with_file, _arrive_with_file, _use_file, _let_file_go, _keep_blob,
]  # fmt: skip
each_act = pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__.lstrip("_"))


def test_the_acts_are_of_every_verb(client: redis.Redis) -> None:
    played: set[str] = set()
    for act in ACTS:
        client.flushdb()
        hand = Hand(client)
        act(hand)
        played.add(verb_of(hand.said[-1]))
    assert played == set(VERBS)


@each_act
def test_a_second_time_changes_nothing(hand: Hand, act: Act) -> None:
    act(hand)
    before = hand.everything()
    hand.again(hand.said[-1])
    assert changed(before, hand.everything()) == set()


class Forgetful(Spoken):
    """The script has run, and its answer does not come back."""

    deaf = False

    def call(self, verb: Script, command: Command) -> Any:
        answer = super().call(verb, command)
        if self.deaf:
            self.deaf = False
            raise JournalAway(reason="the reply was lost")
        return answer


def twice(hand: Hand, ask: Callable[[], Any]) -> tuple[Any, Any]:
    """The answer that was lost and the one that the repeat got."""
    heard: list[Any] = []
    journal = hand.journal
    assert isinstance(journal, Forgetful)
    plain, journal.deaf = Spoken.call, True

    def listening(self: Spoken, verb: Script, command: Command) -> Any:
        heard.append(plain(self, verb, command))
        return heard[-1]

    Spoken.call = listening  # type: ignore[method-assign]  # what is lost must be heard by somebody
    try:
        with pytest.raises(JournalAway):
            ask()
        return heard[0], (ask(), heard[-1])[1]
    finally:
        Spoken.call = plain  # type: ignore[method-assign]  # put back


@pytest.fixture
def forgetful(hand: Hand) -> Hand:
    return Hand(hand.client, kind=Forgetful)


def test_create_whose_reply_was_lost_is_answered_again(forgetful: Hand) -> None:
    first, session = forgetful.message(), new_session(forgetful.now)
    lost, heard = twice(forgetful, lambda: forgetful.create(first, session=session))
    assert (lost[0], heard[0]) == (b"created", b"again")
    assert lost[1] == heard[1]
    assert len(forgetful.wakes()) == 1


@pytest.mark.parametrize(
    ("kind", "guard", "outcome"),
    [("message", "", 0), ("cancel", "", 1), ("cancel", "turn_0", 1), ("cancel", "turn_7", 2)],
)
def test_deliver_whose_reply_was_lost_gets_the_same_outcome(
    forgetful: Hand, kind: str, guard: str, outcome: int
) -> None:
    owner = busy(forgetful)
    delivery = forgetful.message() if kind == "message" else forgetful.control("cancel", guard)
    lost, heard = twice(forgetful, lambda: forgetful.deliver(owner.session, delivery))
    assert (lost[0], heard[0]) == (b"accepted", b"again")
    assert lost[3] == heard[3] == outcome


def test_own_whose_reply_was_lost_is_granted_once(forgetful: Hand) -> None:
    session, token = forgetful.asked(), forgetful.token()
    lost, heard = twice(forgetful, lambda: forgetful.own(session, token))
    assert lost == heard
    assert forgetful.fields(session)["epoch"] == "1"
    assert forgetful.fields(session)["attempt"] == "0"


@pytest.mark.parametrize("mode", ["keep", "chain", "park"])
@pytest.mark.parametrize("news", [False, True])
@pytest.mark.parametrize("turn", [0, None])
@pytest.mark.parametrize("waiting", [False, True])
def test_commit_whose_reply_was_lost_has_landed_with_the_same_answer(
    forgetful: Hand, mode: str, news: bool, turn: int | None, waiting: bool
) -> None:
    owner = busy(forgetful)
    if waiting:
        forgetful.deliver(owner.session)
        owner.commit(judged=2)
    if news:
        forgetful.deliver(owner.session)
    writes = owner.writes(mode=mode, turn=turn)
    lost, heard = twice(forgetful, lambda: forgetful.journal.commit(owner.session, owner.token, writes))
    assert (lost[0], heard[0]) == (b"done", b"landed")
    assert (lost[2], lost[4:]) == (heard[2], heard[4:])


def test_append_whose_reply_was_lost_has_landed_once(forgetful: Hand) -> None:
    owner = busy(forgetful)
    at = owner.position.events
    lines = [a_delta(forgetful.now, "a"), a_delta(forgetful.now, "b")]
    name = lines[0].partition('"id":"')[2][:30]
    lost, heard = twice(forgetful, lambda: forgetful.journal.append(owner.session, owner.token, at, name, lines))
    assert (lost[0], heard[0]) == (b"done", b"landed")
    assert lost[1:] == heard[1:]
    assert len(forgetful.reads.events(owner.session, at)) == 2


def test_a_death_whose_report_was_repeated_is_one_death(forgetful: Hand) -> None:
    owner = busy(forgetful)
    lost, heard = twice(forgetful, lambda: forgetful.journal.disown(owner.session, owner.token, fault=True))
    assert lost[0] == heard[0] == b"done"
    assert forgetful.fields(owner.session)["faults"] == "1"
    assert len(forgetful.wakes()) == 2, "one of the creation, one of the death"


def test_the_second_death_of_another_owner_counts_again(hand: Hand) -> None:
    owner = busy(hand)
    for faults in ("1", "2"):
        assert hand.journal.disown(owner.session, owner.token, fault=True)
        assert hand.fields(owner.session)["faults"] == faults
        hand.later(30_000)
        owner = hand.owner(owner.session)


# Too late --------------------------------------------------------------------------------------------------------------


def _released(hand: Hand, owner: Owner) -> None:
    owner.release()


def _parked(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="park", turn=None)


def _taken_over(hand: Hand, owner: Owner) -> None:
    hand.later(10_001)
    hand.owner(owner.session)


def _next_owner_wrote(hand: Hand, owner: Owner) -> None:
    owner.release()
    following = hand.owner(owner.session)
    following.append()
    following.commit()


def _ended(hand: Hand, owner: Owner) -> None:
    owner.commit(mode="end", turn=None)


AFTER = [_released, _parked, _taken_over, _next_owner_wrote, _ended]
each_later = pytest.mark.parametrize("later", AFTER, ids=lambda later: later.__name__.lstrip("_"))


def owners_words(hand: Hand) -> tuple[Owner, list[Command]]:
    """An owner that has said everything an owner can say, and the commands."""
    session = hand.asked()
    hand.said.clear()
    owner = hand.owner(session)
    owner.use(owner.granted.heads[0].id)
    owner.append(2)
    owner.renew()
    owner.commit(records=(("call_0_0_0", b"r"),), folded=("call_9_9_9",), state=(("slot", b"s"),))
    owner.commit()
    return owner, list(hand.said)


@each_later
@pytest.mark.parametrize("after_ms", [0, 4_000])
def test_what_an_owner_said_changes_nothing_when_it_runs_later(
    hand: Hand, later: Callable[[Hand, Owner], None], after_ms: int
) -> None:
    owner, said = owners_words(hand)
    later(hand, owner)
    before = hand.everything()
    for command in said:
        hand.again(command, now=hand.now + after_ms)
        # A question who owns it may put the wake and the look right, and nothing else (invariant 25).
        allowed = {"own.rung", "own.rings", "due"} if verb_of(command) == "own" else set()
        assert changed(before, hand.everything()) <= allowed, verb_of(command)


@each_later
def test_a_stale_owner_is_told_so(hand: Hand, later: Callable[[Hand, Owner], None]) -> None:
    owner, _ = owners_words(hand)
    at = owner.position
    later(hand, owner)
    owner.position = at
    before = hand.everything()
    assert owner.commit() == Superseded()
    assert owner.append() == Superseded()
    assert owner.renew() == "superseded"
    owner.release()
    assert not hand.journal.disown(owner.session, owner.token)
    assert changed(before, hand.everything()) == set()


def test_a_commit_of_before_the_last_is_superseded(hand: Hand) -> None:
    _, said = owners_words(hand)
    commits = [command for command in said if verb_of(command) == "commit"]
    assert [hand.again(command)[0] for command in commits] == [b"superseded", b"superseded", b"landed"]


def test_the_last_commit_has_landed_even_after_the_next_owner_came(hand: Hand) -> None:
    owner, said = owners_words(hand)
    owner.release()
    hand.owner(owner.session)
    answer = hand.again(said[-1])
    assert (answer[0], answer[4], answer[5]) == (b"landed", 0, [])


def test_a_question_that_nobody_waits_for_any_more_leases_the_session_to_nobody(hand: Hand) -> None:
    session, token = hand.asked(), hand.token()
    asked = hand.now
    hand.later(10_001)
    before = hand.everything()
    assert hand.journal.own(session, token, Millis(asked), deployment=LABEL) == Refused("stale")
    assert changed(before, hand.everything()) == set()


def test_a_question_that_runs_after_its_owner_left_leases_the_session_to_nobody(hand: Hand) -> None:
    owner, said = owners_words(hand)
    owner.release()
    assert hand.again(said[0]) == [b"stale"]
    assert hand.fields(owner.session)["token"] == ""


def test_a_renewal_after_the_release_leases_the_session_to_nobody(hand: Hand) -> None:
    owner = busy(hand)
    owner.release()
    assert owner.renew() == "superseded"
    assert hand.fields(owner.session)["lease"] == "0"
    assert isinstance(hand.own(owner.session), Granted)


def test_a_late_delivery_gets_its_first_answer_after_the_end(hand: Hand) -> None:
    owner = busy(hand)
    cancel = hand.control()
    hand.deliver(owner.session, cancel)
    owner.commit(mode="end", turn=None, judged=2, consumed=(cancel.id,))
    before = hand.everything()
    admitted = hand.deliver(owner.session, cancel)
    assert (admitted.again, admitted.outcome) == (True, "cancelling")
    assert changed(before, hand.everything()) == set()


def test_a_late_creation_finds_the_session_whatever_became_of_it(hand: Hand) -> None:
    first = hand.message()
    session = hand.create(first)
    created = hand.said[-1]
    owner = hand.owner(session)
    owner.use(first.id)
    owner.commit(mode="end", turn=None)
    before = hand.everything()
    assert hand.again(created)[0] == b"again"
    assert changed(before, hand.everything()) == set()


def test_a_late_pruning_finds_nothing_to_do(hand: Hand) -> None:
    _prune(hand)
    command = hand.said[-1]
    before = hand.everything()
    hand.later(60_000)
    assert hand.again(command, now=hand.now) == [b"done", 0]
    assert changed(before, hand.everything()) == set()


# Nobody there ------------------------------------------------------------------------------------------------------------


def test_where_there_is_no_session_nothing_is_written(hand: Hand) -> None:
    owner, said = owners_words(hand)
    session, journal = owner.session, hand.journal
    hand.client.flushdb()
    with pytest.raises(SessionNotActive):
        hand.deliver(session)
    with pytest.raises(SessionNotActive):
        hand.deliver(session, hand.control())
    assert hand.own(session) == Refused("gone")
    assert hand.own(session, lost=True, instead=owner.token) == Refused("gone")
    assert owner.commit() == Gone()
    assert owner.commit(mode="chain", work=True) == Gone()
    assert owner.append() == Gone()
    assert owner.renew() == "gone"
    owner.release()
    assert not journal.disown(session, owner.token, fault=True)
    assert journal.prune(session, 1, hand.now, [(0, "m" + "0" * 26 + "0:0")]) == 0
    for command in said:
        hand.again(command)
    assert journal.due()[2] == 0
    assert hand.client.keys("*") == []


@pytest.mark.parametrize("verb", ["own", "due"])
def test_a_session_that_is_gone_leaves_the_due_index(hand: Hand, verb: str) -> None:
    session = hand.asked()
    hand.client.delete(hand.journal.keys(session).own)
    hand.later(2_001)
    if verb == "own":
        hand.own(session)
    else:
        hand.journal.due()
    assert hand.due_at(session) is None


def test_a_session_that_is_gone_leaves_the_index_of_what_is_to_be_tidied(hand: Hand) -> None:
    owner = busy(hand)
    owner.commit(tidy=True)
    hand.client.delete(hand.journal.keys(owner.session).own)
    hand.journal.prune(owner.session, 0, hand.now, [])
    assert hand.journal.tidy(hand.now + 1_000_000) == []


# Many at once ------------------------------------------------------------------------------------------------------------


def at_once(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """What `count` threads are answered that ask at the same time."""
    answers: list[Any] = [None] * count
    gate = threading.Barrier(count)

    def run(place: int) -> None:
        gate.wait()
        answers[place] = ask(place)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_of_many_that_ask_one_is_granted(hand: Hand) -> None:
    session = hand.asked()
    answers = at_once(8, lambda _: hand.own(session))
    assert sum(isinstance(answer, Granted) for answer in answers) == 1
    assert {answer.why for answer in answers if isinstance(answer, Refused)} == {"leased"}


def test_one_delivery_sent_many_times_at_once_is_one_delivery(hand: Hand) -> None:
    session: SessionId = hand.create()
    message = hand.message()
    answers = at_once(8, lambda _: hand.deliver(session, message))
    assert sorted(answer.again for answer in answers) == [False] + [True] * 7
    assert hand.fields(session)["waiting"] == "1"
    assert len(hand.wakes()) == 1


def test_one_commit_sent_many_times_at_once_is_one_commit(hand: Hand) -> None:
    owner = busy(hand)
    writes = owner.writes()
    answers = at_once(8, lambda _: hand.journal.commit(owner.session, owner.token, writes))
    assert sorted(answer.landed for answer in answers) == [False] + [True] * 7
    assert hand.client.llen(hand.journal.keys(owner.session).fact) == writes.position.seq + 1


def test_one_append_sent_many_times_at_once_is_one_append(hand: Hand) -> None:
    owner = busy(hand)
    line = a_delta(hand.now, "once")
    at, name = owner.position.events, line.partition('"id":"')[2][:30]
    answers = at_once(8, lambda _: hand.journal.append(owner.session, owner.token, at, name, [line]))
    assert set(answers) == {Appended(at + 1, 1)}
    assert hand.reads.events(owner.session, at) == [line.encode()]
