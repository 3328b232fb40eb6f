"""Turns that people hold up: several requests at once, one after the other, from several people, and whatever ends them."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.agent import Limits
from orchestrator.approval import Approval, Responder, always, once
from orchestrator.core.delivery import Response
from orchestrator.core.names import RequestId, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.models.scripted import Conversation, Reply, answers, asks, calls
from orchestrator.tool import Tool, ToolContext, ask_question, tool
from orchestrator.turn import judging
from tests.engine.test_approvals import asked, batch, reply
from tests.engine.test_crash_table import WAYS
from tests.engine.test_news import beside
from tests.engine.test_steering import ANN, BEN, look
from tests.servers import wait_for
from tests.worlds import Fault, How, World, answered, results, said

CAT = Principal("api-key", "user", "cat")


def payer(approval: Approval) -> Tool:
    """A tool that tells for whom it has paid."""

    @tool(approval=approval)
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return f"{cents} paid for {ctx.session.auth.id if ctx.session.auth else 'nobody'}"

    return pay


def first(*replies: Reply) -> Callable[[Conversation], Reply]:
    """A script of the first turn; later ones only say what they were told."""

    def script(talk: Conversation) -> Reply:
        if talk.turn == "turn_0" and talk.step < len(replies):
            return replies[talk.step]
        return answers(f"After {talk.message}.")

    return script


def held(world: World, script: Any, tools: list[Tool], **agent: Any) -> SessionId:
    """A session whose turn waits for people."""
    world.app(script, tools, **agent)
    session = world.create("Pay", who=ANN)
    world.run(session)
    assert world.types(session)[-1] == "turn.waiting"
    return session


def give(world: World, session: SessionId, *given: Response, who: Principal | None = ANN) -> None:
    """An answer that nobody looks at yet."""
    world._insist(lambda: world.worker.answer(session, list(given), principal=who))


def outcomes(world: World, session: SessionId) -> list[str]:
    """How the stream says that requests ended."""
    batches = [data["resolutions"] for kind, data in world.shown(session) if kind == "input.resolved"]
    return [one["outcome"] for found in batches for one in found]


def candidates(world: World, session: SessionId) -> list[tuple[str, str]]:
    """What the stream says of answers that a policy judges, and of those that came too late."""
    found = [data for kind, data in world.shown(session) if kind == "approval.candidate"]
    return [(data["responderPrincipalId"], data["outcome"]) for data in found]


def heard(world: World, session: SessionId) -> list[str]:
    """The messages of the stream."""
    return [data["message"] for kind, data in world.shown(session) if kind == "message.received"]


def paid(world: World) -> list[str]:
    """The arguments of the calls that were really made."""
    return sorted(effect.arguments for effect in world.starts("pay"))


# Several at once --------------------------------------------------------------------------------------------------------


def test_leave_for_the_session_is_for_later_calls_and_not_for_those_that_wait_beside_it(world: World) -> None:
    three = calls(*[asks("pay", cents=cents) for cents in (1, 2, 3)])
    session = held(world, first(three, asks("pay", cents=4)), [payer(once())])
    one, two, three_ = asked(world, session)
    reply(world, session, one, "approve")
    assert paid(world) == []
    assert world.types(session)[-1] == "turn.waiting"
    reply(world, session, two, "cancel")
    assert paid(world) == []
    reply(world, session, three_, "cancel")
    assert paid(world) == ["{'cents': 1}", "{'cents': 4}"]
    assert len(asked(world, session)) == 3
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_a_refusal_that_waits_for_its_batch_is_not_turned_into_leave(world: World) -> None:
    session = batch(world)
    one, two = asked(world, session)
    reply(world, session, one, "cancel")
    reply(world, session, one, "approve")
    assert candidates(world, session) == [("ann", "stale")]
    reply(world, session, two, "approve")
    assert paid(world) == ["{'cents': 2}"]
    assert outcomes(world, session) == ["denied", "approved"]
    world.check(session)


def test_a_text_answers_the_first_of_a_question_and_an_approval_and_leaves_the_other_open(world: World) -> None:
    both = asks("ask_question", question="Which colour?") & asks("pay", cents=5)
    session = held(world, first(both), [ask_question, payer(always())])
    world.say(session, "Green", who=ANN)
    world.run(session)
    assert world.types(session)[-1] == "turn.waiting"
    assert paid(world) == []
    world.say(session, "approve", who=ANN)
    world.run(session)
    assert outcomes(world, session) == ["answered", "approved"]
    assert world.history(session) == [
        said("Pay"),
        answered("", ("ask_question", {"question": "Which colour?"}), ("pay", {"cents": 5})),
        results(("ask_question", {"status": "answered", "answer": "Green"}), ("pay", "5 paid for ann")),
        answered("After Pay."),
    ]
    assert len(world.requests) == 2, "the model is not asked before every call has its result"
    world.check(session)


def test_words_that_are_no_option_of_the_first_request_take_all_of_them_back(world: World) -> None:
    both = asks("pay", cents=5) & asks("ask_question", question="Which colour?")
    session = held(world, first(both), [ask_question, payer(always())])
    world.say(session, "Green", who=ANN)
    world.run(session)
    assert outcomes(world, session) == ["ignored", "ignored"]
    assert paid(world) == []
    assert heard(world, session) == ["Pay", "Green"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


@pytest.mark.parametrize(
    ("text", "chosen"), [("1", "1"), ("3", "3"), (" TWO ", "Two"), ("2", "1"), ("4", "4"), ("four", "four")]
)
def test_a_text_means_the_option_that_reads_so_before_the_one_that_stands_there(
    world: World, text: str, chosen: str
) -> None:
    session = held(world, first(asks("ask_question", question="?", options=["3", "1", "Two"])), [ask_question])
    world.say(session, text, who=ANN)
    world.run(session)
    [(_, found)] = world.history(session)[2][1]
    assert found["answer"] == chosen
    world.check(session)


# One after the other ----------------------------------------------------------------------------------------------------


def test_leave_is_used_up_by_its_call_and_the_same_call_again_is_asked_about_again(world: World) -> None:
    session = held(world, first(asks("pay", cents=5), asks("pay", cents=5)), [payer(always())])
    reply(world, session, asked(world, session)[0], "approve")
    assert len(world.starts("pay")) == 1
    assert world.types(session)[-2:] == ["input.requested", "turn.waiting"]
    reply(world, session, asked(world, session)[1], "cancel")
    assert len(world.starts("pay")) == 1
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


@pytest.mark.parametrize(("again", "told"), [("approve", []), ("cancel", [("ann", "stale")])])
def test_an_answer_to_what_was_asked_earlier_in_the_turn_says_nothing_of_what_is_asked_now(
    world: World, again: str, told: list[tuple[str, str]]
) -> None:
    session = held(world, first(asks("pay", cents=5), asks("pay", cents=6)), [payer(always())])
    earlier = asked(world, session)[0]
    reply(world, session, earlier, "approve")
    reply(world, session, earlier, again)
    assert candidates(world, session) == told
    assert paid(world) == ["{'cents': 5}"]
    assert world.types(session)[-1] == "turn.waiting"
    reply(world, session, asked(world, session)[1], "approve")
    assert paid(world) == ["{'cents': 5}", "{'cents': 6}"]
    assert heard(world, session) == ["Pay"]
    world.check(session)


# When something comes in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["approve", "Wait, no"])
def test_words_that_were_on_their_way_into_the_turn_before_it_asked_neither_answer_nor_withdraw(
    world: World, text: str
) -> None:
    @tool
    def slow(ctx: ToolContext) -> str:
        """Something is said meanwhile."""
        world.say(ctx.session.id, text, who=ANN)
        wait_for(lambda: (turn := world.snapshot(ctx.session.id).turn) is not None and bool(turn.joining))
        return "done"

    session = held(world, first(asks("pay", cents=5) & asks("slow")), [payer(always()), slow])
    assert len(asked(world, session)) == 1
    assert outcomes(world, session) == []
    reply(world, session, asked(world, session)[0], "approve")
    assert paid(world) == ["{'cents': 5}"]
    assert heard(world, session) == ["Pay", text], "it joins when the calls have their results"
    assert world.types(session).count("turn.started") == 1
    assert world.history(session)[-2:] == [said(text), answered(f"After {text}.")]
    world.check(session)


def test_a_message_behind_one_that_joins_takes_back_what_was_asked_between_them(world: World) -> None:
    @tool
    def slow(ctx: ToolContext) -> str:
        """Something is said meanwhile."""
        world.say(ctx.session.id, "approve", who=ANN)
        wait_for(lambda: (turn := world.snapshot(ctx.session.id).turn) is not None and bool(turn.joining))
        return "done"

    session = held(world, first(asks("pay", cents=5) & asks("slow")), [payer(always()), slow])
    world.say(session, "Wait, no", who=ANN)
    world.run(session)
    assert outcomes(world, session) == ["ignored"]
    assert paid(world) == []
    assert heard(world, session) == ["Pay", "approve", "Wait, no"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_an_answer_given_in_the_moment_the_request_can_be_seen_counts(world: World) -> None:
    given: list[RequestId] = []

    def after(place: int, verb: str) -> None:
        session = world.sessions[0]
        if not given and "input.requested" in world.types(session):
            given.extend(asked(world, session))
            give(world, session, Response(given[0], "approve"))

    world.app(first(asks("pay", cents=5)), [payer(always())])
    world.traffic.after = after
    session = world.create("Pay", who=ANN)
    world.run(session)
    assert paid(world) == ["{'cents': 5}"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_an_option_is_known_whatever_a_channel_says_beside_it(world: World) -> None:
    session = held(world, first(asks("pay", cents=5)), [payer(always())])
    world.say(session, "Approve", who=ANN, context=["#general, 12 members", "Ann wrote:"])
    world.run(session)
    assert paid(world) == ["{'cents': 5}"]
    assert heard(world, session) == ["Pay"]
    assert [row for row in world.history(session) if row[0] == "said"] == [said("Pay")]
    world.check(session)


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_an_answer_in_time_and_the_end_of_the_time_of_another_have_one_outcome_whatever_breaks(
    world: World, at: int, how: How, late_by: int | None
) -> None:
    session = batch(world, expires=timedelta(hours=1))
    one, _ = asked(world, session)
    give(world, session, Response(one, "approve"))
    world.skip(3_600_001)
    world.traffic.fault = Fault(len(world.traffic.verbs) + at, how, late_by)
    world.run(session)
    # It may have run: people are asked again.
    for again in asked(world, session)[2:]:
        reply(world, session, again, "cancel")
    assert len(paid(world)) <= 1
    assert outcomes(world, session)[:2] == ["approved", "cancelled"]
    assert [note["state"] for note in world.worker.requests(session)][:2] == ["approved", "expired"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


# Who has answered -------------------------------------------------------------------------------------------------------


def test_what_somebody_else_approved_runs_as_who_asked_for_it_whoever_spoke_last(world: World) -> None:
    session = held(world, first(asks("pay", cents=5)), [payer(always(response=lambda given: True))])
    world.say(session, "And I?", who=CAT)
    world.run(session)
    reply(world, session, asked(world, session)[0], "approve", who=BEN)
    assert world.history(session)[2] == results(("pay", "5 paid for ann"))
    [note] = world.worker.requests(session)
    assert (note["by"]["id"], note["requester"]["id"]) == ("ben", "ann")
    assert heard(world, session) == ["Pay", "And I?"]
    world.check(session)


@pytest.mark.parametrize("may", [True, False])
def test_a_response_policy_is_asked_for_refusals_too(world: World, may: bool) -> None:
    told: list[tuple[str, str]] = []

    def policy(given: Responder) -> bool:
        told.append((given.decision, given.text))
        return may

    session = held(world, first(asks("pay", cents=5)), [payer(always(response=policy))])
    give(world, session, Response(asked(world, session)[0], "cancel", "Too much."), who=BEN)
    world.run(session)
    assert told == [("cancel", "Too much.")]
    assert outcomes(world, session) == (["denied"] if may else [])
    assert world.types(session)[-1] == ("session.waiting" if may else "turn.waiting")
    assert paid(world) == []
    world.check(session)


@pytest.mark.parametrize("may", [True, False])
def test_a_link_does_not_lead_round_a_response_policy(world: World, may: bool) -> None:
    told: list[str] = []

    def policy(given: Responder) -> bool:
        assert given.responder is not None
        told.append(given.responder.type)
        return may

    session = held(world, first(asks("pay", cents=5)), [payer(always(response=policy))])
    [note] = world.worker.requests(session)
    world.worker.answer_link(note["link"], "approve")
    world.run(session)
    assert told == ["link"]
    assert len(paid(world)) == may
    world.check(session)


def test_of_two_answers_that_a_policy_lets_the_first_counts_and_the_second_is_told_so(world: World) -> None:
    session = held(world, first(asks("pay", cents=5)), [payer(always(response=lambda given: True))])
    [request] = asked(world, session)
    give(world, session, Response(request, "approve"), who=BEN)
    give(world, session, Response(request, "cancel"), who=CAT)
    world.run(session)
    assert candidates(world, session) == [("ben", "pending"), ("cat", "pending"), ("cat", "stale")]
    assert outcomes(world, session) == ["approved"]
    assert paid(world) == ["{'cents': 5}"]
    world.check(session)


@pytest.mark.parametrize("says", ["run!", None, 1, "hangs"])
def test_a_policy_that_says_nothing_sensible_has_a_person_asked(
    world: World, says: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "POLICY_SECONDS", 0.1 if says == "hangs" else 60.0)

    def policy(call: object) -> Any:
        if says == "hangs":
            world.the_end.wait()
        return says

    session = held(world, first(asks("pay", cents=5)), [payer(Approval(policy))])
    assert paid(world) == []
    reply(world, session, asked(world, session)[0], "approve")
    assert paid(world) == ["{'cents': 5}"]
    world.check(session)


@pytest.mark.parametrize(
    ("says", "told"), [("yes", "rejected"), (1, "rejected"), (None, "rejected"), ("hangs", "timed-out")]
)
def test_a_response_policy_that_does_not_say_yes_says_no(
    world: World, says: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "POLICY_SECONDS", 0.1 if says == "hangs" else 60.0)

    def policy(given: Responder) -> Any:
        if says == "hangs":
            world.the_end.wait()
        return says

    session = held(world, first(asks("pay", cents=5)), [payer(always(response=policy))])
    reply(world, session, asked(world, session)[0], "approve", who=BEN)
    assert candidates(world, session) == [("ben", "pending"), ("ben", told)]
    assert world.types(session)[-1] == "turn.waiting"
    assert paid(world) == []
    world.check(session)


def test_answers_of_a_crowd_while_a_policy_thinks_do_not_stop_the_session(world: World) -> None:
    thinks, may = threading.Event(), threading.Event()

    def policy(given: Responder) -> bool:
        thinks.set()
        may.wait(30)
        return given.responder is not None and given.responder.id == "ann"

    session = held(world, first(asks("pay", cents=5)), [payer(always(response=policy))])
    [request] = asked(world, session)
    give(world, session, Response(request, "approve"), who=BEN)
    thread = beside(world, session)
    assert thinks.wait(10)
    for number in range(40):
        person = Principal("jwt", "user", f"person {number}", extra={"groups": ["x" * 3000]})
        give(world, session, Response(request, "approve"), who=person)
    may.set()
    thread.join(60)
    world.run(session)
    assert world.types(session)[-1] == "turn.waiting"
    assert len(candidates(world, session)) == 2 * 41 - [told for _, told in candidates(world, session)].count("stale")
    reply(world, session, request, "approve")
    assert paid(world) == ["{'cents': 5}"]
    world.check(session)


def test_a_person_of_whom_much_is_said_answers_many_requests_at_once(world: World) -> None:
    """What does not fit is said to be stale, and may be given again."""
    boss = Principal("jwt", "user", "boss", extra={"groups": ["x" * 3900]})
    session = held(
        world,
        first(calls(*[asks("pay", cents=cents) for cents in range(64)])),
        [payer(always(response=lambda given: True))],
    )
    for _ in range(64):
        waiting = [RequestId(note["requestId"]) for note in world.worker.requests(session) if note["state"] == "open"]
        decided = {one.id for one in _open(world, session)}
        give(world, session, *[Response(name, "approve") for name in waiting if name in decided], who=boss)
        world.run(session)
        if world.types(session)[-1] == "session.waiting":
            break
    assert len(paid(world)) == 64
    world.check(session)


def _open(world: World, session: SessionId) -> list[Any]:
    turn = world.snapshot(session).turn
    return [request for request in turn.requests if request.is_open] if turn is not None else []


@pytest.mark.parametrize("letter", ["x", "\u20ac"])
@pytest.mark.parametrize("count", [64, 128])
def test_many_questions_with_many_long_options_do_not_stop_the_session(world: World, count: int, letter: str) -> None:
    question = asks("ask_question", question="Which?", options=[letter * 80, *(f"{n} or so" for n in range(9))])
    session = held(world, first(calls(*[question] * count)), [ask_question])
    shown = next(data["requests"] for kind, data in world.shown(session) if kind == "input.requested")
    assert len(shown[0]["options"]) == 10
    assert shown[-1]["options"] == []
    assert shown[-1]["prompt"].splitlines()[1] == f"- {letter * 80}", "people still read them"
    for begin in range(0, count, 64):
        give(world, session, *[Response(name, "", "1") for name in asked(world, session)[begin : begin + 64]])
    world.run(session)
    assert outcomes(world, session) == ["answered"] * count
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


@pytest.mark.parametrize("label", ["a\0b", "", 7, None, ["x"], {"label": "x"}])
def test_an_option_may_be_whatever_a_model_takes_for_one(world: World, label: object) -> None:
    question = asks("ask_question", question="Which?", options=[label, "other"])
    world.app(first(question), [ask_question])
    session = world.create("Paint", who=ANN)
    world.run(session)
    for name in asked(world, session):
        give(world, session, Response(name, "1"))
    world.run(session)
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


@pytest.mark.parametrize("text", ["a\0b", "", "x" * 100_000])
def test_a_prompt_may_be_whatever_a_model_makes_of_it(world: World, text: str) -> None:
    @tool(approval=always(prompt="Pay {to}?"))
    def pay(ctx: ToolContext, to: str) -> str:
        """Pay."""
        return "paid"

    both = asks("pay", to=text) & asks("ask_question", question=text)
    session = held(world, first(both), [pay, ask_question])
    one, two = asked(world, session)
    give(world, session, Response(one, "approve"), Response(two, "", "Well."))
    world.run(session)
    assert len(world.starts("pay")) == 1
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_a_turn_that_asks_again_and_again_does_not_grow_with_what_it_has_offered(world: World) -> None:
    wide = "\u20ac" * 70

    def curious(talk: Conversation) -> Reply:
        options = [f"{n} {wide}" for n in range(10)]
        return asks("ask_question", question="Which?", options=options) if talk.step < 70 else answers("At last.")

    session = held(world, curious, [ask_question])
    for _ in range(70):
        give(world, session, Response(asked(world, session)[-1], "3"))
        world.run(session)
    assert outcomes(world, session) == ["answered"] * 70
    chosen = {"status": "answered", "answer": f"2 {wide}", "optionId": "3"}
    assert world.history(session)[-2] == results(("ask_question", chosen))
    assert world.history(session)[-1] == answered("At last.")
    world.check(session)


# A deploy meanwhile -----------------------------------------------------------------------------------------------------


def test_a_tool_that_a_deploy_removed_while_its_approval_waits_is_told_to_the_model(world: World) -> None:
    script = first(asks("pay", cents=5))
    session = held(world, script, [payer(always())])
    world.app(script, [look])
    reply(world, session, asked(world, session)[0], "approve")
    assert paid(world) == []
    assert "There is no tool 'pay' any more" in str(world.history(session)[2])
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_where_a_deploy_removed_the_response_policy_the_requester_answers(world: World) -> None:
    script = first(asks("pay", cents=5))
    session = held(world, script, [payer(always(response=lambda given: False))])
    world.app(script, [payer(always())])
    request = asked(world, session)[0]
    reply(world, session, request, "approve", who=BEN)
    assert candidates(world, session) == [("ben", "pending"), ("ben", "rejected")]
    reply(world, session, request, "approve")
    assert paid(world) == ["{'cents': 5}"]
    world.check(session)


@pytest.mark.parametrize("approval", [always(), once(), Approval(lambda call: "run"), Approval(lambda call: "ask")])
def test_a_call_that_a_deploy_put_under_approval_before_it_began_has_a_person_asked(
    world: World, approval: Approval
) -> None:
    @tool
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return "paid"

    script = first(asks("pay", cents=5) & asks("look", at="shelf"))
    world.app(script, [pay, look])

    def before(place: int, verb: str) -> None:
        if place == 3:
            world.app(script, [payer(approval), look])

    world.traffic.before, world.traffic.fault = before, Fault(3, "crash after")
    session = world.create("Pay", who=ANN)
    world.run(session)
    assert paid(world) == []
    assert world.types(session)[-2:] == ["input.requested", "turn.waiting"]
    reply(world, session, asked(world, session)[0], "approve")
    assert paid(world) == ["{'cents': 5}"]
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)


def test_a_call_that_a_deploy_made_free_while_its_approval_waits_still_waits_for_it(world: World) -> None:
    script = first(asks("pay", cents=5))
    session = held(world, script, [payer(always())])

    @tool
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return "paid"

    world.app(script, [pay])
    world.run(session)
    assert paid(world) == []
    reply(world, session, asked(world, session)[0], "cancel")
    assert paid(world) == []
    assert outcomes(world, session) == ["denied"]
    world.check(session)


# What ends it -----------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Any, list[Tool], dict[str, Any]]] = {
    "approval": (first(asks("pay", cents=5)), [payer(always())], {}),
    "question": (first(asks("ask_question", question="Which colour?")), [ask_question], {}),
    "budget": (first(asks("look", at="shelf")), [look], {"limits": Limits(input_tokens=10)}),
    "batch": (
        first(asks("ask_question", question="Why?") & asks("pay", cents=5) & asks("pay", cents=6)),
        [ask_question, payer(always())],
        {},
    ),
}


@pytest.mark.parametrize("by", ["cancel", "reset"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_ends_a_turn_takes_back_all_that_it_has_asked(world: World, kind: str, by: str) -> None:
    script, tools, agent = KINDS[kind]
    session = held(world, script, tools, **agent)
    requests = asked(world, session)
    if by == "cancel":
        world.cancel(session)
    else:
        world.control(session, "reset")
    world.run(session)
    assert outcomes(world, session) == ["cancelled"] * len(requests)
    assert {note["state"] for note in world.worker.requests(session)} == {"cancelled"}
    ending = ["input.resolved", "turn.cancelled", "session.waiting"]
    found = [name for name in world.types(session) if name != "session.completed"]
    assert found[-3:] == ending
    assert (world.types(session)[-1] == "session.completed") == (by == "reset")
    world.check(session)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_clear_leaves_what_was_asked_open_until_the_turn_is_over(world: World, kind: str) -> None:
    script, tools, agent = KINDS[kind]
    session = held(world, script, tools, **agent)
    world.control(session, "clear")
    world.run(session)
    assert outcomes(world, session) == []
    options = {"tool-approval": "approve", "session-limit": "continue"}
    while waiting := _open(world, session):
        give(
            world,
            session,
            *[Response(one.id, options.get(one.kind, ""), "" if one.kind in options else "Green") for one in waiting],
        )
        world.run(session)
    assert "cancelled" not in outcomes(world, session)
    assert world.types(session)[-4:] == ["turn.completed", "session.waiting", "context.cleared", "session.waiting"]
    assert world.history(session) == []
    world.check(session)


# What nobody is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [asks("pay", cents="many"), asks("ask_question")])
def test_nobody_is_asked_about_a_call_that_could_not_run(world: World, wrong: Reply) -> None:
    world.app(first(wrong), [payer(always()), ask_question])
    session = world.create("Pay", who=ANN)
    world.run(session)
    assert asked(world, session) == []
    assert "do not fit" in str(world.history(session)[2])
    assert world.types(session)[-2:] == ["turn.completed", "session.waiting"]
    world.check(session)
