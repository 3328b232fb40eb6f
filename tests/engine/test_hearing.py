"""What a driver hears of what comes in, also when the hint was lost, and what it does with what it does not understand."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

import orchestrator.ids as ids
from orchestrator.core import advance
from orchestrator.core.delivery import Delivery, Envelope, Head
from orchestrator.core.names import DeliveryId, SessionId, Token
from orchestrator.core.snapshot import READS
from orchestrator.engine import Engine
from orchestrator.journal import Granted, Superseded
from orchestrator.models.scripted import ScriptedModel, answers, asks, fails
from orchestrator.ports import ModelCall, ModelOutput, TextDelta
from orchestrator.tool import ToolContext, tool
from tests.servers import wait_for
from tests.worlds import World, answered, said


class Waits:
    """A model that waits, in silence or talking."""

    name = "scripted"

    def __init__(self, word: str = "") -> None:
        self.word = word

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        for _ in range(300):
            if self.word:
                yield TextDelta(self.word)
            await asyncio.sleep(0.1)


def beside(engine: Engine, session: SessionId) -> threading.Thread:
    """A worker carries the session on in a thread."""
    thread = threading.Thread(target=engine.carry_on, args=(session,))
    thread.start()
    return thread


def dead_in_its_model_call(world: World) -> SessionId:
    """A session whose first worker has died while the model was asked: the next one asks without writing anything."""
    session = world.create()
    first = world.worker
    thread = beside(first, session)
    wait_for(lambda: world.requests)
    world.kill(first)
    first.process.owned()[0].lose(Superseded())
    thread.join(5)
    world.bury(session)
    world.requests.clear()
    return session


# Hints that were lost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listening", [False, True], ids=["first session", "listening already"])
def test_a_cancel_between_the_grant_and_the_drive_is_heard_at_once(world: World, listening: bool) -> None:
    world.app(Waits())
    session = dead_in_its_model_call(world)
    worker = world.engine()
    world._worker = worker
    if listening:
        other = world.create()
        cancelled = beside(worker, other)
        wait_for(lambda: world.requests)
        world.cancel(other)
        cancelled.join(5)
        assert not cancelled.is_alive()
        world.requests.clear()

    def after(place: int, verb: str) -> None:
        if verb == "own":
            world.traffic.after = lambda place, verb: None
            assert world.cancel(session) == "cancelling"
            time.sleep(0.2)  # the hint is heard before the driver is there

    world.traffic.after = after
    began = time.monotonic()
    thread = beside(worker, session)
    thread.join(3)
    assert not thread.is_alive(), "the cancel was not heard"
    assert time.monotonic() - began < 2.0
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    world.check(session)


def test_a_hint_that_was_lost_is_made_good_by_the_next_delta(world: World) -> None:
    world.app(Waits("on and on "))
    worker = world.worker
    worker.process._heard = lambda text: None  # type: ignore[method-assign]
    session = world.create()
    thread = beside(worker, session)
    wait_for(lambda: any(event["type"] == "message.appended" for event in world.events(session)))
    assert world.cancel(session) == "cancelling"
    thread.join(2)
    assert not thread.is_alive(), "the cancel was not heard"
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    world.check(session)


def test_a_loss_that_is_heard_of_as_another_owner_is_named_by_the_next(world: World) -> None:
    world.change(steps_per_task=50)
    world.app(Waits())
    session = world.create()
    frozen = world.freeze(session)
    worker = world.worker
    thread = beside(worker, session)
    wait_for(lambda: world.requests)
    seen = len(world.events(session))
    (owned,) = worker.process.owned()
    world.rewind(frozen)
    other = Token(worker.process.prefix + ids.ulid(world.journal.time()))
    granted = world.journal.own(session, other, world.journal.time(), deployment=world.settings.deployment)
    assert isinstance(granted, Granted)
    assert granted.position.events < seen
    assert not worker.process.pulse.renew(owned)
    thread.join(3)
    assert not thread.is_alive()
    kinds = [(head.envelope.kind, head.envelope.guard) for head in world.reads.heads(session, 0)]
    assert ("tail_seen", str(seen)) in kinds
    world.app([answers("done")])
    world.bury(session)
    world.run(session)
    types = [event["type"] for event in world.events(session)]
    assert "session.rewound" in types
    assert types.index("session.rewound") >= seen
    assert world.history(session) == [said("hello"), answered("done")]
    world.check(session)


# What is not understood -------------------------------------------------------------------------------------------------

UNKNOWN = [Envelope("dance"), Envelope("message", v=2)]
IDS = ["unknown kind", "newer version"]


def deliver(world: World, session: SessionId, envelope: Envelope) -> DeliveryId:
    """Something that only a newer version knows what to do with."""
    at = world.journal.time()
    found = ids.new_delivery(at)
    world.journal.deliver(session, Delivery(found, replace(envelope, at=at)))
    return found


def is_left_for_a_newer_worker(world: World, session: SessionId, unknown: DeliveryId) -> None:
    """The session waits, nothing spins, and a message that comes later waits with it."""
    calls = len(world.traffic.verbs)
    assert world.worker.carry_on(session).how == "too_new"
    assert world.worker.carry_on(session).how == "too_new"
    assert len(world.traffic.verbs) <= calls + 2, "it is refused, and not looked at"
    later = world.say(session, "later")
    assert world.worker.carry_on(session).how == "too_new"
    waiting = {head.id for head in world.reads.heads(session, 0)}
    assert {unknown, later} <= waiting, "nothing is lost"
    assert world.fields(session)["token"] == ""
    assert int(world.fields(session)["reads"]) > READS


def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on all workers are of a version that knows: it drops what we do not."""

    def understands(head: Head) -> bool:
        return True

    def judge(snapshot: object, head: Head, scene: object, following: object = ()) -> object:
        kind = "message" if head.envelope.v == 1 and head.envelope.kind == "message" else "nothing"
        known = replace(head, envelope=replace(head.envelope, kind=kind, v=1))
        return old(snapshot, known, scene)  # type: ignore[arg-type]

    old = advance.judge
    for module in ("orchestrator.draft", "orchestrator.turn.driver", "orchestrator.turn.hands"):
        monkeypatch.setattr(f"{module}.understands", understands)
    monkeypatch.setattr("orchestrator.draft.judge", judge)
    monkeypatch.setattr("orchestrator.journal.ownership.READS", READS + 1)


