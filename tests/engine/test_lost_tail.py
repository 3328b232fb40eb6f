"""The store loses its tail under a living owner, as after a failover: work goes on from what is left, and the loss is named."""

import pytest

from orchestrator.core.names import SessionId
from tests.engine.test_crash_table import HASTY_ROAD, KEYS, STATE, shop, story
from tests.worlds import Frozen, World, grammar

TURN = HASTY_ROAD[:11]
"""The calls of the first turn; one task does them all, so its owner lives through the loss."""
AFTER_OWN = range(2, len(TURN))
CASES = [(at, writes) for at in AFTER_OWN for writes in (1, 2, 5) if at + writes <= len(TURN)]
LIVING = [(at, writes) for at, writes in CASES if at + writes < len(TURN)]
"""Those where the owner has not let go before the loss."""


class Loss:
    """The store of before call `at` comes back after `writes` of the owner; a reader has followed up to there."""

    def __init__(self, world: World, at: int, writes: int) -> None:
        self.world, self.at, self.writes = world, at, writes
        self.session: SessionId | None = None
        self.frozen: Frozen | None = None
        self.happened = False
        self.seen: list[bytes] = []
        world.traffic.before, world.traffic.after = self._before, self._after

    def _before(self, place: int, verb: str) -> None:
        if place == self.at and self.session:
            self.frozen = self.world.freeze(self.session)

    def _after(self, place: int, verb: str) -> None:
        if not self.session:
            return
        if not self.happened:
            self.seen += self.world.reads.events(self.session, len(self.seen))
        if self.frozen is not None and not self.happened and place == self.at + self.writes - 1:
            self.happened = True
            self.world.rewind(self.frozen)


@pytest.mark.parametrize(("at", "writes"), CASES, ids=[f"{writes} from {at} {TURN[at]}" for at, writes in CASES])
def test_a_turn_ends_though_the_store_has_lost_its_tail(world: World, at: int, writes: int) -> None:
    world.change(steps_per_task=50)
    shop(world)
    loss = Loss(world, at, writes)
    loss.session = session = world.create("A book, please.")
    world.run(session)
    world.say(session, "Thanks")
    world.run(session)

    assert loss.happened
    assert world.history(session) == story()
    assert world.state(session) == STATE
    assert {effect.key.partition("/")[2] for effect in world.effects} == KEYS
    arguments = {(effect.key, effect.arguments) for effect in world.effects}
    assert len(arguments) == len(KEYS), "one key, two calls"
    world.check(session)


@pytest.mark.parametrize(("at", "writes"), LIVING, ids=[f"{writes} from {at} {TURN[at]}" for at, writes in LIVING])
def test_a_loss_under_a_living_owner_is_named_in_the_stream(world: World, at: int, writes: int) -> None:
    world.change(steps_per_task=50)
    shop(world)
    loss = Loss(world, at, writes)
    loss.session = session = world.create("A book, please.")
    world.run(session)

    events = world.events(session)
    stored = world.reads.events(session, 0, 10_000)
    kinds = [event["type"] for event in events]
    changed = [place for place, line in enumerate(loss.seen) if stored[place] != line]
    assert loss.happened
    grammar(events)
    assert [event for event in events if event["type"] == "session.rewound"], kinds
    assert {kinds[place] for place in changed} <= {"stream.lost"}, "an index that was seen holds another event"
    rewound = kinds.index("session.rewound")
    assert rewound >= len(loss.seen) or not changed, "who had seen the lost events hears of it"
    assert {"from", "to"} == set(events[rewound]["data"])
    assert events[rewound]["data"]["from"] - events[rewound]["data"]["to"] == kinds.count("stream.lost")


def test_a_loss_behind_the_message_leaves_a_session_that_can_be_used(world: World) -> None:
    world.change(steps_per_task=50)
    shop(world)
    session = world.create(None)
    frozen = world.freeze(session)
    world.say(session, "A book, please.")
    world.traffic.after = lambda place, verb: world.rewind(frozen) if place == 5 else None
    world.run(session)
    world.traffic.after = lambda place, verb: None
    assert world.fields(session)["token"] == ""
    assert world.history(session) == []
    assert "session.rewound" in [event["type"] for event in world.events(session)]
    world.say(session, "Again")
    world.run(session)
    assert world.history(session) == [("said", ("Again",)), *story()[1:6]]
    world.check(session)


@pytest.mark.parametrize("at", AFTER_OWN, ids=lambda at: f"{at} {TURN[at]}")
def test_a_loss_behind_the_creation_stops_the_driver_without_an_error(world: World, at: int) -> None:
    world.change(steps_per_task=50)
    shop(world)
    session = world.create(None)
    nothing = Frozen(session, {}, {})
    world.say(session, "A book, please.")
    world.traffic.after = lambda place, verb: world.rewind(nothing) if place == at + 1 else None
    hows = world.run(session)
    assert hows[-1] in ("gone", "parked")
    assert not world.fields(session)
    assert list(world.client.scan_iter(match=f"*{session}*")) == []


def test_a_reader_that_saw_more_than_there_is_makes_the_owner_say_so(world: World) -> None:
    shop(world)
    session = world.create("A book, please.")
    frozen = world.freeze(session)
    world.run(session)
    seen = len(world.events(session))
    world.rewind(frozen)
    world.worker.report_tail(session, seen)
    world.run(session)
    kinds = [event["type"] for event in world.events(session)]
    assert kinds[:seen] == ["stream.lost"] * seen
    assert kinds[seen] == "session.rewound"
    world.check(session)


def test_a_reader_that_is_wrong_about_the_tail_changes_nothing(world: World) -> None:
    shop(world)
    session = world.create("A book, please.")
    world.run(session)
    before = world.events(session)
    world.worker.report_tail(session, len(before))
    world.run(session)
    assert world.events(session) == before
    world.check(session)
