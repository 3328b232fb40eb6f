"""Holds: what an open turn asks people, who may answer, what an answer means, and how the turn goes on.

A batch of requests belongs to one answer of the model. Nothing that waits for a person runs before all of the batch has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.core import codec
from orchestrator.core.delivery import Answered, Envelope, Head
from orchestrator.core.fact import (
    AnswersTaken,
    CallsJudged,
    CandidateJudged,
    Decision,
    DeliveryDropped,
    Fact,
    InputRequested,
    InputResolved,
    RequestsWithdrawn,
)
from orchestrator.core.names import NEVER, Millis, RequestId
from orchestrator.core.snapshot import (
    MAX_DELIVERIES,
    MOST_OF_A_PRINCIPAL,
    Call,
    Candidate,
    Option,
    Principal,
    Request,
    RequestState,
    Snapshot,
    Turn,
    Usage,
)

APPROVE, CANCEL = Option("approve", "Approve"), Option("cancel", "Cancel")
CONTINUE, STOP = Option("continue", "Continue"), Option("stop", "Stop")
OPTIONS = {"tool-approval": (APPROVE, CANCEL), "session-limit": (CONTINUE, STOP)}
MAX_REQUESTS = 64
"""Settled requests that an open turn remembers, so that a second answer is known as one: fewer where many are open."""
MOST_OF_A_TURN = 56 * 1024
"""Bytes that a turn may have with the answers that wait for a policy's judgement: they and those who gave them are part of the snapshot."""
OF_A_CANDIDATE = 128
"""Bytes of one of them beside who gave it."""
MOST_OF_A_CANDIDATE = OF_A_CANDIDATE + MOST_OF_A_PRINCIPAL


def turn_of(snapshot: Snapshot) -> Turn:
    """The open turn."""
    assert snapshot.turn is not None, "a request's fact needs an open turn"
    return snapshot.turn


def open_requests(turn: Turn) -> tuple[Request, ...]:
    """What still waits for an answer, in the order in which it was asked."""
    return tuple(request for request in turn.requests if request.is_open)


def untold(turn: Turn) -> tuple[Request, ...]:
    """The batch whose end the stream does not say yet."""
    return tuple(request for request in turn.requests if not request.told)


def waits_for(turn: Turn, kind: str) -> bool:
    """Whether the turn is held by a request of this kind."""
    return any(request.kind == kind for request in open_requests(turn))


# What a delivery means --------------------------------------------------------------------------------------------------


def admits(request: Request, turn: Turn, by: Principal | None) -> bool:
    """Whether the built-in rule lets somebody answer: its requester, or whoever has its link. A policy is asked later."""
    if request.who != "requester" or turn.principal is None:
        return True
    return turn.principal.is_same(by) or (by is not None and by.type == "link")


def decide(request: Request, option: str, text: bool) -> Decision | None:
    """What an answer says, or None where it says nothing that the request understands."""
    match request.kind:
        case "tool-approval":
            states: dict[str, RequestState] = {"approve": "approved", "cancel": "denied"}
            return Decision(request.id, states.get(option, "invalid"), option)
        case "session-limit":
            known = option in ("continue", "stop")
            return Decision(request.id, "answered", option) if known else None
        case _:
            known = any(one.id == option for one in request.options)
            if known or (text and request.freeform and not option):
                return Decision(request.id, "answered", option if known else "")
            return Decision(request.id, "invalid", option)


def judge_answers(snapshot: Snapshot, head: Head, at: Millis) -> Fact:
    """Answers count for the open requests they name, if they came in after those, from somebody who may."""
    turn = snapshot.turn
    if turn is None:
        return DeliveryDropped(head.id, head.n, "not_open", at)
    known = {request.id: request for request in turn.requests}
    decisions: list[Decision] = []
    stale: list[RequestId] = []
    room = _room(turn) if any(map(_has_policy, turn.requests)) else 0
    for answer in head.envelope.answers:
        request = known.get(answer.request)
        if request is None or head.at_seq < request.seq:
            continue
        by = head.envelope.principal
        if not _takes(request, turn, head) or any(one.request == request.id for one in decisions):
            if _differs(request, answer):
                stale.append(request.id)
        elif admits(request, turn, by) and (decision := decide(request, answer.option, answer.text)) is not None:
            judged = not _has_policy(request)
            room -= 0 if judged else _size(by)
            if judged or room >= 0:
                decisions.append(replace(decision, judged=judged))
            else:
                stale.append(request.id)
    if not decisions and not stale:
        return DeliveryDropped(head.id, head.n, "not_open", at)
    return AnswersTaken(
        head.id, head.n, turn.id, turn.step, tuple(decisions), tuple(stale), head.envelope.principal, False, at
    )


