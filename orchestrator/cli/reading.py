"""A stream as a person reads it: a line an event, the words of an answer as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.cli.printed import as_json, plain, say, short

PLACE = ("turnId", "sequence", "stepIndex", "sessionId", "continuationToken", "usage")
"""What every event repeats."""
WIDTH = 12


class Reader:
    """Prints events. Pieces of an answer are put on one line as they come, so it must be told of every event, in order."""

    def __init__(self) -> None:
        self._open = ""
        self._said = ""

    def show(self, line: bytes) -> None:
        """Print one event, as it is stored."""
        event = json.loads(line)
        kind, data = str(event["type"]), event.get("data") or {}
        at = str(event.get("meta", {}).get("at", ""))[11:23]
        name, _, what = kind.partition(".")
        if what == "appended":
            self._piece(at, name, str(data.get(f"{name}Delta", "")))
            return
        if what == "completed" and name == self._open and data.get(name) == self._said:
            self.close()
            return
        self.close()
        for label, text in told(kind, data):
            say(f"{at}  {label:<{WIDTH}}{text}".rstrip())

    def close(self) -> None:
        """End the line that is open."""
        if self._open:
            say()
        self._open = self._said = ""

    def _piece(self, at: str, name: str, text: str) -> None:
        if not text:  # a place holder: the whole of it is behind it
            return
        if self._open != name:
            self.close()
            sys.stdout.write(f"{at}  {WHO.get(name, name):<{WIDTH}}")
            self._open = name
        self._said += text
        sys.stdout.write(plain(text))


WHO = {"message": "agent", "reasoning": "thinks"}


def told(kind: str, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What an event says: labels and texts, one a line. An event that is not known is shown as it is."""
    step = f"step {data.get('stepIndex', '?')}"
    match kind:
        case "message.received":
            yield "message", plain(data.get("message", ""))
        case "message.completed" | "reasoning.completed":
            name = kind.partition(".")[0]
            yield WHO[name], plain(data.get(name, ""))
        case "step.started":
            yield "model", f"{step}, {plain(data.get('modelId', ''))}"
        case "actions.requested":
            for action in data.get("actions", ()):
                yield "calls", f"{plain(action.get('toolName', ''))}({_arguments(action.get('input'))})"
        case "action.result" | "action.partial":
            result = data.get("result", {})
            status = "" if data.get("status", "completed") == "completed" else f" {data['status']}"
            label = "result" if kind == "action.result" else "so far"
            yield label, f"{plain(result.get('toolName', ''))}{status}: {short(as_json(result.get('output')))}"
        case "input.requested":
            for request in data.get("requests", ()):
                options = " / ".join(str(option.get("id")) for option in request.get("options") or ())
                yield (
                    "asks",
                    f"{plain(request.get('prompt', ''))} [{plain(options)}] {plain(request.get('requestId', ''))}",
                )
        case "input.resolved":
            for one in data.get("resolutions", ()):
                yield "answered", f"{plain(one.get('requestId', ''))}: {plain(one.get('outcome', ''))}"
        case "turn.failed" | "step.failed":
            yield f"{kind.partition('.')[0]} failed", f"{plain(data.get('code', ''))}: {plain(data.get('message', ''))}"
        case "turn.started" | "turn.completed" | "turn.cancelled" | "turn.waiting":
            name, _, what = kind.partition(".")
            yield name, f"{plain(data.get('turnId', ''))} {'waits for people' if what == 'waiting' else what}"
        case "step.completed":
            yield "model", f"{step} done ({plain(data.get('finishReason', ''))})"
        case "session.started":
            yield "session", f"started, with the agent {plain((data.get('runtime') or {}).get('agentId', ''))}"
        case "session.waiting":
            yield "session", "waits for the next message"
        case _:
            rest = {name: value for name, value in data.items() if name not in PLACE}
            yield kind, f"  {short(as_json(rest))}" if rest else ""


def _arguments(given: object) -> str:
    if isinstance(given, Mapping):
        return short(", ".join(f"{name}={as_json(value)}" for name, value in given.items()))
    return short(as_json(given))
