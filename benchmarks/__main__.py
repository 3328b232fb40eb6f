"""`python -m benchmarks [--quick]`: every figure stands beside its yardstick of the same run. Only the ratios compare machines."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from benchmarks.app import app
from benchmarks.processes import Cost, measured, server, workers
from orchestrator import Agent, App, Engine, ScriptedModel, Settings, answers
from orchestrator.core import codec
from orchestrator.core.names import SessionId
from orchestrator.process.history import message_of, row

STEPS = 11
"""Ten with a tool, and the last one: two commits a step on average."""
HELLO = "Take ten notes."
NAME = "benchmarks.app:app"


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Look every few milliseconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the load did not end")
        time.sleep(0.005)


# Steps and hops --------------------------------------------------------------------------------------------------------


def bare(url: str, server_pid: int, chains: int, environment: Mapping[str, str], *flags: str) -> Cost:
    """Chains of tasks that only start their successor."""
    os.environ["BENCH_URL"] = url
    from benchmarks.bare import hop

    client = redis.Redis.from_url(url)

    def run(count: int, hops: int) -> None:
        client.delete("bare:done")
        start: Any = hop
        for _ in range(count):
            start.apply_async((hops - 1,))
        wait_until(lambda: int(client.get("bare:done") or 0) >= count)

    with workers("benchmarks.bare", 2, url, {"BENCH_URL": url, **environment}, "-c", "32", *flags) as pids:
        run(50, 5)
        with measured(chains * STEPS, pids, server_pid) as costs:
            run(chains, STEPS)
    client.flushdb()
    return costs[0]


def durable(url: str, server_pid: int, sessions: int, environment: Mapping[str, str], *flags: str) -> Cost:
    """Sessions of eleven steps each."""
    settings = {"ORCHESTRATOR_APP": NAME, "ORCHESTRATOR_URL": url, **environment}
    engine = Engine(app, Settings(url=url, app=NAME))

    def run(count: int) -> None:
        started = [engine.create(HELLO).session for _ in range(count)]
        wait_until(lambda: all_idle(engine, started))

    with workers("tasks", 2, url, settings, "-c", "32", *flags) as pids:
        run(50)
        with measured(sessions * STEPS, pids, server_pid) as costs:
            run(sessions)
    redis.Redis.from_url(url).flushdb()
    return costs[0]


def all_idle(engine: Engine, sessions: Sequence[SessionId]) -> bool:
    """Whether no turn is open and none waits."""
    pipe = engine.journal.client.pipeline(transaction=False)
    for session in sessions:
        pipe.hmget(engine.journal.keys(session).own, "turn", "token", "waiting")
    return all(found == [b"", b"", b"0"] for found in pipe.execute())


def steps(url: str, pid: int, chains: int) -> None:
    """A durable step against a bare hop: throughput and CPU."""
    costs = {
        "bare hop, Celery's default settings": bare(url, pid, chains, {}),
        "bare hop, our lean settings": bare(url, pid, chains, {"BENCH_LEAN": "1"}),
        "durable step": durable(url, pid, chains, {}),
        "durable step, steps_per_task 50": durable(url, pid, chains, {"ORCHESTRATOR_STEPS_PER_TASK": "50"}),
        "durable step, worker events (-E)": durable(url, pid, chains, {}, "-E"),
        "bare hop, default, worker events (-E)": bare(url, pid, chains, {}, "-E"),
        "bare hop, default, once more": bare(url, pid, chains, {}),
    }
    first, last = costs["bare hop, Celery's default settings"], costs["bare hop, default, once more"]
    base_wall = (first.wall + last.wall) / 2 / first.units
    base_cpu = (first.cpu_ms + last.cpu_ms) / 2
    rows = [("", "per s", "CPU ms (workers + server)", "time / bare", "CPU / bare")]
    for name, cost in costs.items():
        split = f"{cost.cpu_ms:.2f} ({1000 * cost.workers / cost.units:.2f} + {1000 * cost.server / cost.units:.2f})"
        wall, cpu = cost.wall / cost.units / base_wall, cost.cpu_ms / base_cpu
        rows.append((name, f"{cost.per_second:.0f}", split, f"{wall:.2f}", f"{cpu:.2f}"))
    table(f"{chains} sessions or chains x {STEPS} steps or hops, 2 worker processes of 32 threads", rows)


# Latency ---------------------------------------------------------------------------------------------------------------


def latency(url: str, count: int) -> None:
    """From a delivery to a parked session until its model is called, and from sending a bare task until it runs."""
    os.environ["BENCH_URL"] = url
    from benchmarks.bare import look

    with tempfile.NamedTemporaryFile() as log:

        def waits(send: Callable[[], object]) -> list[float]:
            """Milliseconds from sending until the line in the log, one at a time."""
            found = []
            for _ in range(count):
                size = os.path.getsize(log.name)
                sent = time.time()
                send()
                wait_until(lambda size=size: os.path.getsize(log.name) > size, 20)  # type: ignore[misc]  # bound now
                found.append(1000 * (float(Path(log.name).read_text().split()[-1]) - sent))
                time.sleep(0.01)
            return sorted(found[count // 10 :])

        environment = {"BENCH_URL": url, "BENCH_LOG": log.name}
        task: Any = look
        with workers("benchmarks.bare", 1, url, environment, "-c", "8"):
            bare_waits = waits(lambda: task.apply_async())
        engine = Engine(app, Settings(url=url, app=NAME))
        settings = {"ORCHESTRATOR_APP": "benchmarks.app:watched", "ORCHESTRATOR_URL": url, **environment}
        with workers("tasks", 1, url, settings, "-c", "8"):
            session = engine.create(HELLO).session

            def deliver() -> None:
                wait_until(lambda: all_idle(engine, [session]))
                engine.deliver(session, HELLO)

            durable_waits = waits(deliver)
    rows = [("", "p50 ms", "p95 ms")]
    for name, found in (
        ("bare task, sent until it runs", bare_waits),
        ("message until the model is called", durable_waits),
    ):
        rows.append((name, f"{statistics.median(found):.2f}", f"{found[len(found) * 95 // 100]:.2f}"))
    rows.append(("ratio", f"{statistics.median(durable_waits) / statistics.median(bare_waits):.2f}", ""))
    table(f"{count} times, one at a time, one worker process", rows)


# History ---------------------------------------------------------------------------------------------------------------


def history(url: str, turns: int) -> None:
    """What a step costs on a short and on a long history."""
    short, long = on_history(url, 0, turns), on_history(url, 2000, turns)
    table(
        "one session in one process, no hop between steps",
        [
            ("history", "ms / step", "bytes of AOF / step"),
            ("10 messages and more", f"{short[0]:.2f}", f"{short[1]:.0f}"),
            ("2,000 messages and more", f"{long[0]:.2f}", f"{long[1]:.0f}"),
            ("ratio", f"{long[0] / short[0]:.2f}", f"{long[1] / short[1]:.2f}"),
        ],
    )


def on_history(url: str, rows: int, turns: int) -> tuple[float, float]:
    """Milliseconds (median of turns) and bytes of AOF a step, on top of a history of at least `rows`."""
    engine = Engine(app, Settings(url=url, app=NAME, steps_per_task=1000))
    session = engine.create(HELLO).session
    engine.carry_on(session)
    if rows:
        lengthen(engine, session, rows)
    engine.deliver(session, HELLO)
    engine.carry_on(session)
    client = engine.journal.client
    times = []
    before = int(client.info("persistence")["aof_current_size"])
    for _ in range(turns):
        began = time.perf_counter()
        engine.deliver(session, HELLO)
        engine.carry_on(session)
        times.append((time.perf_counter() - began) / STEPS)
    grown = int(client.info("persistence")["aof_current_size"]) - before
    return 1000 * statistics.median(times), grown / turns / STEPS


def lengthen(engine: Engine, session: SessionId, rows: int) -> None:
    """Give a session as many rows as if it had lived for weeks."""
    client, keys = engine.journal.client, engine.journal.keys(session)
    old: Any = client.lrange(keys.hist(0), 0, -1)
    pair = [message_of(text) for text in old[-2:]]
    client.rpush(keys.hist(0), *[row(f"old.{place}", "turn_0/0", pair[place % 2]) for place in range(rows - len(old))])
    client.hset(keys.own, mapping={"rows": rows, "last_row": f"old.{rows - len(old) - 1}"})
    snapshot = engine.reads.snapshot(session)
    client.set(keys.snapshot, codec.pack_snapshot(replace(snapshot, at=replace(snapshot.at, rows=rows))))
    engine.process.histories.clear()


# Memory ----------------------------------------------------------------------------------------------------------------


def memory(url: str, sessions: int) -> None:
    """What a parked session takes in Redis."""
    words = "Where is my order, and when will it be here? " * 8
    quiet = App(agents=[Agent("bench", model=ScriptedModel([answers(words)]))])
    engine = Engine(quiet, Settings(url=url))
    client = engine.journal.client

    def parked() -> SessionId:
        session = engine.create(words).session
        engine.carry_on(session)
        engine.deliver(session, words)
        engine.carry_on(session)
        return session

    one = parked()
    client.delete("orc.default")  # no worker took the wakes: they are the broker's
    before = int(client.info("memory")["used_memory"])
    for _ in range(sessions):
        parked()
    client.delete("orc.default")
    total = (int(client.info("memory")["used_memory"]) - before) / sessions
    keys = engine.journal.keys(one)
    payload = {
        "events": sum(map(len, client.lrange(keys.evt, 0, -1))),
        "history": sum(map(len, client.lrange(keys.hist(0), 0, -1))),
        "facts": sum(map(len, client.lrange(keys.fact, 0, -1))),
        "snapshot": int(client.strlen(keys.snapshot)),
    }
    own: Any = list(client.scan_iter(match=f"*{one}*", count=10_000))
    taken = sum(int(client.memory_usage(name) or 0) for name in own)
    kinds = ", ".join(f"{name} {size:,}" for name, size in payload.items())
    table(
        f"{sessions} parked sessions, two turns and {4 * len(words) / 1000:.1f} kB of text each",
        [
            ("used_memory / session", f"its {len(own)} keys", "payload", "keys beyond it"),
            (
                f"{total:,.0f}",
                f"{taken:,}",
                f"{sum(payload.values()):,} ({kinds})",
                f"{taken - sum(payload.values()):,}",
            ),
        ],
    )
    client.flushdb()


def table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns."""
    print(f"\n{title}")
    widths = [max(len(line[place]) for line in rows) for place in range(len(rows[0]))]
    for line in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the load")
    parser.add_argument("--only", choices=("steps", "latency", "history", "memory"))
    options = parser.parse_args()
    with server() as (url, pid):
        if options.only in (None, "steps"):
            steps(url, pid, 60 if options.quick else 200)
        if options.only in (None, "latency"):
            latency(url, 60 if options.quick else 200)
        if options.only in (None, "history"):
            history(url, 10 if options.quick else 30)
        if options.only in (None, "memory"):
            memory(url, 100 if options.quick else 1000)


if __name__ == "__main__":
    main()
