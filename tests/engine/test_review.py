"""What must be true at the edges: of ends, steering, addresses, compaction, the outbox, erasure."""

import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import redis

import orchestrator.ids as ids
from orchestrator import Agent, App, Channel
from orchestrator.channels.channel import on
from orchestrator.clock import steady
from orchestrator.config import Settings
from orchestrator.core import codec
from orchestrator.core.delivery import Body, Delivery, Envelope, Part
from orchestrator.core.names import DeliveryId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.engine import Engine
from orchestrator.errors import AddressTaken, BadRequest, JournalAway
from orchestrator.models.scripted import ScriptedModel, answers, asks, calls, fails
from orchestrator.ports import ModelCall, ModelOutput, ReasoningDelta
from orchestrator.tool import ToolContext, tool
from tests.conftest import MakeServer
from tests.engine.test_controls import long_talk, traces
from tests.engine.test_news import beside
from tests.engine.test_steering import ANN, Slow, echo
from tests.journal.world import CHANNEL, HERE, THERE, Hand
from tests.servers import wait_for
from tests.worlds import Crash, Fault, World, answered

DAY_MS = 24 * 3600 * 1000
HELLO = Body((Part("text", "hello"),))


def unknown(world: World, session: SessionId) -> DeliveryId:
    """Something that only a newer version understands comes in."""
    at = world.journal.time()
    name = ids.new_delivery(at)
    world.journal.deliver(session, Delivery(name, Envelope("dance", at=at)))
    return name


def stop_after(world: World, calls: int) -> None:
    """The worker dies when it has made so many more script calls: a test must not hang on one that spins."""
    last = len(world.traffic.verbs) + calls

    def before(place: int, verb: str) -> None:
        if place == last:
            world.kill(world.worker)

    world.traffic.before = before


# The end of a session's time ----------------------------------------------------------------------------------------------


def test_a_session_whose_time_is_over_does_not_spin_because_of_what_only_a_newer_version_understands(
    world: World,
) -> None:
    session = long_talk(world, 1)
    name = unknown(world, session)
    world.skip(31 * DAY_MS)
    stop_after(world, 30)
    assert "too_new" in [world.worker.carry_on(session).how for _ in range(4)]
    assert name in {head.id for head in world.reads.heads(session, 0)}


