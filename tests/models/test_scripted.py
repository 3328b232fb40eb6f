"""The scripted model: what users write demos and tests with."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from orchestrator.core.event import Outcome
from orchestrator.models import Layer
from orchestrator.models.rows import ONE
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks, calls, fails
from orchestrator.ports import Answer, AskedTool, Message, ModelFailure, ReasoningDelta, Result, TextDelta
from tests.models.conftest import ask, call, collect


class Untouchable(Sequence[Any]):
    """A history that must not be looked at."""

    def __getitem__(self, place: object) -> Any:
        raise AssertionError("the history was read")

    def __len__(self) -> int:
        raise AssertionError("the history was measured")

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the history was walked through")


SCRIPT = [asks("find", order_id="A-1"), answers("On its way.", reasoning="I see")]


def test_a_list_answers_by_the_number_of_the_step_and_needs_no_history(layer: Layer) -> None:
    model = ScriptedModel(SCRIPT)
    for _ in range(2):
        first = ask(model, call(layer, Untouchable(), step=0))
        assert first.calls == (AskedTool("turn_0_0_0", "find", {"order_id": "A-1"}),)
        assert first.finish == "tool-calls"
        second = ask(model, call(layer, Untouchable(), step=1))
        assert (second.text, second.reasoning, second.finish) == ("On its way.", "I see", "stop")
        assert second.usage.output > 0


def test_after_the_end_of_the_list_the_call_fails_for_good(layer: Layer) -> None:
    with pytest.raises(ModelFailure, match=r"over.*2 replies.*step 2") as failed:
        ask(ScriptedModel(SCRIPT), call(layer, step=2))
    assert not failed.value.retryable


@pytest.mark.parametrize(
    "reply",
    [
        answers('Hé "you"\n\\', reasoning="a\tb"),
        asks("find", x=1, deep={"a": [None, True, 1.5, "é"]}),
        calls(asks("a"), asks("b", tool="t"), text="I look."),
    ],
)
def test_rows_are_as_the_library_writes_them(layer: Layer, reply: Reply) -> None:
    answer = ask(ScriptedModel([reply], name='my "model"'), call(layer))
    message = layer.read(answer.row)
    assert layer.calls(message) == answer.calls
    ours, theirs = json.loads(answer.row), json.loads(ONE.dump_json(message))
    assert {key: theirs[key] for key in ours} == ours
    assert message.model_name == 'my "model"'
    assert message.timestamp.timestamp() == pytest.approx(time.time(), abs=60)


def test_several_calls_in_one_reply_keep_their_order_and_have_ids_of_their_own(layer: Layer) -> None:
    for reply in (asks("a", x=1) & asks("b", y=2), calls(asks("a", x=1), asks("b", y=2))):
        answer = ask(ScriptedModel([reply]), call(layer))
        assert [(c.tool, c.input) for c in answer.calls] == [("a", {"x": 1}), ("b", {"y": 2})]
        assert len({c.provider_id for c in answer.calls}) == 2


def test_a_text_can_stand_beside_calls(layer: Layer) -> None:
    for reply in (answers("I look.") & asks("a"), calls(asks("a"), text="I look.")):
        answer = ask(ScriptedModel([reply]), call(layer))
        assert (answer.text, answer.finish, len(answer.calls)) == ("I look.", "tool-calls", 1)


def test_a_function_sees_the_conversation(layer: Layer) -> None:
    seen: list[dict[str, Any]] = []

    def script(talk: Conversation) -> Reply:
        names = ("step", "turn", "message", "messages", "results", "answers", "instructions", "tries")
        seen.append({name: getattr(talk, name) for name in names})
        return asks("a", x=1) & asks("b", x=2) if talk.step == 0 else answers(f"{len(talk.results)} results")

    model = ScriptedModel(script)
    row = layer.message_row([Message(("Speak French.",), pinned=True), Message(("hello",))])
    history = [layer.read(row)]
    first = ask(model, call(layer, history, instructions="Be kind."))
    outcomes = [Outcome("completed", {"n": 1}), Outcome("failed", None, {"code": "X", "message": "broken"})]
    results = [Result(c.provider_id, c.tool, o) for c, o in zip(first.calls, outcomes, strict=True)]
    history += [layer.read(first.row), layer.read(layer.results_row(results))]
    history += [layer.read(layer.message_row([Message(("and", "quickly"))]))]
    assert ask(model, call(layer, history, step=1, tries=3)).text == "2 results"
    assert seen[0] == {
        "step": 0,
        "turn": "turn_0",
        "message": "hello",
        "messages": ["hello"],
        "results": [],
        "answers": 0,
        "instructions": "Be kind.",
        "tries": 0,
    }
    assert seen[1]["message"] == "and\nquickly"
    assert seen[1]["messages"] == ["hello", "and\nquickly"]
    assert seen[1]["results"] == [("a", {"n": 1}), ("b", "broken")]
    assert (seen[1]["answers"], seen[1]["tries"]) == (1, 3)


def test_a_reply_takes_its_time_and_comes_in_its_pieces(layer: Layer) -> None:
    model = ScriptedModel([answers("abcdefgh", reasoning="xy", seconds=0.1, pieces=4)])
    begun = time.monotonic()
    outputs = asyncio.run(collect(model, call(layer)))
    assert time.monotonic() - begun >= 0.1
    assert [o.text for o in outputs if isinstance(o, TextDelta)] == ["ab", "cd", "ef", "gh"]
    assert "".join(o.text for o in outputs if isinstance(o, ReasoningDelta)) == "xy"
    assert isinstance(outputs[-1], Answer)


def test_the_models_own_timing_holds_where_the_reply_has_none(layer: Layer) -> None:
    model = ScriptedModel([answers("abcd")], pieces=2)
    assert [o.text for o in asyncio.run(collect(model, call(layer))) if isinstance(o, TextDelta)] == ["ab", "cd"]


def test_a_slow_reply_can_be_cancelled_at_once(layer: Layer) -> None:
    async def cancel() -> float:
        task = asyncio.create_task(collect(ScriptedModel([answers("a b", seconds=60, pieces=2)]), call(layer)))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - begun

    assert asyncio.run(cancel()) < 1


def test_a_failure_is_scripted_with_what_it_says_of_trying_again(layer: Layer) -> None:
    with pytest.raises(ModelFailure, match="busy") as failed:
        ask(ScriptedModel([fails("busy", retry_after=2.5)]), call(layer))
    assert (failed.value.retryable, failed.value.retry_after) == (True, 2.5)
    with pytest.raises(ModelFailure, match="never") as failed:
        ask(ScriptedModel([fails("never", retryable=False)]), call(layer))
    assert not failed.value.retryable


def test_a_failure_can_pass_after_some_tries(layer: Layer) -> None:
    model = ScriptedModel([fails("busy", times=2, then=answers("hi"))])
    for tries in (0, 1):
        with pytest.raises(ModelFailure):
            ask(model, call(layer, tries=tries))
    assert ask(model, call(layer, tries=2)).text == "hi"
    with pytest.raises(ValueError, match="belong together"):
        fails("busy", times=2)


def test_it_fails_on_an_empty_answer_and_on_too_many_calls_like_a_real_model(layer: Layer) -> None:
    for reply in (answers("", finish="length"), calls(*[asks("a")] * 129)):
        with pytest.raises(ModelFailure) as failed:
            ask(ScriptedModel([reply]), call(layer))
        assert not failed.value.retryable


def test_it_may_stop_without_a_word(layer: Layer) -> None:
    answer = ask(ScriptedModel([answers(" ")]), call(layer))
    assert (answer.row, answer.finish, answer.calls) == (b"", "stop", ())


def test_a_summary_is_said_without_the_script_and_moves_nothing_on(layer: Layer) -> None:
    def script(talk: Conversation) -> Reply:
        raise AssertionError("the script was asked for a summary")

    for model in (ScriptedModel([]), ScriptedModel(SCRIPT), ScriptedModel(script)):
        for step in (0, 7):
            answer = ask(model, call(layer, "all of it", step=step, purpose="summary"))
            assert (answer.text, answer.calls, answer.finish) == ("Summary of 1 messages.", (), "stop")
    model = ScriptedModel(SCRIPT)
    ask(model, call(layer, purpose="summary"))
    assert ask(model, call(layer, step=1)).text == "On its way."


def test_a_script_can_have_a_summary_of_its_own(layer: Layer) -> None:
    asked = call(layer, "all of it", purpose="summary", instructions="Sum it up.")
    assert ask(ScriptedModel(SCRIPT, summary=answers("Pears.")), asked).text == "Pears."

    def summary(talk: Conversation) -> Reply:
        return answers(f"{talk.compacting} {talk.sums_up} {talk.message} {talk.instructions}")

    assert ask(ScriptedModel(SCRIPT, summary=summary), asked).text == "True 1 all of it Sum it up."
    failing = ScriptedModel(SCRIPT, summary=fails("busy", times=1, then=answers("Pears.")))
    with pytest.raises(ModelFailure, match="busy"):
        ask(failing, asked)
    assert ask(failing, call(layer, purpose="summary", tries=1)).text == "Pears."


def test_a_summary_is_no_word_of_the_person_and_a_script_can_read_it(layer: Layer) -> None:
    seen: list[object] = []

    def script(talk: Conversation) -> Reply:
        seen.append((talk.compacting, talk.sums_up, talk.message, talk.messages, talk.summary[-6:]))
        return answers("ok")

    history = [layer.read(layer.message_row([Message((text,))])) for text in "abcdefghijklmno"]
    history[1::2] = [layer.read(ask(ScriptedModel([answers("ok")]), call(layer)).row) for _ in history[1::2]]
    ask(ScriptedModel(script), call(layer, history))
    made = layer.compaction(history, window_tokens=1_000, used_tokens=None, asked=True)
    assert made is not None
    history = [*map(layer.read, layer.compacted(history, made, "Pears.")), *history[made.cut :]]
    ask(ScriptedModel(script), call(layer, history))
    assert seen == [
        (False, 0, "o", ["a", "c", "e", "g", "i", "k", "m", "o"], ""),
        (False, 0, "o", ["e", "g", "i", "k", "m", "o"], "Pears."),
    ]


def test_the_tokens_it_reports_can_be_chosen_or_counted(layer: Layer) -> None:
    assert ask(ScriptedModel(SCRIPT), call(layer, Untouchable())).usage.input == 10
    assert ask(ScriptedModel(SCRIPT, input_tokens=90_000), call(layer, Untouchable())).usage.input == 90_000
    results = [Result("c", "find", Outcome("completed", {"list": ["x" * 400]}))]
    history = [layer.read(layer.message_row([Message(("x" * 400,))])), layer.read(layer.results_row(results))]
    counted = ask(ScriptedModel(SCRIPT, input_tokens=None), call(layer, history, instructions="x" * 400))
    assert 300 <= counted.usage.input <= 310


def test_a_model_is_instant_unless_something_of_it_takes_time() -> None:
    assert ScriptedModel(SCRIPT).instant
    assert ScriptedModel(SCRIPT, summary=answers("Pears.")).instant
    assert not ScriptedModel(SCRIPT, summary=answers("Pears.", seconds=1)).instant
    assert not ScriptedModel(SCRIPT, summary=lambda talk: answers("Pears.")).instant


def test_a_scripted_answer_needs_no_provider_library() -> None:
    program = """
import asyncio, sys
from orchestrator.models import Layer
from orchestrator.models.scripted import ScriptedModel, asks
from orchestrator.ports import ModelCall
model = Layer().model(ScriptedModel([asks("find", x=1)]))
async def main():
    return [out async for out in model.answer(ModelCall("s", "turn_0", 0, 0, "", [], None))]
assert asyncio.run(main())[-1].calls
print([name for name in sys.modules if name.startswith(("pydantic", "openai", "httpx"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_provider_is_loaded_only_when_its_model_is_asked_for() -> None:
    program = """
import os, sys
from orchestrator.models import Layer
layer = Layer()
layer.toolbox([])
layer.message_row([])
print("openai" in sys.modules)
os.environ["OPENAI_API_KEY"] = "x"
layer.model("openai-chat:gpt-test")
print("openai" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