@pytest.mark.parametrize("envelope", UNKNOWN, ids=IDS)
def test_what_is_not_understood_in_an_idle_session_waits_for_a_newer_worker(
    world: World, envelope: Envelope, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.app([answers("done")])
    session = world.create()
    world.run(session)
    unknown = deliver(world, session, envelope)
    calls = len(world.traffic.verbs)
    assert world.run(session, most=5)[-1] == "too_new"
    assert len(world.traffic.verbs) <= calls + 12, world.traffic.verbs[calls:]
    is_left_for_a_newer_worker(world, session, unknown)
    newer(monkeypatch)
    world.run(session, most=10)
    assert world.history(session) == [said("hello"), answered("done"), said("later"), answered("done")]
    assert world.reads.heads(session, 0) == ()


@pytest.mark.parametrize("envelope", UNKNOWN, ids=IDS)
def test_what_is_not_understood_in_an_owned_session_waits_until_its_turn_is_over(
    world: World, envelope: Envelope, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    @tool
    def look(ctx: ToolContext) -> str:
        """Look until told."""
        go.wait(10)
        return "seen"

    world.change(steps_per_task=50)
    world.app([asks("look"), answers("done")], [look])
    session = world.create()
    thread = threading.Thread(target=world.run, args=(session,), kwargs={"most": 5})
    thread.start()
    wait_for(lambda: world.starts("look"))
    unknown = deliver(world, session, envelope)
    calls = len(world.traffic.verbs)
    time.sleep(0.5)
    assert len(world.traffic.verbs) <= calls + 3, "it does not spin meanwhile"
    go.set()
    thread.join(5)
    assert not thread.is_alive()
    assert len(world.traffic.verbs) <= calls + 16, world.traffic.verbs[calls:]
    assert world.history(session)[-1] == answered("done"), "the turn came to its end"
    is_left_for_a_newer_worker(world, session, unknown)
    newer(monkeypatch)
    world.run(session, most=10)
    assert world.reads.heads(session, 0) == ()
    assert said("later") in world.history(session)


@pytest.mark.parametrize("when", ["before the timer", "on the timer"])
@pytest.mark.parametrize("envelope", UNKNOWN, ids=IDS)
def test_what_is_not_understood_during_a_timer_does_not_make_its_driver_spin(
    world: World, envelope: Envelope, when: str
) -> None:
    unknown: list[DeliveryId] = []
    world.app([fails("busy", retry_after=30, times=1, then=answers("done"))])
    session = world.create()
    if when == "on the timer":
        world.run(session)
        unknown.append(deliver(world, session, envelope))
    else:

        class Told:
            name = "told"

            async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
                unknown.append(deliver(world, session, envelope))
                async for out in ScriptedModel([fails("busy", retry_after=30)]).answer(call):
                    yield out

        world.app(Told())
    calls = len(world.traffic.verbs)
    assert world.run(session, most=5)[-1] in ("too_new", "parked", "idle")
    assert len(world.traffic.verbs) <= calls + 14, world.traffic.verbs[calls:]
    is_left_for_a_newer_worker(world, session, unknown[0])
