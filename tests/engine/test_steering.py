"""Messages that come while a turn is open: they steer it, wait for its end, or share the next one."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import MAX_DELIVERIES, Principal
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks, calls
from orchestrator.ports import Answer, ModelCall, ModelOutput, ReasoningDelta, TextDelta
from orchestrator.tool import Fatal, ToolContext, tool
from tests.engine.test_crash_table import WAYS
from tests.engine.test_news import at_moment, beside
from tests.servers import wait_for
from tests.worlds import Fault, How, World, answered, results, said

ANN, BEN = Principal("api-key", "user", "ann"), Principal("api-key", "user", "ben")


def echo(talk: Conversation) -> Reply:
    """Says what it was told."""
    return answers(f"You said {talk.message}.")


def thoughtful(talk: Conversation) -> Reply:
    """Looks once, then answers what was said last."""
    if talk.step == 0:
        return calls(asks("look", at="shelf"), text="Let me see.")
    return echo(talk)


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Look somewhere."""
    return f"nothing in the {at}"


class Slow:
    """A model that says `pieces`, then waits until `go` is set, then answers as `then` does. What it was told to stop is counted."""

    name = "slow"

    def __init__(self, pieces: Sequence[ModelOutput], then: Callable[[Conversation], Reply] = echo) -> None:
        self.pieces, self.then = pieces, then
        self.go = threading.Event()
        self.begun: list[int] = []
        self.closed: list[int] = []

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        self.begun.append(call.step)
        try:
            for piece in self.pieces:
                yield piece
            while not self.go.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.closed.append(call.step)
            raise
        shown = "".join(piece.text for piece in self.pieces if isinstance(piece, TextDelta))
        async for out in ScriptedModel(self.then).answer(call):
            if isinstance(out, Answer):
                yield TextDelta(out.text.removeprefix(shown))
                yield out


def places(world: World, session: SessionId) -> list[tuple[str, Any, Any]]:
    """Type, turn and step of what counts, without deltas."""
    return [(kind, data.get("turnId"), data.get("stepIndex")) for kind, data in world.shown(session)]


def wait_for_steer(world: World, session: SessionId) -> None:
    wait_for(lambda: "message.deferred" in [event["type"] for event in world.events(session)])


# A pending model call ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(), (ReasoningDelta("Hm"),)], ids=["silent", "only reasoning"])
def test_a_message_cuts_a_model_call_that_has_said_nothing_and_joins_the_turn(
    world: World, pieces: Sequence[ModelOutput]
) -> None:
    model = Slow(pieces)
    world.app(model)
    session = world.create("Pears", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: model.begun == [0])
    if pieces:
        wait_for(lambda: "reasoning.appended" in [event["type"] for event in world.events(session)])
    later = world.say(session, "No, apples", who=ANN)
    wait_for(lambda: model.closed == [0], timeout=1.0)
    wait_for(lambda: model.begun == [0, 1])
    model.go.set()
    thread.join(5)
    assert places(world, session) == [
        ("session.started", None, None),
        ("turn.started", "turn_0", None),
        ("message.received", "turn_0", None),
        ("step.started", "turn_0", 0),
        ("step.completed", "turn_0", 0),
        ("message.received", "turn_0", None),
        ("step.started", "turn_0", 1),
        ("message.completed", "turn_0", 1),
        ("step.completed", "turn_0", 1),
        ("turn.completed", "turn_0", None),
        ("session.waiting", None, None),
    ]
    cut = next(event for event in world.events(session) if event["type"] == "step.completed")
    assert cut["data"]["finishReason"] == "other"
    assert "usage" not in cut["data"], "nobody knows what the cut call has cost"
    assert world.snapshot(session).usage.unmeasured == 1
    assert world.history(session) == [said("Pears"), said("No, apples"), answered("You said No, apples.")]
    assert later in world.events(session)[-1]["meta"]["deliveryIds"]
    world.check(session)


def test_a_message_after_output_began_joins_when_the_answer_is_complete(world: World) -> None:
    model = Slow([TextDelta("You said ")])
    world.app(model)
    session = world.create("pears", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: "message.appended" in [event["type"] for event in world.events(session)])
    world.say(session, "apples", who=ANN)
    [head] = world.reads.heads(session, world.snapshot(session).judged)
    wait_for(lambda: [owned.last_n for owned in world.worker.process.owned()] == [head.n])
    model.go.set()
    thread.join(5)
    assert model.closed == []
    assert [kind for kind, *_ in places(world, session)][3:] == [
        *("step.started", "message.completed", "step.completed", "message.received"),
        *("step.started", "message.completed", "step.completed", "turn.completed", "session.waiting"),
    ]
    assert world.history(session)[2] == said("apples"), "what was shown stays, what was said comes behind it"
    world.check(session)


