"""A conversation outlives its workers, its code and its model."""

import time
from dataclasses import replace

import pytest

from orchestrator.core import codec
from orchestrator.core.names import SessionId
from orchestrator.models.scripted import Conversation, Reply, answers, asks
from orchestrator.process.history import row, row_id
from orchestrator.state import state
from orchestrator.tool import SessionView, ToolContext, tool
from tests.worlds import World, answered, results, said

visits = state("visits", default=int)


@tool
def visit(ctx: ToolContext) -> int:
    """Count a visit."""
    visits.update(ctx, lambda number: number + 1)
    return visits.get(ctx)


def echo(talk: Conversation) -> Reply:
    """Say what was said."""
    return answers(f"You said {talk.message}.")


def test_instructions_are_made_anew_for_each_turn(world: World) -> None:
    def instructions(view: SessionView) -> str:
        return f"This is {view.turn}."

    world.app(echo, instructions=instructions)
    session = world.create("one")
    world.run(session)
    world.say(session, "two")
    world.run(session)
    assert [call.instructions for call in world.requests] == ["This is turn_0.", "This is turn_1."]
    assert world.history(session) == [*(said("one"), answered("You said one."), said("two"), answered("You said two."))]
    world.check(session)


def test_user_instructions_are_written_once_and_stay(world: World) -> None:
    world.app(echo, user_instructions="Be kind.")
    session = world.create("one")
    world.run(session)
    world.app(echo, user_instructions="Be brief.")
    world.say(session, "two")
    world.run(session)
    assert world.history(session) == [
        *(said("Be kind.", "one"), answered("You said one."), said("two"), answered("You said two."))
    ]
    world.check(session)


def test_instructions_that_cannot_be_made_fail_the_turn_only(world: World) -> None:
    def instructions(view: SessionView) -> str:
        raise LookupError("no such customer")

    world.app(echo, instructions=instructions)
    session = world.create("one")
    world.run(session)
    (failed,) = [data for kind, data in world.shown(session) if kind == "turn.failed"]
    assert "no such customer" in failed["message"]
    world.check(session)
    world.app(echo)
    world.say(session, "two")
    world.run(session)
    assert world.history(session)[-1] == answered("You said two.")
    world.check(session)


def test_user_instructions_that_cannot_be_made_fail_the_turn_only(world: World) -> None:
    def instructions(view: SessionView) -> str:
        raise LookupError("no such customer")

    world.app(echo, user_instructions=instructions)
    session = world.create("one")
    world.run(session)
    assert "turn.failed" in world.types(session)
    world.check(session)


def test_a_deploy_changes_instructions_model_and_tools_under_a_conversation(world: World) -> None:
    world.app([asks("visit"), answers("first")], [visit], instructions="Old.")
    session = world.create("one")
    world.run(session)

    @tool
    def visits_so_far(ctx: ToolContext) -> int:
        """How many visits there were."""
        return visits.get(ctx)

    world.app([asks("visits_so_far"), answers("second")], [visits_so_far], instructions="New.")
    world.say(session, "two")
    world.run(session)
    assert world.requests[-1].instructions == "New."
    assert len(world.requests[-1].history) == 7
    assert world.history(session)[-3:] == [
        *(answered("", ("visits_so_far", {})), results(("visits_so_far", 1)), answered("second"))
    ]
    assert world.state(session) == {"visits": 1}
    world.check(session)


def test_a_deploy_in_the_middle_of_a_turn_goes_on_with_the_new_code(world: World) -> None:
    world.app([asks("visit"), answers("old")], [visit])
    session = world.create("one")
    assert world.worker.carry_on(session).how == "chained"
    world.app([asks("visit"), answers("new")], [visit])
    world.run(session)
    assert world.history(session)[-1] == answered("new")
    assert world.state(session) == {"visits": 1}
    world.check(session)


def test_an_agent_that_a_deploy_renamed_is_stood_in_for(world: World) -> None:
    world.app(echo, name="old")
    session = world.create("one")
    world.run(session)
    world.app(echo, name="new")
    world.say(session, "two")
    world.run(session)
    assert world.history(session)[-1] == answered("You said two.")


