"""The keeper's rules, with a real journal and a clock of the test's own."""

import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import redis

from orchestrator import ids
from orchestrator.config import Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import Millis, SessionId, Token
from orchestrator.engine import Engine
from orchestrator.errors import JournalAway
from orchestrator.journal import Granted, Journal, connect
from orchestrator.journal.stubs import restore
from orchestrator.journal.tidying import tidy
from orchestrator.keeper import Keeper
from orchestrator.wake import AtomicWake
from tests.conftest import MakeServer
from tests.servers import wait_for
from tests.tasks.shop import app

LEASE_MS = 10_000
QUEUE = "orc.default"


class Time:
    """Redis's clock and ours, as the test wants them."""

    def __init__(self) -> None:
        self.redis_ms = 1_796_000_000_000
        self.here = 1000.0

    def passes(self, seconds: float) -> None:
        self.redis_ms += int(seconds * 1000)
        self.here += seconds


class TimedJournal(Journal):
    """A journal whose Redis has the test's time; `slow` is how long each look at the clock takes."""

    def __init__(self, url: str, time: Time) -> None:
        super().__init__(connect(url), AtomicWake(), lease_ms=LEASE_MS, now=lambda: time.redis_ms)
        self.timer = time
        self.slow = 0.0

    def time(self) -> Millis:
        self.timer.here += self.slow
        return Millis(self.timer.redis_ms)


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def journal(url: str, clock: Time) -> Iterator[TimedJournal]:
    journal = TimedJournal(url, clock)
    yield journal
    journal.client.close()


MakeKeeper = Callable[..., Keeper]


@pytest.fixture
def keep(journal: Journal, clock: Time) -> MakeKeeper:
    def make(**options: object) -> Keeper:
        given = {"label": "default", "worker": "WORKER01", "clock": lambda: clock.here, "dice": lambda: 0.5, **options}
        return Keeper(lambda: journal, **given)  # type: ignore[arg-type]

    return make


def say(journal: Journal, clock: Time) -> SessionId:
    """A session with one message."""
    engine = Engine(app, Settings(), journal=journal)
    return engine.create(Body((Part("text", "hello"),)), session=ids.new_session(clock.redis_ms)).session


def own(journal: Journal, clock: Time, session: SessionId, token: str = "WORKER01abc.X") -> object:
    return journal.own(session, Token(token), Millis(clock.redis_ms), deployment="default")


