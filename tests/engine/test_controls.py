"""Clear, compact, reset, erase, and the end of a session's time: at every moment, whatever breaks."""

import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import SessionId
from orchestrator.errors import JournalAway, SessionNotActive, SessionNotFound
from orchestrator.journal.tidying import tidy
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks
from orchestrator.ports import ModelCall, ModelFailure, ModelOutput
from orchestrator.tool import ToolContext, tool
from tests.engine.test_crash_table import WAYS
from tests.engine.test_news import at_moment, beside
from tests.engine.test_steering import ANN, Slow, echo
from tests.servers import wait_for
from tests.worlds import Crash, Fault, How, World, answered, said

DAY_MS = 24 * 3600 * 1000
ENDS = ("turn.completed", "turn.cancelled", "turn.failed")


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Look somewhere."""
    return f"nothing in the {at}"


def thoughtful(talk: Conversation) -> Reply:
    """Looks once, then answers."""
    return asks("look", at="shelf") if talk.step == 0 else echo(talk)


TURN = ("create", "own", "commit: turn", "commit: answer", "commit: look", "own", "append", "commit: answer")
"""Every script call of `thoughtful`'s turn, a step for each task."""
MOMENTS = pytest.mark.parametrize("at", range(1, len(TURN)), ids=lambda at: f"{at} {TURN[at]}")
FAULTS = pytest.mark.parametrize(("how", "late_by"), [(None, None), *WAYS])


def told(world: World, session: SessionId) -> list[str]:
    """What was taken in, in order."""
    return [data["message"] for kind, data in world.shown(session) if kind == "message.received"]


def long_talk(world: World, turns: int = 8, **agent: Any) -> SessionId:
    """A session of so many turns of two rows each."""
    world.app(echo, **agent)
    session = world.create("0")
    world.run(session)
    for number in range(1, turns):
        world.say(session, str(number))
        world.run(session)
    return session


def test_the_moments_are_those_of_a_turn(world: World) -> None:
    world.app(thoughtful, [look])
    world.run(world.create("A book"))
    assert tuple(world.traffic.verbs) == tuple(verb.partition(":")[0] for verb in TURN)


# Clear ------------------------------------------------------------------------------------------------------------------


def test_a_clear_between_two_turns_is_done_at_once(world: World) -> None:
    session = long_talk(world, 2)
    before = len(world.events(session))
    world.control(session, "clear")
    world.run(session)
    cleared, waiting = world.events(session)[before:]
    assert cleared["type"] == "context.cleared"
    assert cleared["data"] == {"turnId": "turn_2", "sequence": 2, "sessionId": session}
    assert waiting["type"] == "session.waiting"
    assert "deliveryIds" not in cleared["meta"]
    assert world.history(session) == []
    world.check(session)
    world.say(session, "again")
    world.run(session)
    assert [len(request.history) for request in world.requests][-1] == 1, "the model knows nothing of what was before"
    assert world.history(session) == [said("again"), answered("You said again.")]
    assert world.types(session)[-7] == "turn.started"
    world.check(session)


def test_a_clear_keeps_state_and_puts_the_pinned_instructions_at_the_head_again(world: World) -> None:
    session = long_talk(world, 2, user_instructions="Speak plainly.")
    world.control(session, "clear")
    world.run(session)
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[0] == said("Speak plainly.", "again")
    world.check(session)


