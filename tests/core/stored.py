"""Values of every kind that releases have written: one file of bytes in `golden/` each, which is never written anew."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from orchestrator.core.delivery import Answered, Aside, Body, Envelope, File, Part
from orchestrator.core.event import Outcome
from orchestrator.core.fact import (
    AnswersTaken,
    BudgetReached,
    CallsJudged,
    CallStarted,
    CandidateJudged,
    Compacted,
    Decision,
    InputRequested,
    InputResolved,
    MessagesJoined,
    MessageSteers,
    ModelAnswered,
    ModelTryFailed,
    RequestsWithdrawn,
    ResultDelivered,
    ResultRefused,
    ToolReturned,
    TurnStarted,
    Verdict,
)
from orchestrator.core.names import CallId, DeliveryId, Millis, RequestId, TurnId
from orchestrator.core.snapshot import (
    EMPTY,
    Call,
    Candidate,
    Compacting,
    Option,
    Position,
    Principal,
    Request,
    Snapshot,
    Turn,
    Usage,
)

SHOP = Principal("api-key", "service", "shop", "issuer", {"tenant": "north"})
FULL = Snapshot(
    next_turn=3,
    judged=17,
    waiting=2,
    started=True,
    pending=("clear",),
    usage=Usage(1200, 340, 50, 6, 1, extra={"cost": "0.10"}),
    turn=Turn(
        TurnId("turn_2"), 2, (DeliveryId("dlv_01J0000000000000000000000A"),), SHOP, "support", Millis(1772600000000),
        step=1, step_open=True, phase="tools",
        calls=(
            Call(CallId("call_2_1_0"), "toolu_1", "find_order", "9f86d081", state="settled"),
            Call(CallId("call_2_1_1"), "toolu_2", "charge", "60303ae2", on_interrupt="report", state="started"),
            Call(CallId("call_2_1_2"), "toolu_3", "nonsense", "fd61a03a", refused=True, extra={"later": 1}),
        ),
        tries=1, retry_at=Millis(1772600005000), finish="tool-calls", usage=Usage(100, 20), cancelling=True,
        failed="MODEL_CALL_FAILED", extra={"hold": {"on": "input"}},
    ),
    marks=(0, 12, 40),
    at=Position(44, 90, 1, 12),
    # The second was a field once.
    extra={"mood": "sunny", "last_turn": ["dlv_01J00000000000000000000009"]},
)  # fmt: skip
STEERED = Snapshot(
    next_turn=3,
    judged=19,
    waiting=3,
    started=True,
    pending=("clear", "compact"),
    turn=Turn(
        TurnId("turn_2"), 2, (DeliveryId("dlv_A"), DeliveryId("dlv_B")), SHOP, "support", Millis(1772600000000),
        joining=(DeliveryId("dlv_C"),), joining_bytes=40, followed=True, compacted=4,
    ),
    compacting=Compacting(False, True, 2, Millis(1772600005000), {"later": True}),
    ending="reset",
    context=9_000,
    at=Position(44, 90, 1, 12, 3_000),
)  # fmt: skip
STORED: dict[str, object] = {
    "snapshot-1-empty": EMPTY,
    "snapshot-1-full": FULL,
    "snapshot-1-steered": STEERED,
    "fact-1-messages-joined": MessagesJoined(TurnId("turn_2"), 1, (DeliveryId("dlv_A"), DeliveryId("dlv_B")), Millis(1)),
    "fact-1-compacted": Compacted("scripted", 2, Usage(100, 20), Millis(1)),
    "fact-1-turn-started": TurnStarted(
        TurnId("turn_2"), 2, (DeliveryId("dlv_A"),), 17, True, SHOP, "support", 40, Millis(1)
    ),
    "fact-1-model-answered": ModelAnswered(
        TurnId("turn_2"), 1, "tool-calls", Usage(100, 20), (Call(CallId("call_2_1_0"), "t", "find_order", "9f"),), Millis(2)
    ),
    "envelope-1": Envelope("message", SHOP, "queue", "turn_1", "00-ab-cd-01", Millis(3), extra={"new": True}),
    "body-1": Body((Part("text", "Where is my parcel?"), Part("text", "Größe 42", extra={"lang": "de"}))),
    "outcome-1": Outcome("failed", {"code": "X", "message": "no"}, {"code": "X", "message": "no", "name": "KeyError"}),
    "value-1": {
        "when": datetime(2026, 3, 1, 12, 30, 15, 250, tzinfo=UTC), "day": date(2026, 3, 1), "hour": time(7, 45),
        "for": timedelta(days=-1, microseconds=5), "price": Decimal("19.90"), "id": UUID(int=1), "raw": b"\x00\xff",
        "tags": {"a"}, "fixed": frozenset({1}), "pair": (1, ("two", None)), "many": [1.5, True, None, 2**63],
    },
}  # fmt: skip

TURN = TurnId("turn_2")
REQUEST = Request(
    RequestId("req_1"),
    "tool-approval",
    CallId("call_2_1_0"),
    41,
    (Option("approve", "Approve"), Option("cancel", "Cancel")),
    False,
    "policy",
    Millis(1772600900000),
    candidates=(Candidate(DeliveryId("dlv_C"), "approved", "approve", SHOP),),
)
QUESTION = Request(
    RequestId("req_2"),
    "question",
    CallId("call_2_1_1"),
    41,
    (Option("1", "red"),),
    True,
    state="answered",
    option="1",
    told=True,
)
ASKING = Snapshot(
    next_turn=3,
    judged=21,
    started=True,
    usage=Usage(1200, 340, micro_usd=5_000, answers=4),
    granted=Usage(1000, 300, micro_usd=4_000, answers=2),
    approved=("refund",),
    turn=Turn(
        TURN, 2, (DeliveryId("dlv_A"),), SHOP, "support", Millis(1772600000000), step=2, finish="tool-calls",
        calls=(
            Call(CallId("call_2_1_0"), "t1", "refund", "9f", on_interrupt="ask", asks="approval", gate="open"),
            Call(CallId("call_2_1_1"), "t2", "ask_question", "60", asks="question", gate="open", state="settled"),
        ),
        requests=(QUESTION, REQUEST), withdrawn=True, overflowed=1, spent=Usage(100, 20, answers=1),
        over_budget="SESSION_STEP_LIMIT_REACHED", aside=True, output=True, misfits=2, delivered=True,
    ),
    at=Position(60, 120, 0, 14, 900),
)  # fmt: skip
STORED |= {
    "snapshot-1-asking": ASKING,
    "fact-1-call-started": CallStarted(TURN, CallId("call_2_1_0"), Millis(5)),
    "fact-1-calls-judged": CallsJudged(TURN, 1, (Verdict(CallId("call_2_1_0"), "ask"), Verdict(CallId("c"), "deny")), Millis(5)),
    "fact-1-budget-reached": BudgetReached(TURN, 2, "SESSION_TOKEN_LIMIT_REACHED", Millis(5)),
    "fact-1-input-requested": InputRequested(TURN, 2, (REQUEST,), Millis(5)),
    "fact-1-answers-taken": AnswersTaken(
        DeliveryId("dlv_C"), 22, TURN, 2, (Decision(RequestId("req_1"), "approved", "approve", False),), (RequestId("req_2"),),
        SHOP, True, Millis(6), True, True,
    ),
    "fact-1-candidate-judged": CandidateJudged(TURN, 2, RequestId("req_1"), DeliveryId("dlv_C"), "rejected", Millis(7)),
    "fact-1-requests-withdrawn": RequestsWithdrawn(TURN, (RequestId("req_1"),), "expired", Millis(8)),
    "fact-1-input-resolved": InputResolved(TURN, 2, Millis(9)),
    "fact-1-result-delivered": ResultDelivered(TURN, 3, Millis(9)),
    "fact-1-result-refused": ResultRefused(TURN, 3, Millis(9)),
    "fact-1-tool-returned": ToolReturned(TURN, 2, CallId("call_2_1_0"), "rejected", Millis(9)),
    "fact-1-model-try-failed": ModelTryFailed(TURN, 2, "MODEL_CALL_FAILED", Millis(30), Millis(10), "openai-chat:other"),
    "fact-1-message-steers": MessageSteers(DeliveryId("dlv_D"), 23, 40, TURN, 2, "tools", Millis(11), True),
    "envelope-1-answers": Envelope(
        "answers", SHOP, at=Millis(3), size=8, answers=(Answered(RequestId("req_1"), "approve", True),)
    ),
    "envelope-1-words": Envelope("message", None, "steer", at=Millis(3), size=7, words="approve", files=2),
    "body-1-files": Body(
        (Part("text", "Look:"), Part("file", "[file: a.png (image/png)]", File("image/png", "a.png", 7, "", "b1", "desk"))),
        ("The cart is empty.",), '{"type":"object"}',
    ),
    "aside-1": Aside(("One.", "Two."), '{"type":"string"}'),
}  # fmt: skip