def lengthen(world: World, session: SessionId, rows: int) -> None:
    """The session has had a long life already."""
    keys = world.journal.keys(session)
    stored = world.reads.rows(session, 0, 0)
    made = []
    for number in range(rows):
        text = stored[number % 2]
        made.append(row(f"old.{number}", "turn_0/0", text[text.index(b',"m":') + 5 : -1]))
    world.client.rpush(keys.hist(0), *made)
    snapshot = world.snapshot(session)
    there = snapshot.at.rows + rows
    snapshot = replace(snapshot, at=replace(snapshot.at, rows=there))
    world.client.set(keys.snapshot, codec.pack_snapshot(snapshot))
    world.client.hset(keys.own, mapping={"rows": there, "last_row": row_id(made[-1])})


def commit_bytes(world: World, session: SessionId, text: str) -> list[int]:
    """How large the commits of one more turn are."""
    before = len(world.traffic.verbs)
    world.say(session, text)
    world.run(session)
    pairs = zip(world.traffic.verbs, world.traffic.bytes, strict=True)
    return [size for verb, size in list(pairs)[before:] if verb == "commit"]


def test_a_long_history_is_taken_over_and_no_commit_grows_with_it(world: World) -> None:
    world.app(echo)
    session = world.create("one")
    world.run(session)
    short = commit_bytes(world, session, "two")
    lengthen(world, session, 3_000)
    world.kill(world.worker)
    began = time.monotonic()
    long = commit_bytes(world, session, "two")
    assert time.monotonic() - began < 5
    assert len(world.requests[-1].history) == 3_005
    assert len(short) == len(long)
    assert all(abs(one - other) < 64 for one, other in zip(short, long, strict=True)), (short, long)
    world.check(session)


def test_a_worker_remembers_and_reads_only_what_is_new(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.app(echo)
    session = world.create("one")
    world.run(session)
    lengthen(world, session, 100)
    world.kill(world.worker)
    read: list[int] = []
    reads = world.worker.process.reads
    rows = reads.rows

    def counted(session: SessionId, gen: int, first: int) -> list[bytes]:
        found = rows(session, gen, first)
        read.append(len(found))
        return found

    monkeypatch.setattr(reads, "rows", counted)
    for text in ("two", "three"):
        world.say(session, text)
        world.run(session)
    assert read == [103]
    mine = world.worker
    other = world.engine()
    world.say(session, "four")
    while other.carry_on(session).how == "chained":
        pass
    world.say(session, "five")
    while mine.carry_on(session).how == "chained":
        pass
    assert read[1:] == [4], "the last row it knew, and the three after it"
    assert len(world.requests[-1].history) == len(world.history(session)) - 1
    world.check(session)


def test_a_session_with_a_row_of_a_newer_version_waits_for_a_newer_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.app(echo)
    session = world.create("one")
    world.run(session)
    key = world.journal.keys(session).hist(0)
    readable = world.reads.rows(session, 0, 1)[0].decode()
    world.client.lset(key, 1, readable.replace('{"v":1,', '{"v":2,'))
    world.kill(world.worker)
    world.say(session, "two")
    assert world.run(session) == ["too_new"]
    assert world.worker.view(session).status == "needs_newer_worker"
    world.say(session, "three", policy="queue")
    assert world.run(session) == ["too_new"]
    assert world.fields(session)["token"] == ""
    assert "turn.failed" not in world.types(session)

    world.kill(world.worker)
    monkeypatch.setattr("orchestrator.journal.ownership.READS", 2)
    world.client.lset(key, 1, readable)
    world.run(session)
    assert world.history(session)[2:] == [
        *(said("two"), answered("You said two."), said("three"), answered("You said three."))
    ]
    world.check(session)


def test_a_snapshot_of_a_newer_version_is_left_alone(world: World) -> None:
    world.app(echo)
    session = world.create("one")
    world.run(session)
    key = world.journal.keys(session).snapshot
    stored = world.client.get(key)
    assert stored is not None
    newer = codec.pack_value({"v": 99})
    world.client.set(key, newer)
    world.say(session, "two")
    assert world.worker.carry_on(session).how == "unreadable"
    assert world.client.get(key) == newer
    world.client.set(key, stored)
    world.bury(session)
    world.run(session)
    assert world.history(session)[-1] == answered("You said two.")
    world.check(session)


def test_state_survives_whatever_happens_to_the_workers(world: World) -> None:
    world.app([asks("visit"), asks("visit"), answers("done")], [visit])
    session = world.create("one")
    while world.worker.carry_on(session).how == "chained":
        world.kill(world.worker)
    assert world.state(session) == {"visits": 2}
    assert [
        output for kind, row in ((r[0], r[1]) for r in world.history(session)) if kind == "results" for _, output in row
    ] == [1, 2]
    world.check(session)
