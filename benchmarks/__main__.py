"""`python -m benchmarks [--quick]`: every figure of one run stands beside its yardstick of the same run. Only ratios compare machines."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import redis

import orchestrator.ids as ids
from benchmarks.app import app
from benchmarks.processes import Cost, cpu_seconds, measured, server, workers
from orchestrator import Engine, Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import SessionId
from orchestrator.process.history import row

STEPS = 11
"""Ten with a tool, and the last one: two commits a step on average."""
HELLO = Body((Part("text", "Take ten notes."),))


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Look every few milliseconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the load did not end")
        time.sleep(0.005)


def bare(url: str, server_pid: int, chains: int, hops: int, environment: Mapping[str, str], *flags: str) -> Cost:
    """Chains of tasks that only start their successor."""
    import os

    os.environ["BENCH_URL"] = url
    client = redis.Redis.from_url(url)
    from benchmarks.bare import hop

    with workers("benchmarks.bare", 2, url, {"BENCH_URL": url, **environment}, "-c", "32", *flags) as pids:
        _run_bare(hop, client, 50, 5)
        with measured(chains * hops, pids, server_pid) as costs:
            _run_bare(hop, client, chains, hops)
    client.flushdb()
    return costs[0]


def _run_bare(hop: object, client: redis.Redis, chains: int, hops: int) -> None:
    client.delete("bare:done")
    for _ in range(chains):
        hop.apply_async((hops - 1,))  # type: ignore[attr-defined]  # a Celery task
    wait_until(lambda: int(client.get("bare:done") or 0) >= chains)


def durable(url: str, server_pid: int, sessions: int, environment: Mapping[str, str], *flags: str) -> Cost:
    """Sessions of eleven steps each."""
    settings = {"ORCHESTRATOR_APP": "benchmarks.app:app", "ORCHESTRATOR_URL": url, **environment}
    engine = Engine(app, Settings(url=url, app="benchmarks.app:app"))
    with workers("tasks", 2, url, settings, "-c", "32", *flags) as pids:
        _run_durable(engine, 50)
        with measured(sessions * STEPS, pids, server_pid) as costs:
            _run_durable(engine, sessions)
    redis.Redis.from_url(url).flushdb()
    return costs[0]


def _run_durable(engine: Engine, sessions: int) -> None:
    started = [engine.create(HELLO)[0] for _ in range(sessions)]
    wait_until(lambda: all_idle(engine, started))


def all_idle(engine: Engine, sessions: Sequence[SessionId]) -> bool:
    """Whether no turn is open and none waits."""
    pipe = engine.journal.client.pipeline(transaction=False)
    for session in sessions:
        pipe.hmget(engine.journal.keys(session).own, "turn", "token", "waiting")
    return all(found == [b"", b"", b"0"] for found in pipe.execute())


def in_process(url: str, rows: int, turns: int) -> tuple[float, float]:
    """Milliseconds and bytes of AOF a step, in one process without a broker hop, on top of a history of `rows`."""
    engine = Engine(app, Settings(url=url, app="benchmarks.app:app", steps_per_task=1000))
    session, _ = engine.create(HELLO)
    engine.carry_on(session)
    if rows > 24:
        _lengthen(engine, session, rows)
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


def _lengthen(engine: Engine, session: SessionId, rows: int) -> None:
    """Put old messages before a session's own, as if it had lived for weeks."""
    client, keys = engine.journal.client, engine.journal.keys(session)
    old = client.lrange(keys.hist(0), 0, -1)
    pair = old[-2:]
    filler = [
        row(f"old.{place}", "turn_0/0", pair[place % 2][pair[place % 2].index(b',"m":') + 5 : -1]) for place in range(rows - len(old))
    ]
    if filler:
        client.rpush(keys.hist(0), *filler)
        client.hset(keys.own, mapping={"rows": rows, "last_row": f"old.{rows - len(old) - 1}"})
        text = engine.reads.snapshot(session)
        from dataclasses import replace

        from orchestrator.core import codec

        client.set(keys.snapshot, codec.pack_snapshot(replace(text, at=replace(text.at, rows=rows))))
    engine.process.histories.clear()


