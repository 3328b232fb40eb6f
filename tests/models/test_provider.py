"""Answers and failures of a provider, through the real openai client."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart

from orchestrator.core.event import Outcome
from orchestrator.core.snapshot import Usage
from orchestrator.errors import ConfigError
from orchestrator.models import Layer
from orchestrator.models.provider import complete
from orchestrator.ports import (
    Answer,
    AskedTool,
    Message,
    ModelFailure,
    ReasoningDelta,
    Result,
    TextDelta,
    WrongCall,
)
from orchestrator.tool import Tool, ToolContext, tool
from tests.fake_openai import FakeOpenAI, Reply, Use, cut, empty, error, filtered, text, tools, use
from tests.models.conftest import NAME, Provider, ask, call, collect


@tool
def find(ctx: ToolContext, x: int) -> str:
    """Find it.

    Args:
        x: Where to look.
    """
    return str(x)


def failure(layer: Layer, provider: Provider, *script: Reply, stall_seconds: float = 600.0) -> ModelFailure:
    """How a call fails that is answered by the first of the script. The rest would be retries of ours or of a client."""
    fake: FakeOpenAI = provider([*script, text("a retry that nobody asked for")])
    layer = Layer(stall_seconds=stall_seconds)
    with pytest.raises(ModelFailure) as failed:
        ask(layer.model(NAME), call(layer))
    assert len(fake.calls) == 1, "a client tried again by itself"
    return failed.value


def test_an_answer_comes_in_pieces_and_then_whole(layer: Layer, provider: Provider) -> None:
    fake = provider([text("Hello dear person", reasoning="I think so")])
    outputs = asyncio.run(collect(layer.model(NAME), call(layer, "hi", instructions="Be kind.")))
    *deltas, answer = outputs
    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["Hello", " dear", " person"]
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == "I think so"
    assert isinstance(answer, Answer)
    assert (answer.text, answer.reasoning, answer.finish, answer.calls) == (
        "Hello dear person",
        "I think so",
        "stop",
        (),
    )
    assert answer.usage == Usage(input=20, output=3, cache_read=4)
    assert layer.read(answer.row).text == "Hello dear person"
    roles = [(m["role"], m["content"]) for m in fake.calls[0].messages]
    assert roles == [("system", "Be kind."), ("user", "hi")]


def test_tool_calls_in_pieces_are_put_together_in_order(layer: Layer, provider: Provider) -> None:
    fake = provider([tools(use("find", x=1234567), use("find", x=2), text="Let me look.")])
    answer = ask(layer.model(NAME), call(layer, tools=[find]))
    assert answer.calls == (AskedTool("call_0", "find", {"x": 1234567}), AskedTool("call_1", "find", {"x": 2}))
    assert (answer.finish, answer.text) == ("tool-calls", "Let me look.")
    assert layer.calls(layer.read(answer.row)) == answer.calls
    offered = fake.calls[0].body["tools"][0]["function"]
    assert offered["name"] == "find"
    assert list(offered["parameters"]["properties"]) == ["x"]


def test_an_answer_is_about_tool_calls_whatever_reason_the_provider_gives(layer: Layer, provider: Provider) -> None:
    provider([Reply(uses=(use("find", x=1),), finish="stop")])
    assert ask(layer.model(NAME), call(layer, tools=[find])).finish == "tool-calls"


def test_call_ids_that_a_provider_uses_twice_in_one_answer_are_made_unique(layer: Layer, provider: Provider) -> None:
    fake = provider([tools(use("find", id="c", x=1), use("find", id="c", x=2), use("find", id="", x=3)), text("done")])
    model = layer.model(NAME)
    first = call(layer, tools=[find])
    answer = ask(model, first)
    ids = [asked.provider_id for asked in answer.calls]
    assert len(set(ids)) == 3
    assert all(ids)
    results = [Result(a.provider_id, a.tool, Outcome("completed", {"n": n})) for n, a in enumerate(answer.calls)]
    history = [*first.history, layer.read(answer.row), layer.read(layer.results_row(results))]
    ask(model, call(layer, history, tools=[find], step=1))
    _, asked, *returned = fake.calls[1].messages
    assert [made["id"] for made in asked["tool_calls"]] == ids
    assert [(m["tool_call_id"], m["content"]) for m in returned] == [(i, f'{{"n":{n}}}') for n, i in enumerate(ids)]


def test_call_ids_that_come_back_in_a_later_answer_pair_with_their_own_results(
    layer: Layer, provider: Provider
) -> None:
    fake = provider([tools(use("find", id="c", x=1)), tools(use("find", id="c", x=2)), text("done")])
    model = layer.model(NAME)
    history = list(call(layer).history)
    for step in range(2):
        answer = ask(model, call(layer, history, tools=[find], step=step))
        assert answer.calls[0].provider_id == "c"
        outcome = Outcome("completed", f"result {step}")
        history += [layer.read(answer.row), layer.read(layer.results_row([Result("c", "find", outcome)]))]
    ask(model, call(layer, history, tools=[find], step=2))
    assert [m["content"] for m in fake.calls[2].messages if m["role"] == "tool"] == ["result 0", "result 1"]


def test_arguments_that_are_no_json_stay_the_text_they_were(layer: Layer, provider: Provider) -> None:
    provider([tools(Use("find", '{"x": 1'), Use("find", ""))])
    answer = ask(layer.model(NAME), call(layer, tools=[find]))
    assert [asked.input for asked in answer.calls] == ['{"x": 1', {}]


@pytest.mark.parametrize("broken", ['{"x": NaN}', '{"x": "\\ud83d"}', "[" * 5000, '{"x": 1} and'])
def test_arguments_that_no_journal_could_hold_stay_text(layer: Layer, provider: Provider, broken: str) -> None:
    provider([tools(Use("find", broken))])
    answer = ask(layer.model(NAME), call(layer, tools=[find]))
    assert answer.calls[0].input == broken
    with pytest.raises(WrongCall):
        layer.toolbox([find]).check("find", answer.calls[0].input)


def test_half_characters_can_be_stored(layer: Layer, provider: Provider) -> None:
    provider([Reply(text="a \ud83d \ude00 b", uses=(Use("find", '{"x":"\ud83d"}'),), finish="tool_calls")])
    *deltas, answer = asyncio.run(collect(layer.model(NAME), call(layer, tools=[find])))
    assert isinstance(answer, Answer)
    assert answer.text.encode()
    assert layer.read(answer.row).text == answer.text
    assert all(delta.text.encode() for delta in deltas if isinstance(delta, TextDelta))


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_work_later_is_tried_again_by_us_and_not_by_the_client(
    layer: Layer, provider: Provider, status: int
) -> None:
    failed = failure(layer, provider, error(status, message="come back later"))
    assert failed.retryable
    assert failed.details["statusCode"] == status
    assert failed.details["upstreamMessage"] == "come back later"
    assert failed.retry_after is None
    assert str(status) in failed.message
    assert "come back later" in failed.message


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422])
def test_what_will_not_work_later_either_is_not_tried_again(layer: Layer, provider: Provider, status: int) -> None:
    failed = failure(layer, provider, error(status, message="no such thing"))
    assert not failed.retryable
    assert "no such thing" in failed.message
    assert failed.details["statusCode"] == status


def test_a_history_that_is_too_long_says_so_in_the_providers_words(layer: Layer, provider: Provider) -> None:
    words = "This model's maximum context length is 10 tokens."
    failed = failure(layer, provider, error(400, code="context_length_exceeded", message=words))
    assert not failed.retryable
    assert failed.overflow
    assert failed.details["semanticErrorId"] == "model-context-window-exceeded"
    assert failed.details["upstreamCode"] == "context_length_exceeded"
    assert words in failed.message


def test_a_used_up_quota_is_not_waited_for(layer: Layer, provider: Provider) -> None:
    failed = failure(layer, provider, error(429, code="insufficient_quota", message="You exceeded your quota."))
    assert not failed.retryable


def test_retry_after_in_seconds_is_passed_on(layer: Layer, provider: Provider) -> None:
    begun = time.monotonic()
    assert failure(layer, provider, error(429, retry_after=7)).retry_after == 7.0
    assert time.monotonic() - begun < 5, "somebody waited"


def test_retry_after_as_a_date_is_passed_on(layer: Layer, provider: Provider) -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    after = failure(layer, provider, error(503, retry_after=then)).retry_after
    assert after is not None
    assert 50 < after <= 60


def test_no_failure_tells_the_key(layer: Layer, provider: Provider) -> None:
    told = "Incorrect API key provided: sk-the-key-of-this-test, header was Bearer abcdef, also sk-proj-1234567890."
    failed = failure(layer, provider, error(401, message=told))
    shown = failed.message + str(failed.details)
    assert "Incorrect API key" in shown
    for secret in ("the-key-of-this-test", "abcdef", "1234567890"):
        assert secret not in shown


@pytest.mark.parametrize("how", ["reset", "drop", "end"])
@pytest.mark.parametrize("after", [0, 3])
def test_a_stream_that_breaks_off_is_tried_again(layer: Layer, provider: Provider, how: Any, after: int) -> None:
    failed = failure(layer, provider, cut(text("a long answer of several words"), after=after, how=how))
    assert failed.retryable


def test_a_stream_that_breaks_off_in_a_tool_call_is_tried_again(layer: Layer, provider: Provider) -> None:
    assert failure(layer, provider, cut(tools(use("find", x=123456789)), after=3, how="end")).retryable


@pytest.mark.parametrize("state", ["incomplete", "interrupted"])
def test_an_answer_that_the_library_calls_incomplete_is_tried_again(state: Any) -> None:
    response = ModelResponse([TextPart("half of")], finish_reason="length", state=state)
    with pytest.raises(ModelFailure) as failed:
        complete(response)
    assert failed.value.retryable


def test_a_provider_that_never_says_why_it_finished_can_be_used(layer: Layer, provider: Provider) -> None:
    provider([Reply(text="all of it", finish="")])
    assert ask(layer.model(NAME), call(layer)).text == "all of it"


def test_a_provider_that_never_counts_tokens_can_be_used_and_that_is_not_booked_as_zero(
    layer: Layer, provider: Provider
) -> None:
    provider([text("all of it", usage=False)])
    assert ask(layer.model(NAME), call(layer)).usage.unmeasured == 1


def test_an_answer_cut_by_its_length_is_an_answer(layer: Layer, provider: Provider) -> None:
    provider([Reply(text="half of", finish="length")])
    answer = ask(layer.model(NAME), call(layer))
    assert (answer.text, answer.finish) == ("half of", "length")


def test_calls_of_an_answer_cut_by_its_length_come_with_that_reason(layer: Layer, provider: Provider) -> None:
    provider([replace(tools(Use("find", '{"x": ')), finish="length")])
    answer = ask(layer.model(NAME), call(layer))
    assert ([one.tool for one in answer.calls], answer.finish) == (["find"], "length")


def test_an_answer_costs_what_the_price_list_says(layer: Layer, provider: Provider) -> None:
    provider([text("all of it")])
    usage = ask(layer.model("openai-chat:gpt-4o"), call(layer)).usage
    # 2.50 USD for a million tokens in, half of it where they were cached, 10 USD for a million out.
    assert (usage.input, usage.cache_read, usage.output) == (10, 4, 3)
    assert usage.micro_usd == 50


@pytest.mark.parametrize("reply", [text("all of it"), text("all of it", usage=False)], ids=["no price", "no usage"])
def test_what_an_answer_of_an_unknown_model_costs_is_not_guessed(
    layer: Layer, provider: Provider, reply: Reply
) -> None:
    provider([reply])
    assert ask(layer.model(NAME), call(layer)).usage.micro_usd == 0


def test_a_provider_that_cannot_be_reached_is_tried_again(
    layer: Layer, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(ModelFailure) as failed:
        ask(layer.model(NAME), call(layer))
    assert failed.value.retryable


def test_a_silent_model_is_cut_and_tried_again(layer: Layer, provider: Provider) -> None:
    begun = time.monotonic()
    failed = failure(layer, provider, cut(text("a b c"), after=2, how="silent"), stall_seconds=0.3)
    assert time.monotonic() - begun < 3
    assert failed.retryable
    assert failed.details["name"] == "Stalled"


def test_a_model_that_never_begins_is_cut_and_its_connection_closed(provider: Provider) -> None:
    fake = provider([text("too late", call_seconds=30)])
    layer = Layer(stall_seconds=0.3)
    with pytest.raises(ModelFailure) as failed:
        ask(layer.model(NAME), call(layer))
    assert failed.value.retryable
    fake.wait_for(lambda: fake.calls[0].disconnected_at, 1)


def test_a_slow_model_is_not_a_silent_one(provider: Provider) -> None:
    provider([text("one two three four five six", token_seconds=0.1)])
    layer = Layer(stall_seconds=0.5)
    assert ask(layer.model(NAME), call(layer)).text == "one two three four five six"


def test_an_empty_answer_is_a_failure_that_says_so(layer: Layer, provider: Provider) -> None:
    failed = failure(layer, provider, replace(empty(), finish="length"))
    assert not failed.retryable
    assert "empty answer" in failed.message


def test_an_answer_that_stops_without_a_word_is_one_and_no_row(layer: Layer, provider: Provider) -> None:
    provider([empty()])
    answer = ask(layer.model(NAME), call(layer))
    assert (answer.row, answer.text, answer.finish, answer.calls) == (b"", "", "stop", ())


def test_a_filtered_answer_is_a_failure_that_says_so(layer: Layer, provider: Provider) -> None:
    failed = failure(layer, provider, filtered("I will not"))
    assert not failed.retryable
    assert failed.details["semanticErrorId"] == "model-response-content-filtered"


def test_too_many_tool_calls_are_the_models_error(layer: Layer, provider: Provider) -> None:
    failed = failure(layer, provider, tools(*[use("find", id=f"c{n}", x=n) for n in range(129)]))
    assert not failed.retryable
    assert "129" in failed.message


def test_cancelling_the_task_closes_the_connection_at_once(layer: Layer, provider: Provider) -> None:
    fake = provider([text("one two three four five", token_seconds=0.4)])

    async def cancel() -> float:
        task = asyncio.create_task(collect(layer.model(NAME), call(layer)))
        while not (fake.calls and fake.calls[0].deltas >= 2):
            await asyncio.sleep(0.01)
        cancelled_at = time.time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(fake.wait_for, lambda: fake.calls[0].disconnected_at, 1)
        return (fake.calls[0].disconnected_at or 0) - cancelled_at

    assert asyncio.run(cancel()) < 1


def test_cancelling_before_the_first_token_closes_the_connection_at_once(layer: Layer, provider: Provider) -> None:
    fake = provider([text("too late", call_seconds=30)])

    async def cancel() -> None:
        task = asyncio.create_task(collect(layer.model(NAME), call(layer)))
        while not fake.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(fake.wait_for, lambda: fake.calls[0].disconnected_at, 1)

    asyncio.run(cancel())


def test_closing_the_iterator_closes_the_connection_at_once(layer: Layer, provider: Provider) -> None:
    fake = provider([text("one two three four five", token_seconds=0.4)])

    async def close() -> None:
        stream: Any = layer.model(NAME).answer(call(layer))
        assert isinstance(await anext(stream), TextDelta)
        await stream.aclose()
        await asyncio.to_thread(fake.wait_for, lambda: fake.calls[0].disconnected_at, 1)

    asyncio.run(close())


def test_a_model_can_be_used_after_a_cancelled_call(layer: Layer, provider: Provider) -> None:
    fake = provider([text("one two three", token_seconds=0.4), text("again")])

    async def twice() -> object:
        task = asyncio.create_task(collect(layer.model(NAME), call(layer)))
        while not (fake.calls and fake.calls[0].deltas >= 2):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return (await collect(layer.model(NAME), call(layer)))[-1]

    answer = asyncio.run(twice())
    assert isinstance(answer, Answer)
    assert answer.text == "again"


def test_event_loops_of_one_process_do_not_share_connections(layer: Layer, provider: Provider) -> None:
    provider(lambda asked: text(asked.user, token_seconds=0.02))
    answers: dict[str, list[str]] = {}

    def work(name: str) -> None:
        async def several() -> None:
            for number in range(3):
                last = (await collect(layer.model(NAME), call(layer, f"{name} {number}")))[-1]
                assert isinstance(last, Answer)
                answers.setdefault(name, []).append(last.text)

        asyncio.run(several())

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {name: [f"{name} {number}" for number in range(3)] for name in ("a", "b", "c")}


def test_a_loop_that_is_gone_leaves_no_client_behind(layer: Layer, provider: Provider) -> None:
    provider()
    model = layer.model(NAME)
    for _ in range(3):
        ask(model, call(layer))
    assert len(vars(model)["_of_loop"]) == 1


def test_a_model_is_made_once_and_an_object_is_itself(layer: Layer, provider: Provider) -> None:
    provider()
    model = layer.model(NAME)
    assert layer.model(NAME) is model
    assert layer.model(model) is model
    assert model.name == NAME


def test_the_sdk_is_told_not_to_retry_for_the_responses_api_too(layer: Layer, provider: Provider) -> None:
    fake = provider(lambda asked: error(500))
    failed = None
    try:
        ask(layer.model("openai:gpt-test"), call(layer))
    except ModelFailure as caught:
        failed = caught
    assert failed is not None
    assert failed.retryable
    assert len(fake.calls) == 1


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mistral:large", "pip install 'celery-orchestrator[mistral]'"),
        ("huggingface:x", "pip install 'pydantic-ai-slim[huggingface]'"),
        ("openai-chat:gpt-test", "OPENAI_API_KEY"),
        ("deepseek:chat", "DEEPSEEK_API_KEY"),
        ("nonsense:x", "nonsense:x"),
        ("gpt-5", "provider:model"),
        ("test", "provider:model"),
    ],
)
def test_a_model_that_cannot_be_used_says_what_to_do(
    layer: Layer, monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError) as wrong:
        layer.model(name)
    assert remedy in str(wrong.value)


def test_a_failed_call_reaches_the_model_as_an_error(layer: Layer, provider: Provider) -> None:
    fake = provider([tools(use("find", x=1), use("find", x=2), use("find", x=3)), text("sorry")])
    first = call(layer, tools=[find])
    model = layer.model(NAME)
    answer = ask(model, first)
    outcomes = [
        Outcome("failed", None, {"code": "ACTION_RESULT_FAILED", "message": "no such order"}),
        Outcome("cancelled", None, {"code": "CANCELLED", "message": ""}),
        Outcome("completed", None),
    ]
    results = [Result(a.provider_id, a.tool, o) for a, o in zip(answer.calls, outcomes, strict=True)]
    history = [*first.history, layer.read(answer.row), layer.read(layer.results_row(results))]
    ask(model, call(layer, history, tools=[find], step=1))
    contents = [m["content"] for m in fake.calls[1].messages if m["role"] == "tool"]
    assert contents == ['{"error":"no such order"}', '{"error":"The call was cancelled."}', ""]


def test_a_summary_is_asked_for_without_tools_and_disturbs_nothing(layer: Layer, provider: Provider) -> None:
    fake = provider([text("ok"), text("They like pears."), text("yes")])
    model = layer.model(NAME)
    history = [layer.read(layer.message_row([Message(("Speak French.",), pinned=True), Message(("q0",))]))]
    for number in range(1, 16):
        outcomes = [Result(f"c{number}", "find", Outcome("completed", f"result {number}"))]
        history += [layer.read(_asking(f"c{number}")), layer.read(layer.results_row(outcomes))]
        history += [layer.read(layer.message_row([Message((f"steer {number}",))]))]
    ask(model, call(layer, history, tools=[find], instructions="Be kind."))
    plan = layer.compaction(history, window_tokens=100_000, used_tokens=90_000, asked=False)
    assert plan is not None
    asked = call(layer, plan.request, instructions=plan.instructions, purpose="summary")
    summary = ask(model, asked).text
    history = [*map(layer.read, layer.compacted(history, plan, summary)), *history[plan.cut :]]
    ask(model, call(layer, history, tools=[find], instructions="Be kind."))
    before, summing, after = (one.messages for one in fake.calls)
    assert [one["role"] for one in summing] == ["system", "user", "user"]
    assert "tools" not in fake.calls[1].body
    assert summing[0]["content"] == plan.instructions
    assert "result 3" in summing[1]["content"]
    assert [one["role"] for one in after[:3]] == ["system", "user", "user"]
    assert after[0]["content"] == "Be kind."
    assert after[1]["content"] == "Speak French."
    assert after[2]["content"].endswith("They like pears.")
    assert len(after) < len(before)
    assert after[-1] == before[-1]
    for place, one in enumerate(after):
        if one["role"] == "tool":
            assert after[place - 1]["tool_calls"][0]["id"] == one["tool_call_id"]


def _asking(name: str) -> bytes:
    part = f'{{"part_kind":"tool-call","tool_name":"find","args":"{{}}","tool_call_id":"{name}"}}'
    return f'{{"kind":"response","parts":[{part}]}}'.encode()


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("openai-chat:gpt-4o", 128_000), ("openai:gpt-4o", 128_000), ("openai-chat:nobody-knows-it", None)],
)
def test_the_window_of_a_model_is_known_without_a_key_where_the_library_knows_it(
    name: str, tokens: int | None, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for _ in range(2):
        assert layer.context_tokens(name) == tokens


@pytest.mark.parametrize("name", ["scripted", "", ":", "nobody:x", "x:", ":x", "anthropic:claude-sonnet-4-5", "a:b:c"])
def test_a_window_that_nobody_knows_breaks_nothing(name: str, layer: Layer) -> None:
    tokens = layer.context_tokens(name)
    assert tokens is None or tokens > 0


def test_a_history_of_a_thousand_messages_is_sent_whole_and_in_order(layer: Layer, provider: Provider) -> None:
    fake = provider([text("ok")])
    history = []
    for number in range(250):
        answer = _answer_row(layer, number)
        history.append(layer.read(layer.message_row([Message((f"question {number}",))])))
        history.append(layer.read(answer.row))
        result = Result(answer.calls[0].provider_id, "find", Outcome("completed", {"n": number}))
        history.append(layer.read(layer.results_row([result])))
        history.append(layer.read(_answer_row(layer, number, text_only=True).row))
    ask(layer.model(NAME), call(layer, [*history, *call(layer, "last").history], tools=[find], instructions="Short."))
    sent = fake.calls[0].messages
    assert len(sent) == 1002
    assert [m["role"] for m in sent[:6]] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [m["content"] for m in sent if m["role"] == "user"] == [*(f"question {n}" for n in range(250)), "last"]
    assert [m["content"] for m in sent if m["role"] == "tool"] == [f'{{"n":{n}}}' for n in range(250)]


def _answer_row(layer: Layer, number: int, *, text_only: bool = False, tool: Tool = find) -> Answer:
    from orchestrator.models.scripted import ScriptedModel, answers, asks

    reply = answers(f"answer {number}") if text_only else asks(tool.name, x=number)
    return ask(ScriptedModel([reply]), call(layer))
