"""The Celery message as text: what `apply_async` would have put into the queue, ready to be pushed by a script.

A message is a hint: it carries a session id and, for people, what it is for. Pure; `tests/tasks/test_envelope.py` holds it against
what the pinned kombu produces.
"""

from __future__ import annotations

import json

STEP = "orchestrator.step"
RESUME = "orchestrator.resume"
TASKS = (STEP, RESUME)

QUEUE_PREFIX = "orc."


def queue_name(label: str) -> str:
    """The queue that workers of a deployment listen on."""
    return QUEUE_PREFIX + label


def template(task: str, origin: str = "orchestrator") -> str:
    """The message of `task` with places to fill in: @SESSION@, @KEY@ (what it is for), @QUEUE@, @NUMBER@ and @AT@ (ms) of the wake."""
    body = json.dumps([["@SESSION@", "@KEY@"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    headers: dict[str, object] = {
        "lang": "py",
        "task": task,
        "id": "@SESSION@/@KEY@",
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": "@SESSION@/@KEY@",
        "parent_id": None,
        "argsrepr": "@SESSION@/@KEY@",
        "kwargsrepr": "{}",
        "origin": origin,
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    message = {
        "wake": {"number": "@NUMBER@", "at": "@AT@"},
        "body": body,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {
            "correlation_id": "@SESSION@/@KEY@",
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "@QUEUE@"},
            "priority": 0,
            "delivery_tag": "@SESSION@.@NUMBER@",
        },
    }
    text = json.dumps(message, separators=(",", ":"))
    return text.replace('"@NUMBER@"', "@NUMBER@").replace('"@AT@"', "@AT@")


def fill(text: str, *, session: str, key: str, queue: str, number: int, at_ms: int) -> str:
    """The message itself. The scripts do the same with one `gsub`."""
    for place, value in (("SESSION", session), ("KEY", key), ("QUEUE", queue), ("NUMBER", number), ("AT", at_ms)):
        text = text.replace(f"@{place}@", str(value))
    return text


def pushed_ms(message: bytes | None) -> int | None:
    """When a wake was pushed, as it says itself. None for no message, or one of somebody else."""
    if not message or b'"at":' not in message:
        return None
    digits = message.split(b'"at":', 1)[1].split(b"}", 1)[0]
    return int(digits) if digits.isdigit() else None
