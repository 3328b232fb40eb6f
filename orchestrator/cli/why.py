"""What a session waits for, in one sentence: values in, words out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from orchestrator.cli.printed import seconds, short
from orchestrator.clock import iso
from orchestrator.core.names import Millis
from orchestrator.core.snapshot import Snapshot, Turn
from orchestrator.core.status import Status
from orchestrator.notes import Note


@dataclass(frozen=True, slots=True)
class Scene:
    """All that the sentence depends on. `requests` are the open ones, `workers` the living ones of the session's deployment,
    `lease_ms` and `timer_ms` times of Redis (0: none)."""

    status: Status
    snapshot: Snapshot
    deployment: str
    workers: int
    requests: Sequence[Note] = ()
    waiting: int = 0
    now_ms: int = 0
    lease_ms: int = 0
    timer_ms: int = 0


def why(scene: Scene) -> str:
    """The sentence."""
    turn = scene.snapshot.turn
    match scene.status:
        case "ended":
            return "It has ended and takes no more messages."
        case "ending":
            return f"It is being ended{_by_workers(scene)}."
        case "running":
            return f"A worker is at it: {_doing(scene.snapshot)}."
        case "interrupted":
            since = seconds(max(0, scene.now_ms - scene.lease_ms))
            others = f"another one takes it over{_by_workers(scene)}"
            return f"Its worker's lease ran out {since} ago without a sign of life, so {others}."
        case "queued":
            what = f"{_messages(scene.waiting)} for a worker" if scene.waiting else "it has work for a worker"
            return (
                f"{what[0].upper()}{what[1:]} of the deployment {scene.deployment}, of which {_living(scene.workers)}."
            )
        case "waiting_for_input":
            return f"{_asked(scene.requests)}."
        case "waiting_for_tasks":
            return "It waits for tasks that it has started."
        case "waiting_for_timer":
            return f"It waits until {iso(Millis(scene.timer_ms))}, {seconds(scene.timer_ms - scene.now_ms)} from now{_until(turn)}."
        case "needs_newer_worker":
            return "A newer version has written it: start a worker of that version, or a later one."
        case "idle":
            return "It waits for the next message; nothing runs, and nothing is lost by waiting."
        case _:
            assert_never(scene.status)


def _by_workers(scene: Scene) -> str:
    return "" if scene.workers else f", once there is one: no worker of the deployment {scene.deployment} lives"


def _living(workers: int) -> str:
    match workers:
        case 0:
            return "none lives: start one with `orchestrator worker`"
        case 1:
            return "1 lives"
        case _:
            return f"{workers} live"


def _messages(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count} messages wait"


def _doing(snapshot: Snapshot) -> str:
    turn = snapshot.turn
    if snapshot.compacting is not None:
        return "what was said long ago is being summed up"
    if turn is None:
        return "it is looking at what came in"
    place = f"in step {turn.step} of {turn.id}"
    if turn.is_stopping:
        return f"{turn.id} is coming to its end"
    if turn.phase == "tools":
        open_calls = [call.tool for call in turn.calls if call.state != "settled"]
        if open_calls:
            return f"the {'tool' if len(open_calls) == 1 else 'tools'} {short(', '.join(open_calls), 80)} {place}"
    again = f", after {turn.tries} failed {'try' if turn.tries == 1 else 'tries'}" if turn.tries else ""
    return f"the model is asked {place}{again}"


def _asked(requests: Sequence[Note]) -> str:
    if not requests:
        return "It waits for somebody to answer what it has asked"
    first = requests[0]
    tool = (first.get("action") or {}).get("toolName", "")
    verb = {
        "tool-approval": f"to approve a call of {short(tool, 60)}",
        "session-limit": "to let it go on beyond its budget",
    }
    what = f"It waits for somebody {verb.get(str(first['kind']), 'to answer its question')}: “{short(first.get('prompt', ''), 120)}”"
    if first.get("expires_ms"):
        what += f" (until {iso(Millis(first['expires_ms']))})"
    more = len(requests) - 1
    return f"{what}, and {more} more {'request' if more == 1 else 'requests'}" if more else what


def _until(turn: Turn | None) -> str:
    if turn is None or not turn.retry_at:
        return ""
    return f", when the model is asked again after {turn.tries} failed {'try' if turn.tries == 1 else 'tries'}"
