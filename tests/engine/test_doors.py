"""Messages by address: one session at a time behind each door, whatever breaks on the way in."""

import threading
from collections import Counter

import pytest

from orchestrator import ids
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import AddressTaken, DeliveryKeyReused, SessionNotActive
from orchestrator.journal import Arrived
from tests.engine.test_controls import traces
from tests.engine.test_crash_table import WAYS
from tests.engine.test_steering import ANN, echo
from tests.worlds import Fault, How, World, answered, said

FAULTS = pytest.mark.parametrize(("how", "late_by"), [(None, None), *WAYS])


def elsewhere(session: SessionId) -> str:
    """An address in another shard than this session's."""
    names = (f"thread-{number}" for number in range(10_000))
    return next(name for name in names if ids.address_shard(ids.address_key("desk", name)) != ids.shard_of(session))


def told(world: World, session: SessionId) -> list[str]:
    return [data["message"] for kind, data in world.shown(session) if kind == "message.received"]


def run_all(world: World, *arrived: Arrived) -> list[SessionId]:
    """Carry on every session that something has arrived in; in the order in which they came to be."""
    sessions = list(dict.fromkeys(one.session for one in arrived))
    for session in sessions:
        world.run(session)
        world.check(session)
    return sessions


# The first message, and the next ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1])
@FAULTS
def test_messages_to_an_address_find_one_session_whatever_breaks(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    world.app(echo)
    world.traffic.fault = Fault(at, how, late_by) if how else None
    first = world.arrive("ann", "one", who=ANN)
    second = world.arrive("ann", "two", who=ANN)
    world.traffic.settle()
    (session,) = run_all(world, first, second)
    assert told(world, session) == ["one", "two"]
    assert world.worker.resolve("desk", "ann") == session


@pytest.mark.parametrize("at", range(5))
@FAULTS
def test_after_a_reset_the_next_message_begins_a_new_session_whatever_breaks(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    world.app(echo)
    first = world.arrive("ann", "one")
    world.run(first.session)
    begun = len(world.traffic.verbs)
    world.traffic.fault = Fault(begun + at, how, late_by) if how else None
    world.control(first.session, "reset")
    # No worker has looked at it yet: the address leads to a new one all the same.
    second = world.arrive("ann", "two")
    world.traffic.settle()
    old, new = run_all(world, first, second)
    assert (told(world, old), told(world, new)) == (["one"], ["two"])
    assert world.types(old)[-1] == "session.completed"
    assert world.worker.resolve("desk", "ann") == new
    assert world.journal.addresses(old) == []


def test_fifty_first_messages_at_once_are_one_session(world: World) -> None:
    world.app(echo)
    engines = [world.engine(), world.engine()]
    found: list[Arrived] = []

    def send(number: int) -> None:
        body = Body((Part("text", str(number)),))
        found.append(engines[number % 2].arrive("desk", "room", body, principal=Principal("t", "user", str(number))))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sum(one.started for one in found) == 1
    (session,) = run_all(world, *found)
    assert sorted(map(int, told(world, session))) == list(range(50))


# Keys -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(3))
@FAULTS
def test_a_key_gets_its_first_answer_after_restarts_and_resets_too(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    world.app(echo)
    world.traffic.fault = Fault(at, how, late_by) if how else None
    first = world.arrive("ann", "one", key="webhook-1", who=ANN)
    again = world.arrive("ann", "one", key="webhook-1", who=ANN)
    world.run(first.session)
    world.control(first.session, "reset")
    late = world.arrive("ann", "one", key="webhook-1", who=ANN)
    world.traffic.settle()
    assert {one.session for one in (first, again, late)} == {first.session}
    assert {one.delivery for one in (first, again, late)} == {first.delivery}
    run_all(world, first)
    assert told(world, first.session) == ["one"]
    assert world.worker.resolve("desk", "ann") is None


def test_a_key_that_comes_with_another_text_is_refused_and_changes_nothing(world: World) -> None:
    world.app(echo)
    first = world.arrive("ann", "one", key="k", who=ANN)
    with pytest.raises(DeliveryKeyReused):
        world.arrive("ann", "other", key="k", who=ANN)
    run_all(world, first)
    assert told(world, first.session) == ["one"]


# Aliases ----------------------------------------------------------------------------------------------------------------


def aliased(world: World) -> tuple[SessionId, str]:
    """A session and a further address of it, which lives in another shard."""
    world.app(echo)
    session = world.arrive("ann", "one").session
    other = elsewhere(session)
    world.worker.take_address(session, "desk", other)
    return session, other


@pytest.mark.parametrize("at", range(3))
@FAULTS
def test_a_message_to_an_alias_reaches_its_session_once_whatever_breaks(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    session, other = aliased(world)
    begun = len(world.traffic.verbs)
    world.traffic.fault = Fault(begun + at, how, late_by) if how else None
    arrived = world.arrive(other, "two", key="k")
    again = world.arrive(other, "two", key="k")
    world.traffic.settle()
    assert {arrived.session, again.session} == {session}
    run_all(world, arrived)
    assert told(world, session) == ["one", "two"]


@pytest.mark.parametrize("at", range(8))
@FAULTS
def test_after_the_end_an_alias_leads_to_a_new_session_whatever_breaks(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    session, other = aliased(world)
    world.run(session)
    world.arrive(other, "two", key="k")
    world.run(session)
    begun = len(world.traffic.verbs)
    world.traffic.fault = Fault(begun + at, how, late_by) if how else None
    world.control(session, "reset")
    repeated = world.arrive(other, "two", key="k")
    fresh = world.arrive(other, "three")
    world.traffic.settle()
    assert repeated.session == session, "what came before has its first answer"
    assert fresh.session != session
    run_all(world, repeated, fresh)
    assert (told(world, session), told(world, fresh.session)) == (["one", "two"], ["three"])
    assert world.worker.resolve("desk", other) == fresh.session
    assert world.worker.resolve("desk", "ann") is None


@pytest.mark.parametrize("at", range(4))
@FAULTS
def test_an_alias_is_taken_once_and_given_up_at_the_end_whatever_breaks(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    world.app(echo)
    session = world.arrive("ann", "one").session
    world.run(session)
    other = elsewhere(session)
    begun = len(world.traffic.verbs)
    world.traffic.fault = Fault(begun + at, how, late_by) if how else None
    world._insist(lambda: world.worker.take_address(session, "desk", other))
    world.traffic.settle()
    assert world.worker.resolve("desk", other) == session
    assert {one.text for one in world.journal.addresses(session)} == {"ann", other}
    world.control(session, "reset")
    world.run(session)
    world.run(session)
    assert world.worker.resolve("desk", other) is None
    assert world.journal.addresses(session) == []
    world.check(session)


def test_an_address_of_another_live_session_is_not_taken(world: World) -> None:
    world.app(echo)
    ann, ben = world.arrive("ann", "one").session, world.arrive("ben", "two").session
    with pytest.raises(AddressTaken):
        world.worker.take_address(ann, "desk", "ben")
    assert world.worker.resolve("desk", "ben") == ben
    assert {one.text for one in world.journal.addresses(ann)} == {"ann"}


def test_a_control_of_an_address_where_nobody_lives_begins_nothing(world: World) -> None:
    world.app(echo)
    for kind in ("cancel", "clear", "compact", "reset"):
        with pytest.raises(SessionNotActive):
            world.worker.control_at("desk", "nobody", kind)
    assert world.worker.resolve("desk", "nobody") is None


def test_an_erased_session_leaves_no_door_behind(world: World) -> None:
    session, other = aliased(world)
    world.arrive(other, "two", key="k", who=ANN)
    world.arrive("ann", "three", key="l", who=ANN)
    world.run(session)
    world.worker.erase(session)
    assert traces(world, session) == []
    fresh = world.arrive(other, "two", key="k", who=ANN)
    assert fresh.session != session


# Many people ------------------------------------------------------------------------------------------------------------


def test_a_thousand_messages_of_fifty_people_are_all_taken_in_each_persons_in_order(world: World) -> None:
    world.change(steps_per_task=50)
    world.app(echo)
    session = world.create(None)
    people = [Principal("test", "user", f"p{number}") for number in range(50)]
    for number in range(1000):
        world.say(session, f"{number % 50} {number}", who=people[number % 50])
    world.run(session, most=500)
    found = told(world, session)
    assert len(found) == 1000
    assert max(Counter(found).values()) == 1
    for person in range(50):
        mine = [int(text.split()[1]) for text in found if text.startswith(f"{person} ")]
        assert mine == sorted(mine)
    assert world.history(session)[-1] == answered(f"You said {found[-1]}.")
    assert world.history(session)[0] == said("0 0")
    world.check(session)
