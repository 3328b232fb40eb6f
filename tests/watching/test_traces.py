"""Traces: one for each turn, whichever workers had a part in it."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags

from orchestrator.core.names import SessionId, TurnId
from orchestrator.models.scripted import answers, asks, calls, fails
from orchestrator.tool import ToolContext, tool
from orchestrator.watching.traces import ids_of
from tests.engine.test_crash_table import _first_is_settled as first_is_settled
from tests.engine.test_crash_table import buy, shop
from tests.worlds import HOWS, Fault, How, World

CAME_IN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def tree(spans: InMemorySpanExporter) -> dict[str, list[str]]:
    """The names of spans below each, in order of their ends; those without a parent of ours are below nothing."""
    all_of_them = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in all_of_them if span.context}
    found: dict[str, list[str]] = {}
    for span in all_of_them:
        found.setdefault(names.get(span.parent.span_id, "?") if span.parent else "", []).append(span.name)
    return found


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def of(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name.startswith(name)]


def test_a_turn_is_one_tree_over_all_its_tasks(world: World, spans: InMemorySpanExporter) -> None:
    world.change(traces="on")
    shop(world)
    session = world.create("A book, please.")
    assert world.run(session).count("chained") >= 2, "so it had several tasks"
    assert tree(spans) == {
        "": ["invoke_agent helper"],
        "invoke_agent helper": ["step 0", "step 1", "step 2"],
        "step 0": ["chat scripted", "execute_tool reserve", "execute_tool weigh"],
        "step 1": ["chat scripted", "execute_tool charge"],
        "step 2": ["chat scripted"],
    }
    (turn,) = of(spans, "invoke_agent")
    assert turn.context
    assert (turn.context.trace_id, turn.context.span_id) == ids_of(session, TurnId("turn_0"))
    assert about(turn)["gen_ai.operation.name"] == "invoke_agent"
    assert about(turn)["gen_ai.agent.name"] == "helper"
    assert about(turn)["gen_ai.conversation.id"] == session
    assert about(turn)["orchestrator.turn.outcome"] == "completed"
    told = "gen_ai.usage.output_tokens"
    assert about(turn)[told] == sum(about(chat)[told] for chat in of(spans, "chat")) > 0
    assert {about(span)["orchestrator.attempt"] for span in spans.get_finished_spans()} == {1}
    charge = about(of(spans, "execute_tool charge")[0])
    assert charge["gen_ai.tool.name"] == "charge"
    assert charge["orchestrator.call.id"] == "call_0_1_0"


@pytest.mark.parametrize("at", [2, 4, 6, 8])
@pytest.mark.parametrize("how", HOWS)
def test_workers_that_die_leave_one_trace(world: World, spans: InMemorySpanExporter, how: How, at: int) -> None:
    world.change(traces="on")
    shop(world)
    session = world.create("A book, please.")
    world.traffic.fault = Fault(len(world.traffic.verbs) + at, how)
    world.run(session)
    world.check(session)
    found = spans.get_finished_spans()
    assert {span.context.trace_id for span in found if span.context} == {ids_of(session, TurnId("turn_0"))[0]}
    ended = Counter(span.name for span in found if not span.name.startswith(("chat", "execute_tool")))
    assert set(ended.values()) == {1}, "one that several have worked on is told once"
    assert ended["invoke_agent helper"] == 1
    # Who dies right behind a commit cannot tell what was closed by it.
    assert how == "crash after" or ("?" not in tree(spans) and len(ended) == 4)


def test_what_was_taken_over_says_its_attempt(world: World, spans: InMemorySpanExporter) -> None:
    world.change(traces="on")
    killed: list[int] = []

    @tool
    def work(ctx: ToolContext) -> str:
        """The first worker that runs it dies of it."""
        if not killed:
            killed.append(ctx.attempt)
            world.kill(world.worker)
        return "done"

    @tool
    async def later(ctx: ToolContext) -> str:
        """Its result has a commit of its own, behind the other's."""
        while not first_is_settled(world, ctx):
            await asyncio.sleep(0.002)
        return "done"

    world.app([calls(asks("work"), asks("later")), answers("all done")], [work, later])
    session = world.create()
    assert "crashed" in world.run(session)
    attempts = [(span.name, about(span)["orchestrator.attempt"]) for span in spans.get_finished_spans()]
    assert [one for one in attempts if one[0] in ("chat scripted", "step 0", "step 1")] == [
        ("chat scripted", 1),
        ("step 0", 2),
        ("chat scripted", 1),
        ("step 1", 1),
    ]
    lost, done = of(spans, "execute_tool work")
    assert (about(lost)["orchestrator.attempt"], about(done)["orchestrator.attempt"]) == (1, 2)
    (step,) = of(spans, "step 0")
    assert step.context
    assert lost.parent
    assert done.parent
    assert lost.parent.span_id == done.parent.span_id == step.context.span_id, "both are calls of the one step"