@MOMENTS
@FAULTS
def test_a_clear_at_any_moment_of_a_turn_is_done_when_the_turn_is_over(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    world.app(thoughtful, [look])
    at_moment(world, at, lambda session: world.control(session, "clear"))
    world.traffic.fault = Fault(at, how, late_by) if how else None
    session = world.create("A book")
    world.run(session)
    types = world.types(session)
    if at <= 1 and "context.cleared" not in types:
        raise AssertionError("a clear behind a message that waits comes after its turn")
    assert types[-4:] == ["turn.completed", "session.waiting", "context.cleared", "session.waiting"]
    assert world.history(session) == []
    world.check(session)
    world.say(session, "Thanks")
    world.run(session)
    assert world.history(session)[0] == said("Thanks")
    world.check(session)


@pytest.mark.parametrize("kind", ["clear", "compact"])
def test_a_control_of_a_session_that_has_not_begun_writes_nothing(world: World, kind: Any) -> None:
    world.app(echo)
    session = world.create(None)
    world.control(session, kind)
    world.run(session)
    assert world.events(session) == []
    world.check(session)


def test_two_clears_in_one_turn_are_one(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("hello")
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.control(session, "clear")
    world.control(session, "clear")
    model.go.set()
    thread.join(5)
    assert world.types(session).count("context.cleared") == 1
    world.check(session)


def test_a_waiting_message_begins_after_the_clear_that_was_kept(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("hello", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "next", policy="queue")
    world.control(session, "clear")
    model.go.set()
    thread.join(5)
    assert world.history(session) == [said("next"), answered("You said next.")]
    world.check(session)


# Compact ----------------------------------------------------------------------------------------------------------------


def test_a_compact_between_two_turns_sums_up_what_was_said_long_ago(world: World) -> None:
    session = long_talk(world, 12)
    before, rows = len(world.events(session)), world.history(session)
    world.control(session, "compact")
    world.run(session)
    requested, completed, waiting = world.events(session)[before:]
    place = {"turnId": "turn_12", "sequence": 12, "stepIndex": 0, "sessionId": session, "modelId": "scripted"}
    assert requested["type"] == "compaction.requested"
    assert {**requested["data"], "usageInputTokens": None} == {**place, "usageInputTokens": None}
    assert (completed["type"], completed["data"]) == ("compaction.completed", place)
    assert waiting["type"] == "session.waiting"
    shorter = world.history(session)
    assert len(shorter) < len(rows)
    assert shorter[-6:] == rows[-6:], "what was said last stays as it was"
    assert world.requests[-1].purpose == "summary"
    world.check(session)
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[:-2] == shorter
    assert world.history(session)[-1] == answered("You said again.")
    world.check(session)


def test_a_compact_with_nothing_to_sum_up_says_only_that_the_session_waits(world: World) -> None:
    session = long_talk(world, 1)
    before, rows = len(world.events(session)), world.history(session)
    world.control(session, "compact")
    world.run(session)
    assert [event["type"] for event in world.events(session)[before:]] == ["session.waiting"]
    assert world.history(session) == rows
    world.check(session)


class Failing:
    """A model that answers, but sums nothing up: it breaks in one of several ways."""

    name = "failing"

    def __init__(self, how: str) -> None:
        self.how = how
        self.summaries = 0

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        if call.purpose == "summary":
            self.summaries += 1
            if self.how == "raises":
                raise RuntimeError("no")
            if self.how != "empty":
                raise ModelFailure("busy", retryable=self.how == "busy", retry_after=0.0)
        script = ScriptedModel(echo, summary=lambda _: answers("   "))
        async for out in script.answer(call):
            yield out


@pytest.mark.parametrize(("how", "tries"), [("raises", 1), ("refuses", 1), ("busy", 3), ("empty", 1)])
def test_a_summary_that_fails_or_is_empty_leaves_the_history_alone(world: World, how: str, tries: int) -> None:
    session = long_talk(world, 12)
    rows, before = world.history(session), len(world.events(session))
    model = Failing(how)
    world.app(model)
    world.control(session, "compact")
    world.run(session)
    assert [event["type"] for event in world.events(session)[before:]] == ["compaction.requested", "session.waiting"]
    assert model.summaries == tries
    assert world.history(session) == rows
    world.check(session)
    world.say(session, "again")
    world.run(session)
    assert world.history(session)[-1] == answered("You said again.")
    world.check(session)


COMPACTING = ("deliver", "own", "commit: due", "commit: begun", "commit: compacted")


@pytest.mark.parametrize("at", range(len(COMPACTING)), ids=lambda at: f"{at} {COMPACTING[at]}")
@FAULTS
def test_a_compaction_that_breaks_anywhere_is_done_once(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    session = long_talk(world, 12)
    rows, before = world.history(session), len(world.events(session))
    begun = len(world.traffic.verbs)
    world.traffic.fault = Fault(begun + at, how, late_by) if how else None
    world.control(session, "compact")
    world.run(session)
    if how is None:
        assert tuple(world.traffic.verbs[begun:]) == tuple(verb.partition(":")[0] for verb in COMPACTING)
    assert [event["type"] for event in world.events(session)[before:]] == [
        *("compaction.requested", "compaction.completed", "session.waiting")
    ]
    assert len(world.history(session)) < len(rows)
    assert world.history(session)[-6:] == rows[-6:]
    world.check(session)


def test_a_message_during_a_compaction_waits_for_it(world: World) -> None:
    session = long_talk(world, 12)
    model = Slow([], lambda talk: answers("short") if talk.compacting else echo(talk))
    world.app(model)
    world.control(session, "compact")
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "meanwhile")
    model.go.set()
    thread.join(5)
    assert model.closed == []
    types = world.types(session)
    assert types.index("compaction.completed") < len(types) - 1 - types[::-1].index("turn.started")
    assert world.history(session)[-1] == answered("You said meanwhile.")
    world.check(session)


def test_a_history_that_outgrows_the_window_is_made_shorter_before_the_next_model_call(world: World) -> None:
    world.app(ScriptedModel(lambda talk: answers("word " * 200), input_tokens=None), context_window=3_000)
    session = world.create("start")
    world.run(session)
    for number in range(24):
        world.say(session, f"{number}")
        world.run(session)
    types = world.types(session)
    assert "compaction.completed" in types
    asked = types.index("compaction.requested")
    assert types[asked - 2 : asked + 3] == [
        *("turn.started", "message.received", "compaction.requested", "compaction.completed", "step.started")
    ]
    assert types.count("session.waiting") == 25, "it is no boundary of its own"
    sizes = [sum(len(str(message)) for message in request.history) for request in world.requests]
    assert max(sizes) < 60_000
    world.check(session)


def test_a_session_that_is_made_shorter_many_times_stays_the_same_and_does_not_grow(world: World) -> None:
    world.app(ScriptedModel(lambda talk: answers("word " * 200), input_tokens=None), context_window=3_000)
    session = world.create("start")
    world.run(session)
    keys, deadline, sizes = world.journal.keys(session), world.fields(session)["deadline"], []
    for number in range(60):
        world.say(session, f"{number}")
        world.run(session)
        sizes.append(sum(map(len, world.reads.rows(session, int(world.fields(session)["gen"]), 0))))
    assert world.types(session).count("compaction.completed") >= 4
    assert max(sizes[30:]) <= 1.2 * max(sizes[:30]), "the history does not grow"
    assert world.client.llen(keys.fact) < 200, "nor do the facts"
    assert world.fields(session)["deadline"] == deadline
    assert len(list(world.client.scan_iter(f"{keys.base}hist:{session}:*"))) == 1
    world.check(session)


def test_a_window_that_nothing_fits_into_does_not_stop_the_turn(world: World) -> None:
    world.app(lambda talk: asks("look", at="x" * 400) if talk.step < 6 else echo(talk), [look], context_window=40)
    session = world.create("start " * 100)
    world.run(session)
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    assert len(world.requests) < 30, "it is not tried again and again for one step"
    world.check(session)


# Reset ------------------------------------------------------------------------------------------------------------------


def test_a_reset_of_an_idle_session_ends_it_for_good(world: World) -> None:
    session = long_talk(world, 2)
    world.control(session, "reset")
    with pytest.raises(SessionNotActive):
        world.worker.deliver(session, said_body("too late"))
    world.run(session)
    assert world.types(session)[-2:] == ["session.waiting", "session.completed"]
    assert world.events(session)[-2]["type"] == "session.ending"
    assert world.events(session)[-2]["data"] == {"reason": "reset"}
    assert world.worker.view(session).status == "ended"
    for kind in ("clear", "compact", "reset"):
        with pytest.raises(SessionNotActive):
            world.worker.control(session, kind)
    world.check(session)


def test_a_reset_of_a_session_that_has_not_begun_ends_it(world: World) -> None:
    world.app(echo)
    session = world.create(None)
    world.control(session, "reset")
    world.run(session)
    assert world.types(session) == ["session.completed"]
    assert world.worker.view(session).status == "ended"
    world.check(session)


@MOMENTS
@FAULTS
def test_a_reset_at_any_moment_cancels_the_turn_and_ends_the_session_once(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    world.app(thoughtful, [look])
    refused: list[bool] = []

    def reset(session: SessionId) -> None:
        world.control(session, "reset")
        try:
            world.worker.deliver(session, said_body("too late"))
        except SessionNotActive:
            refused.append(True)

    at_moment(world, at, reset)
    world.traffic.fault = Fault(at, how, late_by) if how else None
    session = world.create("A book")
    world.run(session)
    assert refused == [True], "from the moment it is accepted nothing more comes in"
    types = world.types(session)
    assert types[-1] == "session.completed"
    assert types.count("session.completed") == 1
    assert [kind for kind in types if kind in ENDS] in (["turn.cancelled"], [])
    assert world.worker.view(session).status == "ended"
    assert world.fields(session)["work"] == "0"
    world.check(session)


def test_what_came_in_before_a_reset_and_was_not_begun_is_named(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("hello", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    waiting = [world.say(session, str(number), policy="queue") for number in range(100)]
    wait_for(lambda: world.worker.view(session).waiting == 100)
    world.control(session, "reset")
    thread.join(10)
    assert not thread.is_alive()
    discarded = [event for event in world.events(session) if event["type"] == "message.discarded"]
    assert [event["data"] for event in discarded] == [
        {"deliveryId": name, "reason": "session_ended"} for name in waiting
    ]
    assert all("deliveryIds" not in event["meta"] for event in discarded), "a caller that waits for one is not misled"
    assert world.types(session)[-3:] == ["turn.cancelled", "session.waiting", "session.completed"]
    world.check(session)


def test_a_reset_closes_the_providers_connection_within_a_second(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("hello")
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.control(session, "reset")
    wait_for(lambda: model.closed, timeout=1.0)
    thread.join(5)
    world.check(session)


# The end of a session's time --------------------------------------------------------------------------------------------


def test_a_session_ends_at_its_deadline_when_nothing_runs(world: World) -> None:
    session = long_talk(world, 2)
    world.skip(29 * DAY_MS)
    assert world.run(session)[-1] == "idle"
    world.skip(DAY_MS + 1)
    world.run(session)
    assert world.types(session)[-1] == "session.completed"
    assert world.events(session)[-2]["data"] == {"reason": "expired"}
    assert world.worker.view(session).status == "ended"
    world.check(session)


def test_a_deadline_never_cuts_a_turn_and_messages_that_wait_are_served(world: World) -> None:
    go = threading.Event()

    @tool
    def dig(ctx: ToolContext) -> str:
        """Dig."""
        go.wait(10)
        return "a bone"

    world.app(lambda talk: asks("dig") if (talk.turn, talk.step) == ("turn_0", 0) else echo(talk), [dig])
    session = world.create("Dig")
    thread = beside(world, session)
    wait_for(lambda: world.starts("dig"))
    world.say(session, "Bark", policy="queue")
    world.skip(31 * DAY_MS)
    go.set()
    thread.join(5)
    world.run(session)
    assert told(world, session) == ["Dig", "Bark"]
    assert [kind for kind in world.types(session) if kind in ENDS] == ["turn.completed", "turn.completed"]
    assert world.types(session)[-1] == "session.completed"
    world.check(session)


@pytest.mark.parametrize(("how", "late_by"), [(None, None), *WAYS])
@pytest.mark.parametrize("at", [0, 1])
def test_a_message_that_comes_with_the_deadline_is_served_first_or_refused(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    session = long_talk(world, 1)
    world.skip(31 * DAY_MS)
    accepted: list[object] = []
    begun = len(world.traffic.verbs)

    def say(place: int, verb: str) -> None:
        if place == begun + at and not accepted:
            with suppress(SessionNotActive):
                accepted.append(world.worker.deliver(session, said_body("in time")))

    world.traffic.before = say
    world.traffic.fault = Fault(begun + at, how, late_by) if how else None
    world.run(session)
    world.run(session)
    assert ("in time" in told(world, session)) == bool(accepted)
    assert world.types(session)[-1] == "session.completed"
    world.check(session)


def test_a_session_without_a_time_limit_lives_on(world: World) -> None:
    world.change(session_days=0)
    session = long_talk(world, 1)
    world.skip(4000 * DAY_MS)
    assert world.run(session)[-1] == "idle"
    assert world.worker.view(session).status == "idle"


def test_the_deadline_stays_what_it_was_at_the_beginning(world: World) -> None:
    session = long_talk(world, 1)
    deadline = world.fields(session)["deadline"]
    world.skip(10 * DAY_MS)
    world.say(session, "hello again")
    world.run(session)
    world.control(session, "clear")
    world.run(session)
    assert world.fields(session)["deadline"] == deadline


# Erase ------------------------------------------------------------------------------------------------------------------


def traces(world: World, session: SessionId) -> list[str]:
    """Every key whose name or value contains the session's id; the broker's queue aside."""
    found = []
    for key in world.client.scan_iter(count=1000):
        dump = world.client.dump(key) or b""
        if session.encode() in key or session.encode() in dump:
            found.append(key.decode())
    return [key for key in found if not key.startswith("orc.")]


@MOMENTS
def test_an_erase_at_any_moment_leaves_nothing_and_stops_what_runs(world: World, at: int) -> None:
    world.app(thoughtful, [look])
    gone: list[bool] = []

    def erase(session: SessionId) -> None:
        world.worker.erase(session)
        gone.append(True)

    at_moment(world, at, erase)
    session = world.create("A book")
    with suppress(SessionNotFound):
        world.run(session)
    world.traffic.settle()
    assert gone == [True]
    assert traces(world, session) == []
    with pytest.raises(SessionNotFound):
        world.worker.view(session)
    with pytest.raises(SessionNotActive):
        world.worker.deliver(session, said_body("hello?"))
    with pytest.raises(SessionNotFound):
        world.worker.erase(session)
    assert traces(world, session) == []


def test_an_erase_stops_the_providers_call_within_a_second(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("hello")
    thread = threading.Thread(target=lambda: world.worker.carry_on(session))
    thread.start()
    wait_for(lambda: model.begun)
    wait_for(lambda: world.worker.process._news is not None and world.fields(session)["token"])
    world.worker.erase(session)
    wait_for(lambda: model.closed, timeout=1.0)
    thread.join(5)
    assert traces(world, session) == []


def test_an_erased_session_is_not_brought_back_by_its_owner_or_by_a_late_call(world: World) -> None:
    world.app(thoughtful, [look])
    session = world.create("A book")
    world.traffic.fault = Fault(3, "executed late", None)
    at_moment(world, 4, lambda session: world.worker.erase(session))
    with suppress(SessionNotFound, JournalAway, Crash, AssertionError):
        world.run(session, most=3)
    world.traffic.settle()
    assert traces(world, session) == []


def said_body(text: str) -> Any:
    """A message."""
    return Body((Part("text", text),))


def test_an_ended_session_is_erased_when_its_retention_is_over(world: World) -> None:
    session = long_talk(world, 2)
    world.control(session, "reset")
    world.run(session)
    assert traces(world, session)
    world.skip(30 * DAY_MS + 1)
    now = world.journal.time()
    assert session in world.journal.tidy(now)
    tidy(world.journal, session, now)
    assert traces(world, session) == []
