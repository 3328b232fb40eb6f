"""The effects "judge these calls" and "judge this candidate": the policies of tools, which are functions of the user's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from orchestrator.approval import Approval, Deny, GatedCall, Responder, verdict_of
from orchestrator.core import holds
from orchestrator.core.effect import JudgeCalls, JudgeCandidate
from orchestrator.core.event import Bodies, Outcome
from orchestrator.core.fact import CallsJudged, CallStatus, CandidateJudged, ToolReturned, Verdict
from orchestrator.core.names import CallId
from orchestrator.core.snapshot import Call
from orchestrator.notes import DENIED
from orchestrator.perform import Judged
from orchestrator.turn.consulting import TIMED_OUT, ask_all
from orchestrator.turn.hands import Hands

log = logging.getLogger(__name__)

POLICY_SECONDS = 60.0
"""How long a policy may take."""
UNAVAILABLE = "APPROVAL_UNAVAILABLE"


def judge_calls(hands: Hands, effect: JudgeCalls) -> None:
    """Ask the policies of the calls' tools, all at once. What they said is given to `hands`; nothing, if it was interrupted.

    A policy that raises, takes too long or says what nobody understands has a person asked.
    """
    tools = {tool.name: tool for tool in hands.agent.tools}
    asked: dict[str, Any] = {}
    says: dict[CallId, str | Deny] = {}
    for call in effect.calls:
        approval = tools[call.tool].approval if call.tool in tools else None
        if call.asks == "question":
            says[call.id] = "ask"
        elif approval is None or isinstance(approval.policy, str):
            says[call.id] = "run" if approval is None or approval.policy == "never" else "ask"
        else:
            asked[call.id] = approval
    given = {name: (made.policy, gated(hands, _named(effect.calls, name))) for name, made in asked.items()}
    heard = ask_all(hands, given, POLICY_SECONDS)
    if heard is None:
        return
    for name, judged in heard.items():
        says[CallId(name)] = _verdict(hands, name, judged)
    turn, at = hands.turn, hands.process.clock.now()
    verdicts = tuple(
        Verdict(name, "run" if said == "run" else "ask" if said == "ask" and hands.may_ask else "deny")
        for name, said in says.items()
    )
    hands.give(CallsJudged(turn.id, turn.step, verdicts, at))
    for name, said in says.items():
        if isinstance(said, Deny):
            fact = ToolReturned(turn.id, turn.step, name, "rejected", at)
            hands.give(fact, Bodies(outcomes={name: denied(said.reason)}))
    if not hands.may_ask:
        for call in effect.calls:
            if says[call.id] == "ask":
                nobody(hands, call)


def _verdict(hands: Hands, name: str, judged: Judged) -> str | Deny:
    try:
        if not judged.broken:
            return verdict_of(judged.said)
        problem = judged.broken
    except ValueError as wrong:
        problem = str(wrong)
    log.warning("%s %s: a person decides, because the policy failed: %s", hands.owned.session, name, problem)
    return "ask"


def judge_again(hands: Hands, calls: Sequence[Call]) -> bool:
    """Ask the policies of approved calls once more before these begin: what a person has let through may be forbidden by now. Those
    that must not run get their results. One that fails would have a person asked, and one was. False if it was interrupted."""
    tools = {tool.name: tool for tool in hands.agent.tools}
    policies: dict[str, tuple[Any, object]] = {
        call.id: (approval.policy, gated(hands, call))
        for call in calls
        if call.tool in tools and (approval := tools[call.tool].approval) is not None and callable(approval.policy)
    }
    heard = ask_all(hands, policies, POLICY_SECONDS) if policies else {}
    if heard is None:
        return False
    turn = hands.turn
    for name, judged in heard.items():
        if isinstance(said := _verdict(hands, name, judged), Deny):
            fact = ToolReturned(turn.id, turn.step, CallId(name), "rejected", hands.process.clock.now())
            hands.give(fact, Bodies(outcomes={CallId(name): denied(said.reason)}))
    return True


def nobody(hands: Hands, call: Call) -> None:
    """Give a call that a person would have to decide its result where nobody can be asked."""
    turn = hands.turn
    status: CallStatus = "completed"
    outcome = Outcome(status, {"status": "unavailable"})
    if call.asks != "question":
        text = "This call needs a person's approval, and nobody can be asked in this session."
        status, told = "rejected", {"code": UNAVAILABLE, "message": text}
        outcome = Outcome(status, told, told)
    fact = ToolReturned(turn.id, turn.step, call.id, status, hands.process.clock.now())
    hands.give(fact, Bodies(outcomes={call.id: outcome}))


def denied(reason: str) -> Outcome:
    """The result of a call that a policy does not let run."""
    text = f"This call is not allowed: {reason}" if reason else "This call is not allowed."
    return Outcome("rejected", {"code": DENIED, "message": text}, {"code": DENIED, "message": text})


def judge_candidate(hands: Hands, effect: JudgeCandidate) -> None:
    """Ask a tool's policy whether who has answered may. One that raises or takes too long says no, and the request stays open."""
    request, candidate = effect.request, effect.candidate
    call = next((call for call in hands.turn.calls if call.id == request.call), None)
    tool = next((tool for tool in hands.agent.tools if call is not None and tool.name == call.tool), None)
    approval = tool.approval if tool is not None else None
    reason: Literal["", "rejected", "failed", "timed-out"] = "rejected"
    if call is not None and approval is not None and approval.response is not None:
        note = hands.notes([request.id]).get(request.id, {})
        text = next((one["text"] for one in note.get("answers", ()) if one["delivery"] == candidate.id), "")
        decision: Literal["approve", "cancel"] = "approve" if candidate.state == "approved" else "cancel"
        given = Responder(gated(hands, call), request.id, candidate.by, decision, text)
        heard = ask_all(hands, {request.id: (approval.response, given)}, POLICY_SECONDS)
        if heard is None:
            return
        reason = _reason(hands, heard[request.id])
    elif holds.admits(replace(request, who="requester"), hands.turn, candidate.by):
        # A deploy has removed the policy, or the tool: the built-in rule is left.
        reason = ""
    turn = hands.turn
    hands.give(CandidateJudged(turn.id, turn.step, request.id, candidate.id, reason, hands.process.clock.now()))


def _reason(hands: Hands, judged: Judged) -> Literal["", "rejected", "failed", "timed-out"]:
    if judged.broken:
        log.warning("%s %s: the response policy failed: %s", hands.owned.session, judged.about, judged.broken)
        return "timed-out" if judged.broken == TIMED_OUT else "failed"
    return "" if judged.said is True else "rejected"


def _named(calls: tuple[Call, ...], name: str) -> Call:
    return next(call for call in calls if call.id == name)


def gated(hands: Hands, call: Call) -> GatedCall:
    """A call as policies and prompts see it."""
    found = hands.inputs()[call.id]
    return GatedCall(
        session=hands.owned.session,
        turn=hands.turn.id,
        call=call.id,
        tool=call.tool,
        input=found if isinstance(found, Mapping) else {},
        requester=hands.turn.principal,
        approved=frozenset(hands.owned.snapshot.approved),
    )


def first_gate(approval: Approval | None, approved: tuple[str, ...], tool: str) -> Literal["", "policy", "ask"]:
    """What stands before a call when the model has just asked for it."""
    match approval.fixed if approval is not None else "never":
        case "never":
            return ""
        case "once":
            return "" if tool in approved else "ask"
        case "always":
            return "ask"
        case _:
            return "policy"