def test_a_turn_is_in_the_trace_that_its_message_came_in(world: World, spans: InMemorySpanExporter) -> None:
    world.change(traces="on")
    world.app([asks("nap"), answers("done")], [nap])
    above = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True, TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(above)):
        session = world.create()
    world.run(session)
    (turn,) = of(spans, "invoke_agent")
    assert turn.parent
    assert turn.parent.span_id == above.span_id
    assert {span.context.trace_id for span in spans.get_finished_spans() if span.context} == {above.trace_id}


def test_who_is_not_sampled_above_is_not_traced(world: World, spans: InMemorySpanExporter) -> None:
    world.change(traces="on")
    world.app([answers("done")])
    with trace.use_span(trace.NonRecordingSpan(SpanContext(7, 7, True, TraceFlags(0)))):
        session = world.create()
    world.run(session)
    assert not spans.get_finished_spans()


@tool
async def nap() -> str:
    """Says in which trace it runs."""
    return format(trace.get_current_span().get_span_context().span_id, "016x")


@tool
def look() -> str:
    """Says in which trace it runs."""
    return format(trace.get_current_span().get_span_context().span_id, "016x")


@pytest.mark.parametrize("which", [nap, look])
def test_what_a_tool_does_is_below_its_span(world: World, spans: InMemorySpanExporter, which: Any) -> None:
    world.change(traces="on")
    world.app([asks(which.name), answers("done")], [which])
    session = world.create()
    world.run(session)
    (call,) = of(spans, "execute_tool")
    assert call.context
    said = [row for row in world.history(session) if row[0] == "results"]
    assert format(call.context.span_id, "016x") in str(said)


def test_content_is_told_only_if_it_is_asked_for(world: World, spans: InMemorySpanExporter) -> None:
    def told(traces: str) -> str:
        spans.clear()
        world.change(traces=traces)
        shop(world)
        session = world.create("A book, please.")
        world.run(session)
        return "".join(span.to_json() for span in spans.get_finished_spans())

    without, all_of_it = told("on"), told("content")
    for secret in ("A book, please.", "4242", "is yours", "It is on its way."):
        assert secret not in without
        assert secret in all_of_it


def test_a_model_that_breaks_is_an_error_with_its_code(world: World, spans: InMemorySpanExporter) -> None:
    world.change(traces="on")
    world.app([fails("No.", retryable=False)])
    world.run(world.create())
    for name in ("chat", "step", "invoke_agent"):
        (span,) = of(spans, name)
        assert span.status.status_code is StatusCode.ERROR, name
        assert about(span)["error.type"] == "MODEL_CALL_FAILED"


def test_nothing_is_stored_and_nothing_told_if_it_is_off(world: World, spans: InMemorySpanExporter) -> None:
    shop(world)
    above = SpanContext(7, 7, True, TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(above)):
        session = buy(world)
    assert not spans.get_finished_spans()
    assert not any(b"trace" in fact for fact in world.client.lrange(world.journal.keys(session).fact, 0, -1))


def test_the_ids_of_others_are_their_own(world: World, spans: InMemorySpanExporter) -> None:
    world.change(traces="on")
    world.app([answers("done")])
    session: SessionId = world.create()
    world.run(session)
    first, second = (trace.get_tracer("orchestrator").start_span("mine") for _ in range(2))
    assert first.get_span_context().span_id != second.get_span_context().span_id
