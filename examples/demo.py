"""`make demo`: a worker is killed in the middle of an answer, and everything is restarted while a person makes up their mind.

Everything is real: a Valkey, gunicorn, two Celery workers, HTTP. It needs no key, no Docker, no Redis and no root, takes about
20 seconds and leaves nothing behind. It fails if anything that was committed happened twice.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections import Counter

from examples import proof
from examples.stage import LEASE_SECONDS, Event, Failed, Stage, Web, start

QUESTION = "Marta Jensen here. What have I bought, and when do my open orders arrive?"
EXPECTED = ("B-1008", "B-1011", "B-1014")
REFUND = "Order B-1004 came with a torn cover. Could you refund it, please?"
OVER = ("session.waiting", "session.failed", "session.completed")
PARKED = "turn.waiting"


class Screen:
    """Prints a stream while it comes."""

    def __init__(self, stage: Stage) -> None:
        self._say = stage.say
        self._in_text = False

    def show(self, event: Event) -> None:
        """One event."""
        data = event["data"]
        if event["type"] == "message.appended":
            if not self._in_text:
                print("         model   ", end="")
            print(data["messageDelta"].replace("\n", "\n                 "), end="", flush=True)
            self._in_text = True
            return
        self.end_text()
        match event["type"]:
            case "turn.started":
                self._say("turn.started")
            case "step.started":
                self._say(f"step {data['stepIndex']}")
            case "actions.requested":
                for action in data["actions"]:
                    given = ", ".join(f"{name}={value!r}" for name, value in action["input"].items())
                    print(f"         calls   {action['toolName']}({given})", flush=True)
            case "action.result":
                told = json.dumps(data["result"]["output"], ensure_ascii=False)
                print(f"         result  {told if len(told) < 110 else told[:107] + '...'}", flush=True)
            case "input.requested":
                for request in data["requests"]:
                    print(f"         asks    {request['prompt']}", flush=True)
            case "input.resolved":
                for resolution in data["resolutions"]:
                    print(f"         answer  {resolution['outcome']}", flush=True)
            case "turn.completed" | "turn.failed" | "turn.cancelled":
                self._say(event["type"])

    def end_text(self) -> None:
        """Go on on a new line."""
        if self._in_text:
            print(flush=True)
        self._in_text = False


def follow(stage: Stage, web: Web, session: str, workers: dict[int, str]) -> tuple[list[Event], int]:
    """Show the stream to the end of the turn, and kill the worker in the middle of a step. Returns the events and who was killed."""
    screen, seen, killed = Screen(stage), list[Event](), 0
    for event in web.events(session):
        seen.append(event)
        screen.show(event)
        if event["type"] in OVER:
            break
        if not killed and event["type"] == "action.result":
            # One result of this step is committed. If others are still being made, this is the moment.
            running = proof.unfinished(proof.read(stage.log))
            if running:
                killed = running[-1].pid
                os.kill(killed, signal.SIGKILL)
                print()
                stage.say(f"kill -9 {killed}: worker {workers[killed]} dies with {len(running)} calls unfinished")
                print(f"         its lease of {LEASE_SECONDS} s must end before another may go on\n", flush=True)
    return seen, killed


def ask(stage: Stage, web: Web, message: str) -> str:
    """Begin a session. Returns its id."""
    stage.say(f"POST /v1/session  {message!r}")
    status, created = web.json("POST", "/v1/session", {"message": message})
    if status != 202:
        raise Failed(f"POST /v1/session answered {status}: {created}")
    stage.say(f"{status}: it is stored. GET /v1/session/{created['sessionId']}/stream")
    return str(created["sessionId"])


def crash(stage: Stage, web: Web, workers: dict[int, str]) -> list[str]:
    """The first act: a worker is killed in the middle of a step. Returns what went wrong."""
    session = ask(stage, web, QUESTION)
    seen, killed = follow(stage, web, session, workers)
    stored = list(web.events(session, "?follow=false"))
    notes = proof.read(stage.log, session)
    print("\nWhat the calls themselves wrote down, beside what the journal says:\n")
    print(proof.table(notes, stored, workers))
    wrong = proof.violations(notes, stored)
    if not killed:
        wrong.append("no worker was killed: no call was running when a result of its step was committed")
    elif not any(note.pid != killed and note.at > max(n.at for n in notes if n.pid == killed) for note in notes):
        wrong.append("nobody went on after the worker was killed")
    if _ids(stored)[: len(seen)] != _ids(seen):
        wrong.append("the stored stream is not the one that was seen")
    text = next((event["data"]["message"] for event in reversed(stored) if event["type"] == "message.completed"), "")
    wrong += [f"the answer does not speak of {order}" for order in EXPECTED if order not in text]
    if not wrong:
        repeated = sum(times - 1 for times in Counter(note.key for note in notes if note.started).values())
        print(
            f"\nNothing that was committed happened twice. {repeated} unfinished calls ran again, each under its old key.\n"
            "What was seen on the stream is what is stored, and the answer is complete.\n"
        )
    return wrong


def approve(stage: Stage, web: Web) -> list[str]:
    """The second act: a call waits for a person while all that is there is stopped and started. Returns what went wrong."""
    session = ask(stage, web, REFUND)
    screen, seen = Screen(stage), list[Event]()
    for event in web.events(session):
        seen.append(event)
        screen.show(event)
        if event["type"] in (PARKED, *OVER):
            break
    asked = [request for event in seen if event["type"] == "input.requested" for request in event["data"]["requests"]]
    if len(asked) != 1:
        return [f"the refund asked {len(asked)} people instead of one"]
    stage.say("it waits for a person. Stopping the workers, gunicorn and the Valkey")
    stage.stop()
    stage.say("nothing runs any more")
    web, workers = start(stage, "CD")
    path, request = f"/v1/session/{session}", asked[0]["requestId"]
    stage.say(f"POST {path}  approves {request}")
    status, told = web.json("POST", path, {"inputResponses": [{"requestId": request, "optionId": "approve"}]})
    if status != 202:
        raise Failed(f"The answer was answered {status}: {told}")
    for event in web.events(session, f"?startIndex={len(seen)}"):
        seen.append(event)
        screen.show(event)
        if event["type"] in OVER:
            break
    notes = proof.read(stage.log, session)
    stored = list(web.events(session, "?follow=false"))
    wrong = proof.violations(notes, stored)
    if _ids(stored) != _ids(seen):
        wrong.append("the stored stream is not the one that was seen")
    if len(turns := {event["data"]["turnId"] for event in stored if "turnId" in event["data"]}) != 1:
        wrong.append(f"the approval took {len(turns)} turns")
    if [event["type"] for event in stored if event["type"].startswith("turn.")][-1] != "turn.completed":
        wrong.append("the turn was not completed")
    runs = [note for note in notes if note.tool and note.started]
    if len(runs) != 1 or runs[0].pid not in workers:
        wrong.append(f"the refund ran {len(runs)} times, or before it was approved")
    if not wrong:
        print("\nOne turn, one decision, one refund, and nothing ran while it waited.\n")
    return wrong


def _ids(events: list[Event]) -> list[str]:
    return [event["meta"]["id"] for event in events]


def play(stage: Stage) -> int:
    """The whole of it. Returns the exit code."""
    web, workers = start(stage)
    wrong = crash(stage, web, workers) or approve(stage, web)
    for problem in wrong:
        print(f"WRONG: {problem}")
    return 1 if wrong else 0


def _stop(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Play it and clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    stage = Stage()
    try:
        return play(stage)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (Failed, OSError, http.client.HTTPException) as broken:
        print(f"\nFAILED: {broken}\n{stage.last_words()}", file=sys.stderr)
        return 1
    finally:
        stage.clear()


if __name__ == "__main__":
    sys.exit(main())