def test_two_messages_in_a_row_join_together_in_their_order(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("Pears", who=ANN)
    begun = threading.Event()

    def before(place: int, verb: str) -> None:
        if verb == "commit" and model.closed and not begun.is_set():
            begun.set()
            world.say(session, "two", who=ANN)

    world.traffic.before = before
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "one", who=ANN)
    wait_for(begun.is_set)
    model.go.set()
    thread.join(5)
    told = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert told == ["Pears", "one", "two"]
    assert world.types(session).count("turn.started") == 1
    world.check(session)


@pytest.mark.parametrize(("who", "policy"), [(BEN, "steer"), (None, "steer"), (ANN, "queue"), (BEN, "queue")], ids=str)
def test_who_did_not_cause_the_turn_or_wants_to_queue_waits_for_its_end(
    world: World, who: Principal | None, policy: str
) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("Pears", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "apples", who=who, policy=policy)
    wait_for(lambda: world.snapshot(session).turn is not None)
    model.go.set()
    thread.join(5)
    assert model.closed == []
    assert world.history(session) == [
        *(said("Pears"), answered("You said Pears.")),
        *(said("apples"), answered("You said apples.")),
    ]
    assert world.types(session).count("turn.started") == 2
    world.check(session)


@pytest.mark.parametrize(
    ("app", "message", "joins"), [("queue", "", False), ("queue", "steer", True), ("steer", "", True)]
)
def test_the_policy_is_the_messages_own_or_else_the_apps(world: World, app: str, message: str, joins: bool) -> None:
    model = Slow([])
    world.app(model, turn_policy=app)
    session = world.create("Pears", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "apples", who=ANN, policy=message)
    model.go.set()
    thread.join(5)
    assert (world.types(session).count("turn.started") == 1) == joins
    world.check(session)


def test_one_person_is_told_by_who_vouches_and_what_they_are_and_not_by_what_else_is_known(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("Pears", who=Principal("jwt", "user", "ann", "https://a", {"mail": "old"}))
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "impostor", who=Principal("jwt", "user", "ann", "https://b"))
    world.say(session, "apples", who=Principal("jwt", "user", "ann", "https://a", {"mail": "new"}))
    wait_for(lambda: model.closed)
    model.go.set()
    thread.join(5)
    told = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert told == ["Pears", "apples", "impostor"]
    world.check(session)


def test_anonymous_callers_are_one_when_they_steer(world: World) -> None:
    model = Slow([])
    world.app(model)
    session = world.create("Pears")
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "apples")
    wait_for(lambda: model.closed == [0])
    model.go.set()
    thread.join(5)
    assert world.types(session).count("turn.started") == 1
    world.check(session)


# Running tools ----------------------------------------------------------------------------------------------------------


def test_running_tools_come_to_their_end_before_a_message_joins(world: World) -> None:
    go = threading.Event()

    @tool
    def dig(ctx: ToolContext) -> str:
        """Dig."""
        go.wait(10)
        return "cancelled" if ctx.cancelled.is_set() else "a bone"

    world.app(lambda talk: asks("dig") if talk.step == 0 else echo(talk), [dig])
    session = world.create("Dig", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: world.starts("dig"))
    later = world.say(session, "And then bark", who=ANN)
    wait_for_steer(world, session)
    assert not go.is_set(), "the sender is told while the tool still runs"
    assert world.worker.view(session).waiting == 1
    go.set()
    thread.join(5)
    (told,) = [event for event in world.events(session) if event["type"] == "message.deferred"]
    assert told["data"] == {
        "turnId": "turn_0",
        "sequence": 0,
        "stepIndex": 0,
        "deliveryId": later,
        "until": "tools",
    }
    assert later not in told["meta"]["deliveryIds"]
    assert world.history(session) == [
        *(said("Dig"), answered("", ("dig", {})), results(("dig", "a bone"))),
        *(said("And then bark"), answered("You said And then bark.")),
    ]
    assert world.types(session).count("turn.started") == 1
    world.check(session)


