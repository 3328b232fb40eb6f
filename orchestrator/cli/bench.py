"""`orchestrator bench`: how many steps a second, and how long a message waits, on the Redis of these settings.

It has a world of its own there (a prefix, a deployment), its own worker processes, and an agent whose model costs nothing. All of it is
taken away at the end, also after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from orchestrator import ids, world
from orchestrator.cli.load import ENDLESS, FACTS
from orchestrator.cli.printed import as_json as json_of
from orchestrator.cli.printed import note, say
from orchestrator.cli.processes import Pool, workers
from orchestrator.cli.reach import configured, find_app, in_words, open_journal, running
from orchestrator.cli.supervisor import Child
from orchestrator.config import Settings
from orchestrator.core.names import SessionId
from orchestrator.engine import Engine
from orchestrator.errors import ConfigError, OrchestratorError, SessionNotFound
from orchestrator.journal.leaving import forget_world

APP = "orchestrator.cli.load:app"
MOST_SECONDS = 20.0
START_SECONDS = 10.0
REST_SECONDS = 4.0
"""What the latencies and the end take, and must be left of all the time there is."""
MESSAGES = 40
AT_ONCE = 32
"""Sessions that run at the same time, if there are slots for so many."""


class Slow(OrchestratorError):
    """{problem} Free this machine of other work, or give it fewer --workers."""

    code, status = "bench_slow", 503


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured. Times in milliseconds: of each message until a worker had begun it (whole ones, by the clock of Redis) and
    until its answer was stored, and of a round trip to Redis."""

    workers: int
    concurrency: int
    sessions: int
    seconds: float
    steps: int
    begun: Sequence[float]
    answered: Sequence[float]
    round_trip: float

    @property
    def per_second(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds

    @property
    def json(self) -> dict[str, object]:
        """As JSON."""
        return {
            "stepsPerSecond": round(self.per_second, 1),
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "workers": self.workers,
            "concurrency": self.concurrency,
            "sessions": self.sessions,
            "begunMs": {"p50": _share(self.begun, 50), "p95": _share(self.begun, 95)},
            "answeredMs": {"p50": _share(self.answered, 50), "p95": _share(self.answered, 95)},
            "roundTripMs": round(self.round_trip, 3),
        }


def bench(seconds: float, processes: int, concurrency: int, *, as_json: bool) -> int:
    """Measure and print."""
    until = time.monotonic() + MOST_SECONDS
    settings = _own_world(running(configured()[1]))
    engine = Engine(find_app(APP), settings)
    open_journal(engine)
    if not as_json:
        note(
            f"Starting {processes} worker {'process' if processes == 1 else 'processes'} beside whatever runs there ..."
        )
    with _sigterm_as_ctrl_c(), _nothing_left(engine), _working(engine, processes, concurrency):
        slots = min(AT_ONCE, processes * concurrency)
        seconds = min(seconds, max(1.0, until - time.monotonic() - REST_SECONDS))
        steps, took = _throughput(engine, slots, seconds)
        begun, answered = _latency(engine, until)
        round_trip = statistics.median(_timed(engine.journal.time) for _ in range(50))
    found = Figures(processes, concurrency, slots, took, steps, begun, answered, round_trip)
    if as_json:
        say(json_of(found.json))
        return 0
    say(
        f"steps    {found.per_second:,.0f} a second  ({slots} sessions on {processes} x {concurrency} slots, {took:.1f} s)"
    )
    for what, times in (("a worker has begun it", begun), ("its answer is stored", answered)):
        say(f"message  until {what:<22} median {_share(times, 50):>6.1f} ms   p95 {_share(times, 95):>6.1f} ms")
    say(f"Redis    {round_trip:.2f} ms a round trip, durability {settings.durability}")
    return 0


def _own_world(settings: Settings) -> Settings:
    """The same Redis, with a prefix and a deployment that nobody else has, and no model that costs anything."""
    with in_words(settings, "either"):
        if not world.announces_itself(settings):
            raise ConfigError(
                problem="bench knows only a broker on the journal's own server, and ORCHESTRATOR_BROKER_URL names another.",
                remedy="Run it without that setting.",
            )
    name = f"bench-{ids.ulid(0)[-8:].lower()}"
    return replace(
        settings,
        app=APP,
        prefix=f"{settings.prefix}.{name}",  # begins like all our keys: a Redis user that may use those may use these
        deployment=name,
        model="",
        drain_seconds=1.0,
    )


# Measuring ----------------------------------------------------------------------------------------------------------------


def _throughput(engine: Engine, many: int, seconds: float) -> tuple[int, float]:
    """Steps of endless turns, and the seconds they took. The sessions are gone afterwards."""
    sessions = [engine.create(ENDLESS).session for _ in range(many)]
    _wait(lambda: all(one > FACTS for one in _facts(engine, sessions)), 5.0, "not every session was begun")
    before, began = sum(_facts(engine, sessions)), time.monotonic()
    time.sleep(seconds)
    after, took = sum(_facts(engine, sessions)), time.monotonic() - began
    for session in sessions:
        engine.erase(session)
    return (after - before) // FACTS, took


def _facts(engine: Engine, sessions: Sequence[SessionId]) -> list[int]:
    return [view.number("seq") if view else 0 for view in engine.reads.views(sessions)]


def _latency(engine: Engine, until: float) -> tuple[list[float], list[float]]:
    """For messages to one idle session, one after the other: until a worker had begun each, and until its answer was stored."""
    session = engine.create("Hello").session
    _settled(engine, session, 1)
    begun, answered = list[float](), list[float]()
    for number in range(MESSAGES):
        if answered and time.monotonic() > until - 2.0:
            break
        tail = engine.reads.tail(session) or 0
        sent = time.monotonic()
        at = engine.deliver(session, "And again").at
        _settled(engine, session, number + 2)
        answered.append(1000 * (time.monotonic() - sent))
        events = [json.loads(line) for line in engine.reads.events(session, tail)]
        first = next(event["meta"]["id"] for event in events if event["type"] == "step.started")
        # An event's id begins with its time, and both times are of the clock of Redis.
        begun.append(float(ids.ulid_ms(first.removeprefix("evt_")) - at))
    engine.erase(session)
    return begun, answered


def _settled(engine: Engine, session: SessionId, turns: int) -> None:
    """Wait until so many turns are over."""
    _wait(lambda: _is_settled(engine, session, turns), 5.0, "a message was not answered")


def _is_settled(engine: Engine, session: SessionId, turns: int) -> bool:
    snapshot = engine.reads.snapshot(session)
    return snapshot.turn is None and snapshot.next_turn >= turns


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def _share(times: Sequence[float], percent: int) -> float:
    return round(sorted(times)[min(len(times) - 1, len(times) * percent // 100)], 2)


def _wait(condition: Callable[[], bool], seconds: float, problem: str) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise Slow(problem=f"After {seconds:g} s {problem}.")
        time.sleep(0.002)


# Around it ----------------------------------------------------------------------------------------------------------------


@contextmanager
def _working(engine: Engine, processes: int, concurrency: int) -> Iterator[None]:
    """Worker processes that live while the body runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    env = {**kept, **engine.settings.as_environment()}
    with tempfile.TemporaryFile() as log:
        children = [
            replace(child, log=log) for child in workers(Pool(concurrency=concurrency), processes, env, engine.settings)
        ]
        try:
            for child in children:
                child.start()
            _wait(lambda: _all_beat(engine, children), START_SECONDS, "the workers were not ready")
            yield
        except Slow:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
            raise
        finally:
            _end(children)


def _all_beat(engine: Engine, children: Sequence[Child]) -> bool:
    if any(not child.lives for child in children):
        raise Slow(problem="A worker ended before it was ready; what it said is above.")
    return len(engine.reads.workers(engine.label)) >= len(children)


def _end(children: Sequence[Child]) -> None:
    for number, seconds in ((signal.SIGTERM, 4.0), (signal.SIGKILL, 4.0)):
        for child in children:
            child.tell(number)
        until = time.monotonic() + seconds
        while any(child.lives for child in children) and time.monotonic() < until:
            time.sleep(0.02)


@contextmanager
def _nothing_left(engine: Engine) -> Iterator[None]:
    """What was made in the journal is gone when the body has ended, however it ended."""
    try:
        yield
    finally:
        with suppress(OrchestratorError):
            for session, _ in engine.reads.sessions(10 * AT_ONCE):
                with suppress(SessionNotFound):
                    engine.erase(session)
            forget_world(engine.journal.client, engine.settings.prefix, engine.label)
        engine.close()


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