def test_a_session_whose_time_is_over_does_not_end_over_what_only_a_newer_version_understands(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("hello", who=ANN)
    thread = threading.Thread(target=lambda: [world.worker.carry_on(session) for _ in range(6)])
    thread.start()
    wait_for(lambda: model.begun)
    name = unknown(world, session)
    world.say(session, "next", who=ANN, policy="queue")
    world.skip(31 * DAY_MS)
    model.go.set()
    thread.join(10)
    named = [event["data"]["deliveryId"] for event in world.events(session) if event["type"] == "message.discarded"]
    waits = name in {head.id for head in world.reads.heads(session, 0)}
    assert (world.fields(session)["status"], waits, named) == ("live", True, [])


def test_a_turn_that_waits_for_its_next_try_is_left_alone_when_the_sessions_time_is_over(world: World) -> None:
    world.app([fails("busy", retry_after=3600, times=1, then=answers("done"))])
    session = world.create()
    world.skip(30 * DAY_MS - 60_000)
    world.client.hset(world.journal.keys(session).own, "deadline", world.journal.time() + 60_000)
    assert world.run(session)[-1] == "parked"
    world.skip(120_000)
    world.worker.carry_on(session)
    due = world.client.zscore(world.journal.keys(session).due, session)
    assert due is not None
    assert due > world.journal.time() + 60_000, (
        "it is rung for again at once, four times a second, until the try is due"
    )


# Steering -----------------------------------------------------------------------------------------------------------------


def test_a_message_that_must_wait_behind_another_does_not_cut_the_model_call(world: World) -> None:
    model = Slow([ReasoningDelta("Hm.")])
    world.app(model)
    session = world.create("hello", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: any(event["type"] == "reasoning.appended" for event in world.events(session)))
    world.say(session, "first", policy="queue", who=ANN)
    world.say(session, "second", policy="steer", who=ANN)
    with suppress(AssertionError, TimeoutError):
        wait_for(lambda: model.closed, timeout=1.0)
    model.go.set()
    thread.join(10)
    thoughts = [event["data"]["turnId"] for event in world.events(session) if event["type"] == "reasoning.appended"]
    assert model.closed == [], "the call was cut, though nothing joins the turn"
    assert thoughts == ["turn_0", "turn_1"], "what was shown of the call that was cut is shown again, in the same step"


# Addresses ----------------------------------------------------------------------------------------------------------------


def test_an_address_that_is_dropped_late_leads_to_its_session_when_it_is_taken_again(world: World) -> None:
    world.app(echo)
    session = world.create()
    world.run(session)
    world.worker.take_address(session, "desk", "ann")
    begun = len(world.traffic.verbs)
    # list_address, drop_address: its reply does not come, and it runs after all that follows.
    world.traffic.fault = Fault(begun + 1, "executed late", late_by=None)
    with suppress(JournalAway):
        world.worker.drop_address(session, "desk", "ann")
    world.traffic.fault = None
    world.worker.take_address(session, "desk", "ann")
    world.traffic.settle()
    world.worker.take_address(session, "desk", "ann")
    assert world.worker.resolve("desk", "ann") == session


@pytest.mark.parametrize("verb", ["take_address", "drop_address", "erase"])
def test_what_is_said_to_be_done_with_addresses_and_erasure_is_on_disk(make_server: MakeServer, verb: str) -> None:
    server = make_server("valkey", appendonly=True, appendfsync="everysec")
    app = App(agents=[Agent("a", model=ScriptedModel([answers("yes")]))])
    engine = Engine(app, Settings(url=server.url, durability="fsync"))
    session = engine.create(HELLO).session

    def waited() -> int:
        return int(engine.journal.client.info("commandstats").get("cmdstat_waitaof", {}).get("calls", 0))

    if verb == "drop_address":
        engine.take_address(session, "desk", "ann")
    before = waited()
    engine.erase(session) if verb == "erase" else getattr(engine, verb)(session, "desk", "ann")
    assert waited() > before, "a power cut brings it back"


def test_an_address_that_was_another_sessions_is_not_taken_late(world: World) -> None:
    world.app(echo)
    mine = world.create()
    world.run(mine)
    other = world.arrive("ann", "hello").session
    world.run(other)
    # list_address, take_address: its reply does not come, and it runs after all that follows.
    world.traffic.fault = Fault(len(world.traffic.verbs) + 1, "executed late", late_by=None)
    with suppress(JournalAway):
        world.worker.take_address(mine, "desk", "ann")
    world.traffic.fault = None
    with pytest.raises(AddressTaken):
        world.worker.take_address(mine, "desk", "ann")
    world.control(other, "reset")
    world.run(other)
    world.traffic.settle()
    assert world.worker.resolve("desk", "ann") is None, "whoever took it was told that it is another's"
    world.worker.erase(mine)
    assert traces(world, mine) == [], "its own list does not know of it, so its erasure leaves it"


# Compaction ---------------------------------------------------------------------------------------------------------------


def test_a_compaction_that_kills_its_process_is_given_up(world: World) -> None:
    """As a step is: two deaths that were its own doing are enough."""
    session = long_talk(world, 12)
    tried: list[int] = []

    class Bomb:
        name = "bomb"

        async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
            if call.purpose == "summary":
                tried.append(1)
                world.kill(world.worker)
            async for out in ScriptedModel(echo).answer(call):
                yield out

    world.app(Bomb())
    world.control(session, "compact")
    for _ in range(6):
        with suppress(Crash):
            world.worker.carry_on(session)
        world.bury(session, fault=True)
        world.skip(60_000)
    assert len(tried) <= 3, f"it brought {len(tried)} workers down, and the innocent with them"


def test_a_compaction_that_breaks_in_the_model_layer_leaves_the_history_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = long_talk(world, 12)

    def broken(*_given: object, **_named: object) -> object:
        raise KeyError("a bug of a provider's library")

    monkeypatch.setattr(world.layer, "compaction", broken)
    world.control(session, "compact")
    for _ in range(8):
        try:
            if world.worker.carry_on(session).how in ("parked", "idle"):
                break
        except KeyError:
            world.bury(session)
            world.skip(60_000)
    else:
        raise AssertionError("the session never goes on")
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("You said again.")


def test_a_remembered_history_of_a_lost_timeline_is_not_taken_for_the_stored_one(world: World) -> None:
    """Two compactions of one generation keep the same last rows, with their ids."""
    number = iter(range(9))
    model = ScriptedModel(echo, summary=lambda talk: answers(f"summary {next(number)}"))
    world.app(model)
    session = world.create("0")
    world.run(session)
    for turn in range(1, 12):
        world.say(session, str(turn))
        world.run(session)
    lost, other = world.engine(), world.engine()
    frozen = world.freeze(session)
    for engine in (lost, other):
        world.control(session, "compact")
        while engine.carry_on(session).how not in ("parked", "idle"):
            pass
        if engine is lost:
            world.rewind(frozen)
    stored = world.history(session)
    assert "summary 1" in repr(stored[0])
    world.say(session, "again")
    while lost.carry_on(session).how not in ("parked", "idle"):
        pass
    sent = repr(world.requests[-1].history)
    assert "summary 0" not in sent, "the model was given the summary of a past that is lost"
    assert "summary 1" in sent


def test_a_cancel_behind_a_message_that_waits_for_a_compaction_stops_that_messages_turn(world: World) -> None:
    session = long_talk(world, 12)
    world.control(session, "compact")
    world.say(session, "again")
    assert world.cancel(session) == "cancelling"
    world.run(session)
    assert [kind for kind in world.types(session) if kind.startswith("turn.c")][-1] == "turn.cancelled"


# What comes in ------------------------------------------------------------------------------------------------------------


def test_controls_do_not_fill_an_inbox_without_end(world: World) -> None:
    """Messages are counted and limited; of controls that nobody has looked at yet, one of each kind says it all."""
    world.app(echo)
    session = world.create()
    for _ in range(50):
        world.control(session, "clear")
        world.control(session, "compact")
    assert world.client.zcard(world.journal.keys(session).inbox) <= 10


# Channels -----------------------------------------------------------------------------------------------------------------


def test_what_an_owned_session_has_said_is_posted_while_its_tool_runs(url: str) -> None:
    heard: list[str] = []
    begun, go = threading.Event(), threading.Event()

    class Desk(Channel):
        @on("message.completed")
        def tell(self, event: object, to: object) -> None:
            heard.append(event.data["message"])  # type: ignore[attr-defined]

    @tool
    def dig(ctx: ToolContext) -> str:
        """Dig, for up to fifteen minutes."""
        begun.set()
        go.wait(20)
        return "a bone"

    model = ScriptedModel([calls(asks("dig"), text="I begin to dig."), answers("done")])
    app = App(agents=[Agent("a", model=model, tools=[dig])], channels=[Desk("desk")])
    settings = Settings(url=url, lease_seconds=3.0)
    one, other = Engine(app, settings), Engine(app, settings)
    session = one.arrive("desk", "ann", HELLO).session
    thread = threading.Thread(target=one.carry_on, args=(session,))
    thread.start()
    assert begun.wait(30)
    seen = []
    until = steady() + 6
    while steady() < until and not heard:
        other.journal.due()
        seen.append(other.carry_on(session).how)
        go.wait(0.25)
    told = list(heard)
    go.set()
    thread.join(10)
    for engine in (one, other):
        engine.close()
    assert told == ["I begin to dig."], set(seen)


def test_an_outbox_that_is_taken_late_keeps_nobody_out_and_counts_no_try(client: redis.Redis) -> None:
    hand = Hand(client)
    session = hand.asked()
    hand.owner(session).commit(out=(b"one", b"two"), mode="park", turn=None, judged=1)
    hand.later(3_000)
    assert len(hand.journal.take_out(session, "first", 20_000, 1)) == 1
    late = hand.said[-1]
    hand.journal.settle_out(session, "first", 1)
    hand.again(late)
    (two,) = hand.journal.take_out(session, "second", 20_000, 1)
    assert (two.entry, two.tries) == (b"two", 1)


def test_the_drop_of_an_address_has_its_number_in_the_outbox(client: redis.Redis) -> None:
    hand = Hand(client)
    session = hand.arrive(at=HERE).session
    hand.journal.take_address(session, CHANNEL, THERE)
    hand.owner(session).commit(out=(b"one",), mode="keep", turn=None, judged=0)
    hand.later(20_000)
    hand.end(session)
    hand.later(3_000)
    one, drop = hand.journal.take_out(session, "first")
    assert (one.number, drop.number, drop.done) == (0, 1, True)


# Erasure ------------------------------------------------------------------------------------------------------------------


def test_a_session_whose_erasure_has_begun_is_gone_for_all(world: World) -> None:
    """There are more addresses than one call lets go of, and the caller dies behind the first."""
    world.app(echo)
    session = world.create(who=ANN)
    world.run(session)
    for number in range(20):
        world.worker.take_address(session, "desk", str(number))
    assert world.journal.erase(session) is False
    assert world.reads.view(session) is None
    assert session not in [name for name, _ in world.worker.sessions()]
    assert not world.worker.takes_part(session, ANN)


# What a snapshot holds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "who",
    [
        Principal("desk", "user", "a" * 70_000),
        Principal("desk", "user", "ann", extra={"groups": [f"group {number:06}" for number in range(6000)]}),
    ],
    ids=["a long id", "many attributes"],
)
def test_a_caller_of_whom_too_much_is_said_is_refused_and_never_stops_a_session(world: World, who: Principal) -> None:
    world.app(echo)
    try:
        session = world.create(who=who)
    except BadRequest:
        return
    for _ in range(4):
        with suppress(codec.Unstorable):
            if world.worker.carry_on(session).how == "parked":
                return
        world.bury(session)
        world.skip(60_000)
    raise AssertionError("its first commit never fits, and it is tried for ever")


