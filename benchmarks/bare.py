"""The yardstick: a task that does nothing but start its successor. `BENCH_LEAN=1` gives it our lean settings."""

from __future__ import annotations

import os

import redis
from celery import Celery

URL = os.environ["BENCH_URL"]
app = Celery("bare", broker=URL, set_as_current=False)
if os.environ.get("BENCH_LEAN"):
    app.config_from_object("celeryconfig")
else:
    app.conf.task_ignore_result = True
client = redis.Redis.from_url(URL)


@app.task(name="bare.hop")
def hop(left: int) -> None:
    """Start the next one; the last of a chain says so."""
    if left:
        hop.apply_async((left - 1,))
    else:
        client.incr("bare:done")


@app.task(name="bare.look")
def look() -> None:
    """Say when it runs."""
    from benchmarks.app import note_time

    note_time()