def _differs(request: Request, answer: Answered) -> bool:
    return answer.option != request.option or (answer.text and request.kind == "question")


def _has_policy(request: Request) -> bool:
    return request.who == "policy" and request.kind == "tool-approval"


def _room(turn: Turn) -> int:
    """How many bytes of answers may still wait for a policy. For one there is always room."""
    if not any(request.candidates for request in turn.requests):
        return max(MOST_OF_A_TURN - len(codec.pack(turn)), MOST_OF_A_CANDIDATE)
    return MOST_OF_A_TURN - len(codec.pack(turn))


def _size(by: Principal | None) -> int:
    return OF_A_CANDIDATE + (len(codec.pack(by)) if by is not None else 0)


def _takes(request: Request, turn: Turn, head: Head) -> bool:
    """Whether a request still waits when this comes in: a time that is over, or a message that took it back, ends it a little later."""
    return request.is_open and not turn.withdrawn and not 0 < request.expires <= head.envelope.at


def judge_words(turn: Turn, head: Head, at: Millis) -> AnswersTaken | None:
    """A message answers the first open request if it says one of its options, or anything where anything may be said. One
    with files is more than an answer."""
    first, envelope = next(iter(open_requests(turn)), None), head.envelope
    if envelope.files or first is None or not _takes(first, turn, head) or turn.is_stopping:
        return None
    if head.at_seq < first.seq or not admits(first, turn, envelope.principal):
        return None
    option = _option(first, envelope)
    if not option and not (first.kind == "question" and first.freeform and envelope.size):
        return None
    decision = decide(first, option, not option)
    if decision is None:
        return None
    judged = not _has_policy(first)
    if not judged and len(turn.deliveries) + len(turn.joining) >= MAX_DELIVERIES:
        # The policy may refuse them one after the other, and each belongs to the turn: it takes in no more messages.
        return None
    fits = judged or _size(envelope.principal) <= _room(turn)
    decisions = (replace(decision, judged=judged),) if fits else ()
    stale = () if fits else (first.id,)
    return AnswersTaken(head.id, head.n, turn.id, turn.step, decisions, stale, envelope.principal, True, at)


def _option(request: Request, envelope: Envelope) -> str:
    if not envelope.words:
        return ""
    # Its label first: where people choose among numbers, they mean the number that they read.
    for names in (
        {option.label.strip().casefold(): option.id for option in reversed(request.options)},
        {option.id.casefold(): option.id for option in request.options},
        {str(number): option.id for number, option in enumerate(request.options, 1)},
    ):
        if envelope.words in names:
            return names[envelope.words]
    return ""


def may_withdraw(turn: Turn, head: Head) -> bool:
    """Whether a message of the turn's own person takes back what was asked: it must have come after that. A budget is not taken back."""
    waiting = open_requests(turn)
    return bool(waiting) and not waits_for(turn, "session-limit") and all(head.at_seq >= one.seq for one in waiting)


# What a fact changes ----------------------------------------------------------------------------------------------------


def _with(turn: Turn, changed: dict[RequestId, Request]) -> Turn:
    return replace(turn, requests=tuple(changed.get(request.id, request) for request in turn.requests))


def judged_calls(snapshot: Snapshot, fact: CallsJudged) -> Snapshot:
    """Some calls may run, for some a person is asked; those that must not run get their results beside this."""
    turn = turn_of(snapshot)
    says = {verdict.call: verdict.says for verdict in fact.verdicts}
    calls = tuple(
        replace(call, gate="ask" if says[call.id] == "ask" else "") if call.id in says else call for call in turn.calls
    )
    return replace(snapshot, turn=replace(turn, calls=calls))


def requested(snapshot: Snapshot, fact: InputRequested) -> Snapshot:
    """The turn is held."""
    turn = turn_of(snapshot)
    asked = {request.call for request in fact.requests}
    calls = tuple(
        replace(call, gate="open") if call.id in asked and call.gate == "ask" else call for call in turn.calls
    )
    # What they offered is asked no more; only what they ended with is.
    begin = max(len(turn.requests) - max(MAX_REQUESTS - len(fact.requests), 0), 0)
    kept = tuple(replace(request, options=()) for request in turn.requests[begin:])
    return replace(
        snapshot, turn=replace(turn, calls=calls, requests=(*kept, *fact.requests), withdrawn=False, over_budget="")
    )


