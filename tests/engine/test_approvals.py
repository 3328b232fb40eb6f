"""Calls that a person must approve: asked once, answered once, run at most once, whatever breaks."""

from datetime import timedelta
from typing import Any

import pytest

import orchestrator.ids as ids
from orchestrator.approval import Approval, Deny, GatedCall, Responder, always, once
from orchestrator.core.delivery import Body, Part, Response
from orchestrator.core.names import RequestId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import LinkUnknown, LinkUsed
from orchestrator.models.scripted import Conversation, Reply, answers, asks, delivers
from orchestrator.tool import ToolContext, ask_question, tool
from tests.engine.test_controls import DAY_MS, traces
from tests.engine.test_crash_table import WAYS
from tests.engine.test_steering import ANN, BEN
from tests.worlds import Fault, How, World, answered, results, said

RAN = "turn_0/call_0_0_0"


@tool(approval=always(prompt="Refund {cents} cents?"))
def refund(ctx: ToolContext, cents: int) -> str:
    """Pay back."""
    return f"{cents} paid to {ctx.session.auth.id if ctx.session.auth else 'nobody'}"


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Look somewhere."""
    return f"nothing in the {at}"


def pays(talk: Conversation) -> Reply:
    """Wants to pay back and looks somewhere meanwhile; then says what it was told."""
    if talk.turn == "turn_0" and talk.step == 0:
        return asks("refund", cents=500) & asks("look", at="shelf")
    return answers(f"After {talk.message}.")


def asked(world: World, session: SessionId) -> list[RequestId]:
    """The requests that the stream shows."""
    found = [data["requests"] for kind, data in world.shown(session) if kind == "input.requested"]
    return [RequestId(request["requestId"]) for batch in found for request in batch]


def waiting(world: World) -> SessionId:
    """A session that waits for an approval."""
    world.app(pays, [refund, look])
    session = world.create("Pay me", who=ANN)
    assert world.run(session)[-1] in ("parked", "idle")
    return session


def answer(world: World, session: SessionId, option: str, *, who: Principal | None = ANN, text: str = "") -> None:
    [request] = asked(world, session)
    world._insist(lambda: world.worker.answer(session, [Response(request, option, text)], principal=who))


def types(world: World, session: SessionId) -> list[str]:
    return world.types(session)


OPENING = [
    *("session.started", "turn.started", "message.received", "step.started", "actions.requested", "action.result"),
    *("step.completed", "input.requested", "turn.waiting"),
]


def test_a_call_that_needs_approval_waits_and_the_others_run(world: World) -> None:
    session = waiting(world)
    assert types(world, session) == OPENING
    assert [effect.what for effect in world.effects if effect.kind == "tool"] == ["look"]
    [request] = [data["requests"][0] for kind, data in world.shown(session) if kind == "input.requested"]
    assert request == {
        "requestId": request["requestId"],
        "kind": "tool-approval",
        "prompt": "Refund 500 cents?",
        "action": {
            "kind": "tool-call",
            "callId": "call_0_0_0",
            "toolName": "refund",
            "input": {"cents": 500},
        },
        "display": "confirmation",
        "allowFreeform": False,
        "options": [{"id": "approve", "label": "Approve"}, {"id": "cancel", "label": "Cancel"}],
    }
    assert world.fields(session)["token"] == ""
    assert world.worker.view(session).status == "waiting_for_input"
    world.check(session)


def test_an_approved_call_runs_as_who_asked_for_it_and_the_turn_goes_on(world: World) -> None:
    session = waiting(world)
    answer(world, session, "approve")
    world.run(session)
    assert types(world, session)[len(OPENING) :] == [
        *("approval.settled", "input.resolved", "step.started", "action.result", "message.completed"),
        *("step.completed", "turn.completed", "session.waiting"),
    ]
    shown = dict(world.shown(session)[len(OPENING) :])
    assert shown["action.result"]["stepIndex"] == 1
    assert shown["input.resolved"]["resolutions"][0]["outcome"] == "approved"
    assert world.history(session)[1:3] == [
        answered("", ("refund", {"cents": 500}), ("look", {"at": "shelf"})),
        results(("refund", "500 paid to ann"), ("look", "nothing in the shelf")),
    ]
    world.check(session)


def test_a_refused_call_never_runs_and_the_model_reads_why(world: World) -> None:
    session = waiting(world)
    answer(world, session, "cancel", text="Too much.")
    world.run(session)
    assert types(world, session)[len(OPENING) :] == [
        *("approval.settled", "input.resolved", "action.result", "step.started", "message.completed"),
        *("step.completed", "turn.completed", "session.waiting"),
    ]
    shown = dict(world.shown(session)[len(OPENING) :])
    assert shown["action.result"]["status"] == "rejected"
    assert shown["action.result"]["stepIndex"] == 0
    assert shown["action.result"]["error"]["code"] == "TOOL_EXECUTION_DENIED"
    assert shown["input.resolved"]["resolutions"][0]["response"]["text"] == "Too much."
    assert "Too much." in str(world.history(session)[2])
    assert not world.starts("refund")
    world.check(session)


def test_only_who_caused_the_turn_may_answer(world: World) -> None:
    session = waiting(world)
    answer(world, session, "approve", who=BEN)
    world.run(session)
    assert types(world, session) == OPENING
    answer(world, session, "approve")
    world.run(session)
    assert len(world.starts("refund")) == 1
    world.check(session)


def test_a_message_instead_of_an_answer_withdraws_what_was_asked_and_joins(world: World) -> None:
    session = waiting(world)
    world.say(session, "Forget it", who=ANN)
    world.run(session)
    assert types(world, session)[len(OPENING) :] == [
        *("input.resolved", "action.result", "message.received", "step.started", "message.completed"),
        *("step.completed", "turn.completed", "session.waiting"),
    ]
    shown = dict(world.shown(session)[len(OPENING) :])
    assert shown["input.resolved"]["resolutions"][0]["outcome"] == "ignored"
    assert not world.starts("refund")
    world.check(session)


@pytest.mark.parametrize("text", ["approve", " APPROVE ", "1"])
def test_a_message_that_says_an_option_is_an_answer(world: World, text: str) -> None:
    session = waiting(world)
    world.say(session, text, who=ANN)
    world.run(session)
    assert len(world.starts("refund")) == 1
    assert types(world, session).count("message.received") == 1
    world.check(session)


def test_a_cancel_withdraws_what_was_asked(world: World) -> None:
    session = waiting(world)
    world.cancel(session)
    world.run(session)
    assert types(world, session)[len(OPENING) :] == ["input.resolved", "turn.cancelled", "session.waiting"]
    assert not world.starts("refund")
    answer(world, session, "approve")
    world.run(session)
    assert not world.starts("refund")
    world.check(session)


ROAD = ("create", "own", "turn", "answer", "look", "ask", "answers", "own", "resolved", "started", "ran", "answer")


@pytest.mark.parametrize("at", range(15))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_an_approval_that_breaks_anywhere_runs_its_call_at_most_once(
    world: World, at: int, how: How, late_by: int | None
) -> None:
    world.traffic.fault = Fault(at, how, late_by)
    session = waiting(world)
    requests = asked(world, session)
    answer(world, session, "approve")
    world.run(session)
    for _ in range(3):
        again = [name for name in asked(world, session) if name not in requests]
        if again:
            # It may have run: people are asked again.
            requests += again
            reply(world, session, again[0], "approve")
    assert len(world.starts("refund")) <= len(requests)
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    assert len([row for row in world.history(session) if row[0] == "results"]) == 1
    world.check(session)


def test_a_question_is_answered_by_any_text(world: World) -> None:
    def curious(talk: Conversation) -> Reply:
        return asks("ask_question", question="Which colour?") if talk.step == 0 else answers("Fine.")

    world.app(curious, [ask_question])
    session = world.create("Paint it", who=ANN)
    world.run(session)
    assert types(world, session)[-2:] == ["input.requested", "turn.waiting"]
    world.say(session, "Green, please", who=ANN)
    world.run(session)
    row: Any = world.history(session)[2]
    assert row == results(("ask_question", {"status": "answered", "answer": "Green, please"}))
    assert world.history(session)[0] == said("Paint it")
    world.check(session)


def test_other_words_for_a_question_whose_turn_is_over_are_a_message_and_the_same_are_nothing(world: World) -> None:
    session = wondering(world)
    for words in ("Green", "Green", "No, red", "Blue"):
        answer(world, session, "", text=words)
        world.run(session)
    assert [data["message"] for kind, data in world.shown(session) if kind == "message.received"] == [
        "Paint it",
        "No, red",
    ]
    world.check(session)


def curious(talk: Conversation) -> Reply:
    """Asks a question in the first turn."""
    first = (talk.turn, talk.step) == ("turn_0", 0)
    return asks("ask_question", question="Which colour?") if first else answers(f"After {talk.message}.")


def wondering(world: World) -> SessionId:
    """A session that waits for an answer to a question."""
    world.app(curious, [ask_question])
    session = world.create("Paint it", who=ANN)
    assert world.run(session)[-1] in ("parked", "idle")
    return session


# Several things that come in before anybody looks --------------------------------------------------------------------------


def test_words_behind_a_cancel_are_no_answer_and_begin_a_turn(world: World) -> None:
    session = wondering(world)
    world.cancel(session)
    world.say(session, "Do the garden instead", who=ANN)
    world.run(session)
    heard = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert heard == ["Paint it", "Do the garden instead"]
    assert [kind for kind in types(world, session) if kind in ("turn.cancelled", "turn.completed")] == [
        *("turn.cancelled", "turn.completed"),
    ]
    world.check(session)


def test_an_approval_behind_a_cancel_gives_no_leave(world: World) -> None:
    @tool(approval=once())
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        return "paid"

    world.app(lambda talk: asks("pay") if (talk.turn, talk.step) == ("turn_0", 0) else answers("Well."), [pay])
    session = world.create("Pay", who=ANN)
    world.run(session)
    world.cancel(session)
    answer(world, session, "approve")
    world.run(session)
    assert world.snapshot(session).approved == ()
    assert world.snapshot(session).waiting == 0
    assert not world.starts("pay")
    heard = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert heard == ["Pay", "Approve"], "it came when the turn was over: it is a message"
    world.check(session)


def test_an_approval_behind_a_message_that_took_the_request_back_gives_no_leave(world: World) -> None:
    session = waiting(world)
    world.say(session, "Wait, no", who=ANN)
    answer(world, session, "approve")
    world.run(session)
    assert not world.starts("refund")
    assert [note["state"] for note in world.worker.requests(session)] == ["ignored"]
    world.check(session)


def test_an_approval_after_the_time_of_its_request_gives_no_leave_though_nobody_looked_before(world: World) -> None:
    session = batch(world, expires=timedelta(hours=1))
    world.skip(3_600_001)
    world.worker.clock.look()
    both = [Response(request, "approve") for request in asked(world, session)]
    world._insist(lambda: world.worker.answer(session, both, principal=ANN))
    world.run(session)
    assert not world.starts("pay")
    assert [note["state"] for note in world.worker.requests(session)] == ["expired", "expired"]
    world.check(session)


def test_an_answer_in_time_counts_though_its_policy_is_asked_later(world: World) -> None:
    session = batch(world, expires=timedelta(hours=1), response=lambda given: True)
    both = [Response(request, "approve") for request in asked(world, session)]
    world._insist(lambda: world.worker.answer(session, both, principal=BEN))
    world.skip(3_600_001)
    world.run(session)
    assert len(world.starts("pay")) == 2
    world.check(session)


def test_answers_to_an_old_request_and_to_an_open_one_at_once_reach_the_open_one(world: World) -> None:
    @tool(approval=always())
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        return "paid"

    world.app(lambda talk: asks("pay") if talk.step == 0 else answers("Well."), [pay])
    session = world.create("Pay", who=ANN)
    world.run(session)
    answer(world, session, "cancel")
    world.run(session)
    world.say(session, "Again", who=ANN)
    world.run(session)
    both = [Response(request, "approve") for request in asked(world, session)]
    assert len(both) == 2
    world._insist(lambda: world.worker.answer(session, both, principal=ANN))
    world.run(session)
    assert len(world.starts("pay")) == 1
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_what_comes_beside_the_words_of_an_answer_is_for_its_turn(world: World) -> None:
    def script(talk: Conversation) -> Reply:
        return (
            asks("ask_question", question="Which colour?") if talk.step == 0 else delivers([talk.results, talk.context])
        )

    world.app(script, [ask_question])
    session = world.create("Paint it", who=ANN, context="It rains.")
    world.run(session)
    world.say(session, "Green", who=ANN, context="It is noon.", output={"type": "array"})
    world.run(session)
    [told] = [data["result"] for kind, data in world.shown(session) if kind == "result.completed"]
    assert told[1] == ["It rains.", "It is noon."]
    world.check(session)


def test_a_prompt_that_makes_no_text_is_replaced_by_a_plain_one(world: World) -> None:
    wrong: Any = lambda call: 5  # noqa: E731

    @tool(approval=always(prompt=wrong))
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        return "paid"

    world.app(lambda talk: asks("pay"), [pay])
    session = world.create("Pay", who=ANN)
    world.run(session)
    [request] = [data["requests"][0] for kind, data in world.shown(session) if kind == "input.requested"]
    assert request["prompt"] == "Run pay?"
    world.check(session)


# Who may answer, and when -------------------------------------------------------------------------------------------------


def batch(world: World, **approval: Any) -> SessionId:
    """A session that waits for two approvals of one answer."""

    @tool(approval=always(prompt="Pay {cents}?", **approval))
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return f"{cents} paid"

    def script(talk: Conversation) -> Reply:
        if talk.turn == "turn_0" and talk.step == 0:
            return asks("pay", cents=1) & asks("pay", cents=2)
        return answers(f"After {talk.message}.")

    world.app(script, [pay])
    session = world.create("Pay", who=ANN)
    assert world.run(session)[-1] in ("parked", "idle")
    return session


def reply(world: World, session: SessionId, request: RequestId, option: str, who: Principal | None = ANN) -> None:
    world._insist(lambda: world.worker.answer(session, [Response(request, option)], principal=who))
    world.run(session)


def test_no_call_of_a_batch_runs_before_all_are_answered(world: World) -> None:
    session = batch(world)
    one, two = asked(world, session)
    reply(world, session, one, "approve")
    assert not world.starts("pay")
    assert types(world, session)[-2:] == ["approval.settled", "turn.waiting"]
    assert world.worker.view(session).status == "waiting_for_input"
    world.check(session)
    reply(world, session, two, "cancel")
    assert [effect.arguments for effect in world.starts("pay")] == ["{'cents': 1}"]
    resolved = [data["resolutions"] for kind, data in world.shown(session) if kind == "input.resolved"]
    assert [[one["outcome"] for one in batch] for batch in resolved] == [["approved", "denied"]]
    assert [effect.what for effect in world.effects].count("pay") == 1
    world.check(session)


def test_answers_survive_a_restart_of_everything_between_them(world: World) -> None:
    session = batch(world)
    one, two = asked(world, session)
    reply(world, session, one, "approve")
    world.kill(world.worker)
    reply(world, session, two, "approve")
    assert len(world.starts("pay")) == 2
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_a_second_answer_changes_nothing_and_is_called_stale(world: World) -> None:
    session = batch(world)
    one, two = asked(world, session)
    reply(world, session, one, "approve")
    reply(world, session, one, "approve")
    before = types(world, session)
    reply(world, session, one, "cancel")
    assert types(world, session)[len(before) :] == ["approval.candidate", "turn.waiting"]
    reply(world, session, two, "approve")
    assert len(world.starts("pay")) == 2
    world.check(session)


def test_another_answer_when_the_turn_is_over_is_a_message_once_and_authorises_nothing(world: World) -> None:
    session = waiting(world)
    answer(world, session, "cancel")
    world.run(session)
    for _ in range(3):
        answer(world, session, "approve")
        world.run(session)
    heard = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert heard == ["Pay me", "Approve"]
    assert not world.starts("refund")
    world.check(session)


def test_the_same_answer_when_the_turn_is_over_is_nothing(world: World) -> None:
    session = waiting(world)
    answer(world, session, "approve")
    world.run(session)
    before = types(world, session)
    answer(world, session, "approve")
    world.run(session)
    assert types(world, session) == before
    assert len(world.starts("refund")) == 1
    world.check(session)


def test_what_was_said_before_the_request_neither_answers_nor_withdraws_it(world: World) -> None:
    world.app(pays, [refund, look])
    session = world.create("Pay me", who=ANN)

    def before(place: int, verb: str) -> None:
        if verb == "commit" and world.starts("look") and not world.accepted.get(session, [])[1:]:
            world.say(session, "approve", who=ANN, policy="queue")

    world.traffic.before = before
    world.run(session)
    assert types(world, session)[-2:] == ["input.requested", "turn.waiting"]
    assert not world.starts("refund")
    answer(world, session, "approve")
    world.run(session)
    assert len(world.starts("refund")) == 1
    heard = [data["message"] for kind, data in world.shown(session) if kind == "message.received"]
    assert heard == ["Pay me", "approve"]
    world.check(session)


def test_others_wait_until_the_turn_is_over(world: World) -> None:
    session = waiting(world)
    world.say(session, "approve", who=BEN)
    world.say(session, "hello", who=BEN)
    world.run(session)
    assert types(world, session) == OPENING
    answer(world, session, "approve")
    world.run(session)
    assert types(world, session).count("turn.started") == 2
    world.check(session)


def test_a_request_that_nobody_answers_in_time_is_refused(world: World) -> None:
    session = batch(world, expires=timedelta(hours=1))
    assert world.run(session)[-1] == "idle"
    world.skip(3_600_001)
    world.run(session)
    world.run(session)
    assert not world.starts("pay")
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    notes = world.worker.requests(session)
    assert [note["state"] for note in notes] == ["expired", "expired"]
    assert "in time" in str(world.history(session)[2])
    world.check(session)


@pytest.mark.parametrize("said", ["allows", "refuses", "raises"])
def test_a_response_policy_says_who_may_answer(world: World, said: str) -> None:
    asked_about: list[tuple[str, str]] = []

    async def may(given: Responder) -> bool:
        asked_about.append((given.responder.id if given.responder else "", given.decision))
        if said == "raises":
            raise RuntimeError("no directory")
        return said == "allows"

    session = batch(world, response=may)
    one, _ = asked(world, session)
    reply(world, session, one, "approve", who=BEN)
    assert asked_about == [("ben", "approve")]
    told = [(kind, data.get("outcome")) for kind, data in world.shown(session) if kind.startswith("approval.")]
    ends = {"allows": ("approval.settled", "approved"), "refuses": ("approval.candidate", "rejected")}
    assert told == [("approval.candidate", "pending"), ends.get(said, ("approval.candidate", "failed"))]
    assert types(world, session)[-1] == "turn.waiting"
    assert not world.starts("pay")
    world.check(session)


@pytest.mark.parametrize(("says", "runs", "waits"), [("run", 1, 0), ("ask", 0, 1), ("deny", 0, 0), ("raises", 0, 1)])
def test_a_policy_function_decides_about_each_call(world: World, says: str, runs: int, waits: int) -> None:
    def policy(call: GatedCall) -> Any:
        assert call.input == {"cents": 7}
        assert call.requester == ANN
        if says == "raises":
            raise RuntimeError("no rules")
        return Deny("Not on Sundays.") if says == "deny" else says

    @tool(approval=Approval(policy))
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return "paid"

    world.app(lambda talk: asks("pay", cents=7) if talk.step == 0 else answers("Well."), [pay])
    session = world.create("Pay", who=ANN)
    world.run(session)
    assert len(world.starts("pay")) == runs
    assert len(asked(world, session)) == waits
    if says == "deny":
        assert "Not on Sundays." in str(world.history(session)[2])
    world.check(session)


@pytest.mark.parametrize(
    ("then", "runs"),
    [("ask", True), ("run", True), (Deny("Ann left the company."), False), (RuntimeError("down"), True)],
)
def test_what_a_person_has_let_through_is_still_a_matter_of_the_policy(world: World, then: object, runs: bool) -> None:
    says: list[Any] = ["ask", then]

    def policy(_: GatedCall) -> Any:
        said = says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    @tool(approval=Approval(policy))
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return "paid"

    world.app(lambda talk: asks("pay", cents=7) if talk.step == 0 else answers("Well."), [pay])
    session = world.create("Pay", who=ANN)
    world.run(session)
    answer(world, session, "approve")
    world.run(session)
    assert says == []
    assert len(world.starts("pay")) == runs
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    if isinstance(then, Deny):
        assert then.reason in str(world.history(session)[2])
    world.check(session)


def test_a_tool_sees_who_let_its_call_run_and_runs_as_who_asked(world: World) -> None:
    seen: list[object] = []

    @tool(approval=always(response=lambda _: True))
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        assert ctx.approval is not None
        assert ctx.approval.responder is not None
        seen.extend([ctx.session.auth, ctx.approval.responder.id, ctx.approval.text])
        return "paid"

    world.app(lambda talk: asks("pay", cents=7) if talk.step == 0 else answers("Well."), [pay])
    session = world.create("Pay", who=ANN)
    world.run(session)
    answer(world, session, "approve", who=BEN, text="Fine by me.")
    world.run(session)
    assert seen == [ANN, "ben", "Fine by me."]
    world.check(session)


def test_once_asks_once_in_a_session(world: World) -> None:
    @tool(approval=once())
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return "paid"

    world.app(lambda talk: asks("pay", cents=7) if talk.step == 0 else answers("Well."), [pay])
    session = world.create("Pay", who=ANN)
    world.run(session)
    answer(world, session, "approve")
    world.run(session)
    world.say(session, "Again", who=BEN)
    world.run(session)
    assert len(asked(world, session)) == 1
    assert len(world.starts("pay")) == 2
    world.check(session)


def test_a_link_answers_once(world: World) -> None:
    session = waiting(world)
    [note] = world.worker.requests(session)
    world._insist(lambda: world.worker.answer_link(note["link"], "approve"))
    world._insist(lambda: world.worker.answer_link(note["link"], "approve"))
    with pytest.raises(LinkUsed):
        world.worker.answer_link(note["link"], "cancel")
    with pytest.raises(LinkUnknown):
        world.worker.answer_link(note["link"][:-3] + "abc", "approve")
    world.run(session)
    assert len(world.starts("refund")) == 1
    world.check(session)


def test_each_decision_is_kept_with_who_when_and_what_was_seen(world: World) -> None:
    session = waiting(world)
    answer(world, session, "cancel", text="Too much.")
    world.run(session)
    [note] = world.worker.requests(session)
    assert note["state"] == "denied"
    assert note["by"]["id"] == "ann"
    assert note["text"] == "Too much."
    assert note["prompt"] == "Refund 500 cents?"
    assert note["action"]["input"] == {"cents": 500}
    assert note["digest"]
    assert note["asked_ms"] <= note["ended_ms"]


def test_an_erased_session_leaves_no_link(world: World) -> None:
    session = waiting(world)
    world.worker.erase(session)
    assert traces(world, session) == []
    assert not list(world.client.scan_iter("*link:*"))


def mute(world: World, script: Any) -> SessionId:
    """A session that can ask nobody, with a message."""
    world.app(script, [refund, look, ask_question])
    session = ids.new_session(world.journal.time())
    world._insist(
        lambda: world.worker.create(Body((Part("text", "Pay me"),)), session=session, principal=ANN, may_ask=False)
    )
    world.sessions.append(session)
    world.run(session)
    return session


def test_where_nobody_can_be_asked_a_call_is_refused_and_the_turn_goes_on(world: World) -> None:
    session = mute(world, pays)
    assert world.fields(session)["mute"] == "1"
    assert "input.requested" not in types(world, session)
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    assert not world.starts("refund")
    shown = [data for kind, data in world.shown(session) if kind == "action.result"]
    assert [data["error"]["code"] for data in shown if data["status"] == "rejected"] == ["APPROVAL_UNAVAILABLE"]
    assert world.worker.requests(session) == []
    world.check(session)


def test_where_nobody_can_be_asked_a_question_is_told_so(world: World) -> None:
    def curious(talk: Conversation) -> Reply:
        return asks("ask_question", question="Which colour?") if talk.step == 0 else answers("Any, then.")

    session = mute(world, curious)
    assert world.history(session)[2] == results(("ask_question", {"status": "unavailable"}))
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_an_approval_is_for_the_call_that_was_shown_and_for_no_other(world: World) -> None:
    session = waiting(world)
    key = world.journal.keys(session).hist(0)
    row = world.reads.rows(session, 0, 1)[0]
    world.client.lset(key, 1, row.decode().replace('"cents":500', '"cents":900'))
    world.kill(world.worker)
    answer(world, session, "approve")
    world.run(session)
    assert not world.starts("refund")
    assert "not the one that was approved" in str(world.history(session)[2])


def test_a_turn_that_waits_beyond_the_sessions_time_costs_nothing_and_goes_on_when_it_is_answered(world: World) -> None:
    session = waiting(world)
    world.skip(31 * DAY_MS)
    assert world.client.zscore(world.journal.keys(session).due, session) is None, "nobody looks at it"
    assert world.run(session)[-1] == "idle"
    answer(world, session, "approve")
    world.run(session)
    assert types(world, session)[-2:] == ["turn.completed", "session.waiting"]
    world.run(session)
    assert types(world, session)[-1] == "session.completed"
    assert len(world.starts("refund")) == 1
    world.check(session)
