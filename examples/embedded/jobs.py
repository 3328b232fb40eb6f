"""The team's Celery app and its task, as they were before there was an agent. Nothing here knows of one."""

from __future__ import annotations

import os

import redis
from celery import Celery

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
PACKED = "bookshop:packed"

celery = Celery("bookshop", broker=REDIS_URL)
celery.conf.task_default_queue = "bookshop"
store = redis.Redis.from_url(REDIS_URL, decode_responses=True)


@celery.task(name="bookshop.pack")
def pack(number: str) -> None:
    """Pack an order. Done twice it is packed once."""
    store.sadd(PACKED, number)


def is_packed(number: str) -> bool:
    """Whether an order was packed."""
    return bool(store.sismember(PACKED, number))
