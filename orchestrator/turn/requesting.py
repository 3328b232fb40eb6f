"""The effect "ask people": make the requests of a batch, with all that people see of them, and a link for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orchestrator.ids as ids
from orchestrator.core import holds
from orchestrator.core.effect import AskPeople
from orchestrator.core.event import Bodies
from orchestrator.core.fact import InputRequested
from orchestrator.core.names import NEVER, CallId, Millis, request_id
from orchestrator.core.snapshot import Call, Option, Request, WhoAnswers
from orchestrator.draft import Given
from orchestrator.notes import Note, who, wire
from orchestrator.tool import Tool
from orchestrator.turn.hands import Hands
from orchestrator.turn.judging import gated, nobody

MOST_LABEL = 80
MOST_OPTIONS = 10
MOST_OF_OPTIONS = 8 * 1024
"""Bytes of the options of all questions of one answer: they are part of the snapshot."""
OF_AN_OPTION = 24
"""Bytes of one of them beside its label."""
MAYBE_RUN = "It was approved before and began; it may have run, wholly or partly. Run it again?"


def request_input(hands: Hands, effect: AskPeople) -> None:
    """Make the requests, or give the calls their results where nobody can be asked."""
    if not hands.may_ask:
        for call in effect.calls:
            nobody(hands, call)
        return
    at, fresh = hands.process.clock.now(), ids.ulid(hands.process.clock.now())
    tools = {tool.name: tool for tool in hands.agent.tools}
    made: list[tuple[Request, Note]] = []
    room = MOST_OF_OPTIONS
    for place, call in enumerate(effect.calls):
        request, note = _of_call(hands, call, tools.get(call.tool), fresh, place, at, room)
        room -= _size(request.options) if call.asks == "question" else 0
        made.append((request, note))
    made = made or [_of_budget(hands, fresh, at)]
    requests = tuple(request for request, _ in made)
    notes = {request.id: note for request, note in made}
    fact = InputRequested(hands.turn.id, hands.turn.step, requests, at)
    hands.given.append(Given(fact, Bodies(requests=tuple(wire(note) for note in notes.values())), asked=notes))


def _of_call(
    hands: Hands, call: Call, tool: Tool | None, fresh: str, place: int, at: Millis, room: int
) -> tuple[Request, Note]:
    if call.asks == "question":
        return _question(hands, call, fresh, place, at, room)
    approval = tool.approval if tool is not None else None
    shown = gated(hands, call)
    prompt = approval.text(shown) if approval is not None else f"Run {call.tool}?"
    if call.state == "started":
        prompt = f"{prompt} {MAYBE_RUN}"
    expires = NEVER
    if approval is not None and approval.expires is not None:
        expires = Millis(at + int(approval.expires.total_seconds() * 1000))
    answers: WhoAnswers = "policy" if approval is not None and approval.response is not None else "requester"
    request = Request(
        request_id(fresh, place), "tool-approval", call.id, hands.owned.position.seq,
        options=holds.OPTIONS["tool-approval"], who=answers, expires=expires,
    )  # fmt: skip
    return request, _note(hands, request, call, prompt, at, display="confirmation")


def _size(options: Iterable[Option]) -> int:
    return sum(OF_AN_OPTION + len(option.label.encode("utf-8", "replace")) for option in options)


def _question(hands: Hands, call: Call, fresh: str, place: int, at: Millis, room: int) -> tuple[Request, Note]:
    given = gated(hands, call).input
    labels = given.get("options")
    found = [str(label)[:MOST_LABEL] for label in labels][:MOST_OPTIONS] if isinstance(labels, list) else []
    options = tuple(Option(str(number), label) for number, label in enumerate(found, 1))
    prompt = str(given.get("question", ""))
    if _size(options) > room:
        # Nothing is lost by it: people read them in the question, and any words are an answer.
        prompt, options = "\n- ".join((prompt, *found)), ()
    request = Request(
        request_id(fresh, place), "question", call.id, hands.owned.position.seq, options=options, freeform=True
    )
    return request, _note(hands, request, call, prompt, at, display="select" if options else "text")


def _of_budget(hands: Hands, fresh: str, at: Millis) -> tuple[Request, Note]:
    request = Request(
        request_id(fresh, 0),
        "session-limit",
        CallId(""),
        hands.owned.position.seq,
        options=holds.OPTIONS["session-limit"],
    )
    return request, _note(hands, request, None, hands.budget_text(), at, display="confirmation")


def _note(hands: Hands, request: Request, call: Call | None, prompt: str, at: Millis, *, display: str) -> Note:
    turn = hands.turn
    found = hands.inputs().get(call.id) if call is not None else {}
    action: Mapping[str, object] = {
        "kind": "tool-call",
        "callId": call.id if call is not None else request.id,
        "toolName": call.tool if call is not None else "session_limit",
        "input": found,
    }
    return {
        "requestId": request.id,
        "kind": request.kind,
        "prompt": prompt,
        "action": action,
        "display": display,
        "allowFreeform": request.freeform,
        "options": [{"id": option.id, "label": option.label} for option in request.options],
        "turn": turn.id,
        "digest": call.digest if call is not None else "",
        "requester": who(turn.principal),
        "asked_ms": at,
        "expires_ms": request.expires,
        "state": "open",
        "link": ids.new_link(ids.shard_of(hands.owned.session)),
    }