def parked(url: str, sessions: int) -> tuple[float, float]:
    """Bytes of Redis memory a parked session of two turns and 1.5 kB of text: in all, and beyond its payload."""
    from orchestrator import Agent, App, ScriptedModel, answers

    words = "Where is my order, and when will it be here? " * 8
    quiet = App(agents=[Agent("bench", model=ScriptedModel([answers(words)]))])
    engine = Engine(quiet, Settings(url=url))
    client = redis.Redis.from_url(url)
    engine.create(HELLO)
    before = int(client.info("memory")["used_memory"])
    payload = 0
    for _ in range(sessions):
        session, _ = engine.create(Body((Part("text", words),)))
        engine.carry_on(session)
        engine.deliver(session, Body((Part("text", words),)))
        engine.carry_on(session)
    memory = int(client.info("memory")["used_memory"]) - before
    for name in (ids.shard_of(session),):
        del name
    keys = engine.journal.keys(session)
    for key in (keys.evt, keys.hist(0), keys.fact):
        payload += sum(len(line) for line in client.lrange(key, 0, -1))
    payload += client.strlen(keys.snapshot)
    client.flushdb()
    return memory / sessions, memory / sessions - payload


def latency(url: str) -> tuple[float, float]:
    """p50 in ms from a delivery to the first model call of a parked session, and of a bare task from sending to running."""
    raise NotImplementedError


def table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns."""
    print(f"\n{title}")
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for line in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the load")
    parser.add_argument("--only", default="", help="steps, history, memory")
    options = parser.parse_args()
    chains = 60 if options.quick else 200
    with server() as (url, pid):
        if options.only in ("", "steps"):
            costs = {
                "bare hop, default settings": bare(url, pid, chains, STEPS, {}),
                "bare hop, our lean settings": bare(url, pid, chains, STEPS, {"BENCH_LEAN": "1"}),
                "durable step": durable(url, pid, chains, {}),
                "durable step, steps_per_task 50": durable(url, pid, chains, {"ORCHESTRATOR_STEPS_PER_TASK": "50"}),
                "bare hop again": bare(url, pid, chains, STEPS, {}),
            }
            base = costs["bare hop, default settings"]
            again = costs["bare hop again"]
            base_wall = (base.wall + again.wall) / 2 / base.units
            base_cpu = (base.cpu_ms + again.cpu_ms) / 2
            rows = [("", "per s", "cpu ms (worker+server)", "time / bare", "cpu / bare")]
            for name, cost in costs.items():
                split = f"{cost.cpu_ms:.2f} ({1000 * cost.workers / cost.units:.2f}+{1000 * cost.server / cost.units:.2f})"
                rows.append(
                    (
                        name,
                        f"{cost.per_second:.0f}",
                        split,
                        f"{cost.wall / cost.units / base_wall:.2f}",
                        f"{cost.cpu_ms / base_cpu:.2f}",
                    )
                )
            table(f"{chains} sessions or chains x {STEPS} steps or hops, 2 worker processes, 32 threads each", rows)
        if options.only in ("", "history"):
            turns = 10 if options.quick else 30
            short, long = in_process(url, 0, turns), in_process(url, 2000, turns)
            table(
                "one session in one process, no hop between steps",
                [
                    ("history", "ms / step", "bytes of AOF / step"),
                    ("10 messages and more", f"{short[0]:.2f}", f"{short[1]:.0f}"),
                    ("2,000 messages and more", f"{long[0]:.2f}", f"{long[1]:.0f}"),
                    ("ratio", f"{long[0] / short[0]:.2f}", f"{long[1] / short[1]:.2f}"),
                ],
            )
        if options.only in ("", "memory"):
            count = 100 if options.quick else 1000
            total, beyond = parked(url, count)
            table(
                f"{count} parked sessions, two turns and 1.5 kB of text each",
                [("bytes in Redis", "beyond the payload"), (f"{total:.0f}", f"{beyond:.0f}")],
            )


def _unused() -> float:
    return cpu_seconds([])


if __name__ == "__main__":
    main()