# Behind what was mended ---------------------------------------------------------------------------------------------------


def test_a_message_behind_a_cancel_is_not_stopped_with_the_one_before_it(world: World) -> None:
    session = long_talk(world, 12)
    world.control(session, "compact")
    world.say(session, "one", who=ANN)
    assert world.cancel(session) == "cancelling"
    world.say(session, "two", who=ANN)
    world.run(session)
    assert [kind for kind in world.types(session) if kind.startswith("turn.c")][-2:] == [
        "turn.cancelled",
        "turn.completed",
    ]
    assert world.history(session)[-1] == answered("You said two.")


def test_an_outbox_that_is_taken_late_by_an_earlier_holder_keeps_nobody_out(client: redis.Redis) -> None:
    hand = Hand(client)
    session = hand.asked()
    hand.owner(session).commit(out=(b"one", b"two", b"three"), mode="park", turn=None, judged=1)
    hand.later(3_000)
    hand.journal.take_out(session, "first", 20_000, 1)
    late = hand.said[-1]
    hand.journal.settle_out(session, "first", 1)
    hand.journal.take_out(session, "second", 20_000, 1)
    hand.journal.settle_out(session, "second", 1)
    hand.again(late)
    (three,) = hand.journal.take_out(session, "third", 20_000, 1)
    assert (three.entry, three.tries) == (b"three", 1)


def test_takes_that_were_refused_do_not_fill_the_list_of_addresses(client: redis.Redis) -> None:
    hand = Hand(client)
    mine = hand.asked()
    for _ in range(2):
        other = hand.asked()
        for number in range(256):
            hand.journal.take_address(other, CHANNEL, f"{other}/{number}")
            with pytest.raises(AddressTaken):
                hand.journal.take_address(mine, CHANNEL, f"{other}/{number}")
    assert hand.journal.addresses(mine) == []
    hand.journal.take_address(mine, CHANNEL, "free")
    assert [one.text for one in hand.journal.addresses(mine)] == ["free"]