def test_a_message_that_wanted_to_join_a_turn_that_fails_begins_the_next(world: World) -> None:
    go = threading.Event()

    @tool
    def dig(ctx: ToolContext) -> str:
        """Dig."""
        go.wait(10)
        raise Fatal("The spade broke.")

    world.app(lambda talk: asks("dig") if talk.turn == "turn_0" else echo(talk), [dig])
    session = world.create("Dig", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: world.starts("dig"))
    world.say(session, "And then bark", who=ANN)
    wait_for_steer(world, session)
    go.set()
    thread.join(5)
    ends = [kind for kind in world.types(session) if kind in ("turn.failed", "turn.completed")]
    assert ends == ["turn.failed", "turn.completed"]
    assert world.history(session)[-2:] == [said("And then bark"), answered("You said And then bark.")]
    world.check(session)


def test_a_cancel_behind_a_message_that_waits_to_join_leaves_the_message_its_own_turn(world: World) -> None:
    go = threading.Event()

    @tool
    def dig(ctx: ToolContext) -> str:
        """Dig."""
        go.wait(10)
        return "a bone"

    world.app(lambda talk: asks("dig") if talk.turn == "turn_0" else echo(talk), [dig])
    session = world.create("Dig", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: world.starts("dig"))
    world.say(session, "And then bark", who=ANN)
    wait_for_steer(world, session)
    world.cancel(session)
    wait_for(lambda: "turn.cancelled" in world.types(session))
    go.set()
    thread.join(5)
    ends = [kind for kind in world.types(session) if kind in ("turn.cancelled", "turn.completed")]
    assert ends == ["turn.cancelled", "turn.completed"]
    assert world.history(session)[-2:] == [said("And then bark"), answered("You said And then bark.")]
    world.check(session)


def test_a_turn_takes_in_only_so_many_messages_and_the_next_ones_begin_another(world: World) -> None:
    go = threading.Event()

    @tool
    def dig(ctx: ToolContext) -> str:
        """Dig."""
        go.wait(10)
        return "a bone"

    world.app(lambda talk: asks("dig") if (talk.turn, talk.step) == ("turn_0", 0) else echo(talk), [dig])
    session = world.create("Dig", who=ANN)
    thread = beside(world, session)
    wait_for(lambda: world.starts("dig"))
    sent = [f"m{place}" for place in range(MAX_DELIVERIES + 10)]
    for text in sent:
        world.say(session, text, who=ANN)
    go.set()
    thread.join(10)
    told = [(data["turnId"], data["message"]) for kind, data in world.shown(session) if kind == "message.received"]
    assert [text for _, text in told] == ["Dig", *sent]
    assert [turn for turn, _ in told].count("turn_0") == MAX_DELIVERIES
    assert {turn for turn, _ in told} == {"turn_0", "turn_1"}
    world.check(session)


# At every moment, whatever breaks ----------------------------------------------------------------------------------------

TURN = ("create", "own", "commit: turn", "append", "commit: answer", "commit: look", "own", "append", "commit: answer")
"""Every script call of `thoughtful`'s turn, a step for each task."""


def test_the_moments_are_those_of_a_turn(world: World) -> None:
    world.app(thoughtful, [look])
    world.run(world.create("A book"))
    assert tuple(world.traffic.verbs) == tuple(verb.partition(":")[0] for verb in TURN)


@pytest.mark.parametrize("at", range(1, len(TURN)), ids=lambda at: f"{at} {TURN[at]}")
@pytest.mark.parametrize(("how", "late_by"), [(None, None), *WAYS])
def test_a_message_at_any_moment_joins_the_turn_or_begins_the_next_and_is_never_lost(
    world: World, at: int, how: How | None, late_by: int | None
) -> None:
    world.app(thoughtful, [look])
    at_moment(world, at, lambda session: world.say(session, "Thanks", who=ANN))
    world.traffic.fault = Fault(at, how, late_by) if how else None
    session = world.create("A book", who=ANN)
    world.run(session)
    told = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert told == ["A book", "Thanks"]
    words = [row for row in world.history(session) if row[0] == "said"]
    assert words in ([said("A book"), said("Thanks")], [said("A book", "Thanks")])
    assert world.history(session)[-1] == answered("You said Thanks.")
    world.check(session)


@pytest.mark.parametrize("steps_per_task", [1, 50])
def test_messages_at_all_moments_are_taken_in_in_their_order(world: World, steps_per_task: int) -> None:
    world.change(steps_per_task=steps_per_task)
    world.app(thoughtful, [look])

    def before(place: int, verb: str) -> None:
        if 0 < place < 30:
            world.say(world.sessions[0], str(place), who=(ANN, BEN, None)[place % 3])

    world.traffic.before = before
    session = world.create("A book", who=ANN)
    world.run(session)
    told = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    sent = [str(place) for place in range(1, 30)]
    assert sorted(told[1:], key=int) == sent, "each of them once"
    for who in range(3):
        mine = [text for text in told[1:] if int(text) % 3 == who]
        assert mine == sorted(mine, key=int), "each person's in their order"
    world.check(session)