def test_a_lost_wake_is_rung_again_after_the_grace(
    keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    keeper, lost, later = keep(), say(journal, clock), say(journal, clock)
    assert client.rpop(QUEUE)  # the first one's wake is gone, the second one's waits
    assert keeper.tick() == 0
    clock.passes(2.0)
    assert keeper.tick() == 1
    assert lost.encode() in client.lrange(QUEUE, 0, 0)[0]
    assert keeper.tick() == 0
    clock.passes(2.0)
    assert keeper.tick() == 0, "both wait in the queue now"
    assert client.llen(QUEUE) == 2
    assert later


def test_a_deleted_queue_is_filled_again(
    keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    keeper = keep()
    for _ in range(3):
        say(journal, clock)
    client.delete(QUEUE)
    clock.passes(2.0)
    assert keeper.tick() == 3
    assert client.llen(QUEUE) == 3


def test_two_keepers_ring_once(keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis") -> None:
    keepers = [keep(), keep()]
    for _ in range(200):
        say(journal, clock)
    client.delete(QUEUE)
    clock.passes(2.0)
    rung: list[int] = []
    threads = [threading.Thread(target=lambda keeper=keeper: rung.append(keeper.tick())) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(rung) == 200
    assert client.llen(QUEUE) == 200


def test_more_than_a_batch_is_rung_in_one_tick(
    keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    keeper = keep()
    for _ in range(1100):
        say(journal, clock)
    client.delete(QUEUE)
    clock.passes(2.0)
    assert keeper.tick() == 1100


def test_a_dead_owner_is_replaced_when_its_lease_is_over(keep: MakeKeeper, journal: Journal, clock: Time) -> None:
    keeper, session = keep(), say(journal, clock)
    assert isinstance(own(journal, clock, session), Granted)
    keeper.tick()
    clock.passes(9.9)
    assert keeper.tick() == 0
    clock.passes(0.2)
    assert keeper.tick() == 1


def test_a_clock_that_steps_takes_nobody_over_for_one_lease(keep: MakeKeeper, journal: Journal, clock: Time) -> None:
    keeper, session = keep(), say(journal, clock)
    own(journal, clock, session)
    keeper.tick()
    clock.redis_ms += 3_600_000  # and ours did not move
    assert keeper.tick() == 0
    journal.renew([(session, Token("WORKER01abc.X"))])
    clock.passes(9.0)
    assert keeper.tick() == 0
    clock.passes(2.0)
    assert keeper.tick() == 1, "it is dead now: nobody has renewed since"


def test_a_slow_answer_takes_nobody_over_for_one_lease(keep: MakeKeeper, journal: TimedJournal, clock: Time) -> None:
    keeper, session = keep(), say(journal, clock)
    own(journal, clock, session)
    keeper.tick()
    clock.redis_ms += 11_000
    journal.slow = 11.0
    assert keeper.tick() == 0
    journal.slow = 0.0
    clock.passes(1.0)
    assert keeper.tick() == 0


def test_a_keeper_that_was_late_itself_waits_for_nothing(keep: MakeKeeper, journal: Journal, clock: Time) -> None:
    keeper, session = keep(), say(journal, clock)
    own(journal, clock, session)
    keeper.tick()
    clock.passes(60.0)
    assert keeper.tick() == 1


def test_while_the_journal_was_away_nobody_could_renew(keep: MakeKeeper, journal: Journal, clock: Time) -> None:
    away = False

    def asked() -> Journal:
        if away:
            raise JournalAway(reason="test")
        return journal

    keeper = Keeper(asked, label="default", worker="WORKER01", clock=lambda: clock.here)
    session = say(journal, clock)
    own(journal, clock, session)
    keeper.tick()
    away = True
    clock.passes(60.0)
    assert keeper.tick() == 0
    away = False
    assert keeper.tick() == 0
    clock.passes(LEASE_MS / 1000 + 1)
    assert keeper.tick() == 1


def test_waiting_messages_are_rung_also_while_takeovers_pause(
    keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    keeper = keep()
    say(journal, clock)
    client.delete(QUEUE)
    keeper.tick()
    clock.redis_ms += 3_600_000
    assert keeper.tick() == 1


def test_a_lost_process_gives_up_what_it_held(
    keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    session = say(journal, clock)
    own(journal, clock, session, "WORKER01abc.X")
    client.delete(QUEUE)
    keeper = keep(dead=lambda: [(session, "WORKER01abd.")])
    keeper.tick()
    assert client.llen(QUEUE) == 0, "another process than the one that died holds it"
    keeper.lost(session, "WORKER01abc.")
    keeper.tick()
    assert client.llen(QUEUE) == 1
    assert isinstance(own(journal, clock, session, "WORKER02xyz.Y"), Granted)


def test_a_worker_beats_and_leaves(keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis") -> None:
    keeper = keep()
    keeper.tick()
    first = client.hget("orc:workers", "default|WORKER01")
    clock.passes(2.0)
    keeper.tick()
    assert client.hget("orc:workers", "default|WORKER01") == first
    clock.passes(3.0)
    keeper.tick()
    assert client.hget("orc:workers", "default|WORKER01") != first
    keeper.stop()
    assert not client.exists("orc:workers")


def test_workers_that_never_said_goodbye_are_forgotten(
    keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    keep(worker="KILLED00").tick()
    clock.passes(3601)
    keep(worker="WORKER02").tick()
    assert client.hkeys("orc:workers") == [b"default|WORKER02"]


class FakeEar:
    """A consumer as the test wants it."""

    def __init__(self) -> None:
        self.free, self.count, self.did = True, 0, list[str]()

    def listens(self) -> bool:
        return self.free

    def heard(self) -> int:
        return self.count

    def reconnect(self) -> None:
        self.did.append("reconnect")

    def give_up(self) -> None:
        self.did.append("give up")


def ticks(keeper: Keeper, clock: Time, seconds: int) -> None:
    for _ in range(seconds):
        clock.passes(1.0)
        keeper.tick()


def test_a_deaf_consumer_is_connected_anew_and_then_given_up(
    keep: MakeKeeper, journal: Journal, clock: Time, url: str
) -> None:
    ear = FakeEar()
    keeper = keep(ear=ear, broker_url=url)
    say(journal, clock)
    ticks(keeper, clock, 9)
    assert ear.did == []
    ticks(keeper, clock, 5)
    assert ear.did == ["reconnect"]
    ticks(keeper, clock, 9)
    assert ear.did == ["reconnect"]
    ticks(keeper, clock, 5)
    assert ear.did == ["reconnect", "give up"]


@pytest.mark.parametrize("why", ["busy", "hears", "empty"])
def test_a_consumer_that_is_well_is_left_alone(
    why: str, keep: MakeKeeper, journal: Journal, clock: Time, url: str, client: "redis.Redis"
) -> None:
    ear = FakeEar()
    keeper = keep(ear=ear, broker_url=url)
    session = say(journal, clock)
    for _ in range(60):
        if why == "busy":
            ear.free = False
        elif why == "hears":
            ear.count += 1
        else:
            client.delete(QUEUE)
            own(journal, clock, session)
            journal.renew([(session, Token("WORKER01abc.X"))])
        ticks(keeper, clock, 1)
    assert ear.did == []


def test_a_keeper_outlives_its_redis(make_server: MakeServer) -> None:
    server = make_server(appendonly=True)
    engine = Engine(app, Settings(url=server.url))
    keeper = Keeper(lambda: engine.journal, label="default", worker="WORKER01")
    keeper.start()
    try:
        wait_for(lambda: engine.reads.workers("default"))
        server.kill()
        server.start()
        session = engine.create(Body((Part("text", "hello"),))).session
        with redis.Redis.from_url(server.url) as client:
            client.delete(QUEUE)
            wait_for(lambda: client.llen(QUEUE) == 1, what=f"the wake of {session}")
    finally:
        keeper.stop()


# Tidying --------------------------------------------------------------------------------------------------------------


def line(kind: str, at_ms: int, **data: object) -> bytes:
    from orchestrator.clock import iso
    from orchestrator.core.event import encode

    meta = {"id": f"evt_{ids.ulid(at_ms)}", "at": iso(Millis(at_ms)), "attempt": 1}
    return encode({"type": kind, "data": data, "meta": meta}).encode()


def stream(journal: Journal, clock: Time, client: "redis.Redis", lines: list[bytes]) -> SessionId:
    """A session whose stream is as told and that is to be put in order now."""
    session = say(journal, clock)
    keys = journal.keys(session)
    client.rpush(keys.evt, *lines)
    client.hset(keys.own, "events", len(lines))
    client.zadd(keys.tidy, {session: clock.redis_ms})
    return session


def step(at_ms: int, turn: int, index: int, deltas: int, *, closed: bool = True) -> list[bytes]:
    place = {"turnId": f"turn_{turn}", "sequence": turn, "stepIndex": index}
    made = [line("step.started", at_ms, **place)]
    made += [line("message.appended", at_ms, **place, messageDelta=f"piece {n} ") for n in range(deltas)]
    return [*made, line("step.completed", at_ms, **place, finishReason="stop")] if closed else made


def test_deltas_of_a_step_closed_ten_minutes_ago_become_stubs(
    keep: MakeKeeper, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    lines = step(clock.redis_ms - 600_001, 0, 0, 1500)
    session = stream(journal, clock, client, lines)
    keep().tick()
    keys = journal.keys(session)
    stored = cast("list[bytes]", client.lrange(keys.evt, 0, -1))
    assert len(stored) == len(lines)
    assert all(len(text) < 40 for text in stored[1:-1])
    assert (stored[0], stored[-1]) == (lines[0], lines[-1])
    restored = restore(stored[700])
    assert restored.split(b'"meta":')[1][:40] == lines[700].split(b'"meta":')[1][:40]
    assert b'"messageDelta":""' in restored
    assert client.zscore(keys.tidy, session) is None
    assert client.hget(keys.own, "pruned") == str(len(lines)).encode()


def test_a_young_step_is_pruned_when_its_time_has_come(journal: Journal, clock: Time, client: "redis.Redis") -> None:
    old, young = clock.redis_ms - 700_000, clock.redis_ms - 100_000
    session = stream(journal, clock, client, [*step(old, 0, 0, 3), *step(young, 0, 1, 3)])
    assert tidy(journal, session, clock.redis_ms) == 3
    keys = journal.keys(session)
    assert client.zscore(keys.tidy, session) == young + 600_000
    assert client.hget(keys.own, "pruned") == b"6"
    clock.passes(500)
    assert tidy(journal, session, clock.redis_ms) == 3
    assert client.zscore(keys.tidy, session) is None


def test_a_step_that_still_runs_is_left_whole(journal: Journal, clock: Time, client: "redis.Redis") -> None:
    old = clock.redis_ms - 700_000
    session = stream(journal, clock, client, [*step(old, 0, 0, 3), *step(old, 0, 1, 3, closed=False)])
    assert tidy(journal, session, clock.redis_ms) == 3
    assert tidy(journal, session, clock.redis_ms) == 0
    assert client.zscore(journal.keys(session).tidy, session) == clock.redis_ms + 600_000


@pytest.mark.parametrize("closing", ["step.failed", "turn.completed", "turn.failed", "turn.cancelled"])
def test_a_step_is_closed_in_more_ways_than_one(
    closing: str, journal: Journal, clock: Time, client: "redis.Redis"
) -> None:
    old = clock.redis_ms - 700_000
    place: dict[str, object] = {"turnId": "turn_0", "sequence": 0}
    if closing == "step.failed":
        place["stepIndex"] = 0
    session = stream(journal, clock, client, [*step(old, 0, 0, 3, closed=False), line(closing, old, **place)])
    assert tidy(journal, session, clock.redis_ms) == 3


def test_what_a_dead_attempt_has_left_is_pruned_too(journal: Journal, clock: Time, client: "redis.Redis") -> None:
    old = clock.redis_ms - 700_000
    place: dict[str, object] = {"turnId": "turn_0", "sequence": 0, "stepIndex": 0}
    lines = [*step(old, 0, 0, 3, closed=False), line("step.superseded", old, **place, **{"from": 1, "to": 3})]
    session = stream(journal, clock, client, [*lines, line("message.appended", old, **place, messageDelta="again")])
    assert tidy(journal, session, clock.redis_ms) == 3


def test_a_step_that_closes_while_we_look_is_not_forgotten(
    journal: Journal, clock: Time, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    session = stream(journal, clock, client, step(clock.redis_ms - 700_000, 0, 0, 3))
    keys, prune = journal.keys(session), journal.prune

    def late(*args: object, **named: object) -> int:
        client.hset(keys.own, "events", 9)
        return prune(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "prune", late)
    tidy(journal, session, clock.redis_ms)
    assert client.zscore(keys.tidy, session) == clock.redis_ms + 600_000


def test_tidying_a_session_that_is_gone_forgets_it(journal: Journal, clock: Time, client: "redis.Redis") -> None:
    session = stream(journal, clock, client, step(clock.redis_ms - 700_000, 0, 0, 3))
    client.delete(journal.keys(session).own)
    assert tidy(journal, session, clock.redis_ms) == 0
    assert client.zscore(journal.keys(session).tidy, session) is None