def taken(snapshot: Snapshot, fact: AnswersTaken) -> Snapshot:
    """Requests have ended, or somebody has to say first whether they may end so."""
    turn = turn_of(snapshot)
    known = {request.id: request for request in turn.requests}
    changed = {}
    for decision in fact.decisions:
        request = known[decision.request]
        if decision.judged:
            changed[request.id] = _ended(request, decision.state, decision.option)
        else:
            candidate = Candidate(fact.delivery, decision.state, decision.option, fact.by)
            changed[request.id] = replace(request, candidates=(*request.candidates, candidate))
    deliveries = (*turn.deliveries, fact.delivery) if fact.words else turn.deliveries
    turn = replace(_with(turn, changed), deliveries=deliveries)
    if fact.words:
        # As when a message joins: a result that was there already did not know of it.
        turn = replace(turn, aside=turn.aside or fact.aside, output=turn.output or fact.output, delivered=False)
    return replace(snapshot, judged=max(snapshot.judged, fact.n), turn=turn)


def _ended(request: Request, state: RequestState, option: str = "") -> Request:
    return replace(request, state=state, option=option, candidates=())


def judged_candidate(snapshot: Snapshot, fact: CandidateJudged) -> Snapshot:
    """The answer counts, or the request goes on waiting for another."""
    turn = turn_of(snapshot)
    request = next(request for request in turn.requests if request.id == fact.request)
    candidate = next(one for one in request.candidates if one.id == fact.candidate)
    rest = tuple(one for one in request.candidates if one.id != fact.candidate)
    after = replace(request, candidates=rest) if fact.reason else _ended(request, candidate.state, candidate.option)
    return replace(snapshot, turn=_with(turn, {request.id: after}))


def withdrawn(snapshot: Snapshot, fact: RequestsWithdrawn) -> Snapshot:
    """Nobody has to answer any more."""
    turn = turn_of(snapshot)
    changed = {request.id: _ended(request, fact.state) for request in turn.requests if request.id in fact.requests}
    return replace(snapshot, turn=_with(turn, changed))


def resolved(snapshot: Snapshot, _fact: InputResolved) -> Snapshot:
    """The batch is over: what was approved may run, the rest has its results beside this."""
    turn = turn_of(snapshot)
    ended = {request.call: request for request in untold(turn)}
    approved = tuple(
        call.tool
        for call in turn.calls
        if call.id in ended and ended[call.id].state == "approved" and call.asks == "approval"
    )
    calls = tuple(
        replace(call, gate="approved", state="asked")
        if call.id in ended and ended[call.id].state == "approved"
        else call
        for call in turn.calls
    )
    limits = [request for request in untold(turn) if request.kind == "session-limit"]
    more = any(request.option == CONTINUE.id for request in limits)
    stops = turn.cancelling or any(request.option == STOP.id for request in limits)
    requests = tuple(replace(request, told=True) for request in turn.requests)
    known = tuple(dict.fromkeys((*snapshot.approved, *approved)))
    # A fresh budget of each size.
    spent = Usage() if more else turn.spent
    turn = replace(turn, calls=calls, requests=requests, withdrawn=False, cancelling=stops, spent=spent)
    granted = snapshot.usage if more else snapshot.granted
    return replace(snapshot, approved=known, granted=granted, turn=turn)


# What follows -----------------------------------------------------------------------------------------------------------


def to_ask(turn: Turn) -> tuple[Call, ...]:
    """Calls for which people are to be asked and have not been."""
    return tuple(call for call in turn.calls if call.gate == "ask" and call.state != "settled")


def next_expiry(turn: Turn) -> Millis:
    """When the first open request ends by itself (ms), 0 for never."""
    return min((request.expires for request in open_requests(turn) if request.expires), default=NEVER)


def expired(turn: Turn, at: Millis) -> tuple[RequestId, ...]:
    """Open requests whose time is over, and for which no answer came in time that a policy has to judge."""
    late = (request for request in open_requests(turn) if request.expires and request.expires <= at)
    return tuple(request.id for request in late if not request.candidates)


def refused_calls(turn: Turn) -> Iterator[tuple[Call, Request]]:
    """Calls whose request has ended and which will not run: their result follows from how it ended."""
    last = {request.call: request for request in turn.requests}
    for call in turn.calls:
        if call.state != "settled" and call.gate == "open" and call.id in last and not last[call.id].is_open:
            yield call, last[call.id]