# Folding ----------------------------------------------------------------------------------------------------------------


def test_neighbours_of_one_known_person_share_a_turn(world: World) -> None:
    world.app(echo)
    session = world.create(None)
    for text in ("one", "two", "three"):
        world.say(session, text, who=ANN)
    world.run(session)
    assert world.history(session) == [said("one", "two", "three"), answered("You said three.")]
    assert world.types(session).count("turn.started") == 1
    assert world.types(session).count("message.received") == 3
    assert len(world.events(session)[-1]["meta"]["deliveryIds"]) == 3
    world.check(session)


@pytest.mark.parametrize(
    ("who", "turns"),
    [
        ([None, None], 2),
        ([ANN, BEN, ANN], 3),
        ([ANN, ANN, BEN, BEN, ANN], 3),
        ([ANN, None, ANN], 3),
    ],
    ids=["strangers", "two people", "pairs", "a stranger between"],
)
def test_others_and_strangers_have_turns_of_their_own(world: World, who: list[Principal | None], turns: int) -> None:
    world.app(echo)
    session = world.create(None)
    for place, one in enumerate(who):
        world.say(session, str(place), who=one, policy="queue")
    world.run(session)
    told = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert told == [str(place) for place in range(len(who))], "nobody is overtaken"
    assert world.types(session).count("turn.started") == turns
    world.check(session)


def test_a_cancel_between_two_messages_keeps_them_apart(world: World) -> None:
    world.app(echo)
    session = world.create(None)
    world.say(session, "one", who=ANN)
    world.cancel(session)
    world.say(session, "two", who=ANN)
    world.run(session)
    ends = [kind for kind in world.types(session) if kind in ("turn.cancelled", "turn.completed")]
    assert ends == ["turn.cancelled", "turn.completed"]
    world.check(session)


def test_a_turn_that_two_messages_share_runs_with_the_latest_claims(world: World) -> None:
    seen: list[object] = []

    @tool
    def who(ctx: ToolContext) -> str:
        """Who asks."""
        seen.append(ctx.session.auth and ctx.session.auth.extra)
        return "you"

    world.app(lambda talk: asks("who") if talk.step == 0 else echo(talk), [who])
    session = world.create(None)
    world.say(session, "one", who=Principal("jwt", "user", "ann", "a", {"role": "guest"}))
    world.say(session, "two", who=Principal("jwt", "user", "ann", "a", {"role": "owner"}))
    world.run(session)
    assert seen == [{"role": "owner"}]
    world.check(session)


def test_a_steered_turn_keeps_the_claims_it_began_with(world: World) -> None:
    seen: list[object] = []

    @tool
    def who(ctx: ToolContext) -> str:
        """Who asks."""
        seen.append(ctx.session.auth and ctx.session.auth.extra)
        return "you"

    model = Slow([], lambda talk: asks("who") if talk.step == 1 else echo(talk))
    world.app(model, [who])
    session = world.create("one", who=Principal("jwt", "user", "ann", "a", {"role": "guest"}))
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.say(session, "two", who=Principal("jwt", "user", "ann", "a", {"role": "owner"}))
    wait_for(lambda: model.closed)
    model.go.set()
    thread.join(5)
    assert seen == [{"role": "guest"}]


def test_a_takeover_after_the_cut_goes_on_with_the_message_in_the_turn(world: World) -> None:
    world.app(echo)
    session = world.create("Pears", who=ANN)
    model = Slow([])
    world.app(model)
    thread = beside(world, session)
    wait_for(lambda: model.begun)
    world.kill(world.worker)
    world.say(session, "apples", who=ANN)
    world.app(echo)
    model.go.set()
    thread.join(5)
    world.run(session)
    assert world.history(session) == [said("Pears"), said("apples"), answered("You said apples.")]
    assert world.types(session).count("turn.started") == 1
    world.check(session)


def test_what_is_stored_of_a_message_says_how_large_it_is(world: World) -> None:
    world.app(echo)
    session = world.create("Birnen für Ännchen")
    (head,) = world.reads.heads(session, 0)
    assert head.envelope.size == len("Birnen für Ännchen".encode())
    assert json.dumps(head.envelope.policy) == '"steer"'
