"""What the tests of models share: a provider to talk to, and a call to make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest

from orchestrator.core.names import SessionId, TurnId
from orchestrator.models import Layer
from orchestrator.ports import Answer, Message, Model, ModelCall, ModelOutput
from orchestrator.tool import Tool
from tests.fake_openai import FakeOpenAI, Script

NAME = "openai-chat:gpt-test"
Provider = Callable[..., FakeOpenAI]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """`provider([text("hello")])`: a server with that script, and the environment that leads to it."""
    started: list[FakeOpenAI] = []

    def start(script: Script = (), **options: Any) -> FakeOpenAI:
        fake = FakeOpenAI(script, **options)
        started.append(fake.__enter__())
        monkeypatch.setenv("OPENAI_BASE_URL", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-the-key-of-this-test")
        return fake

    yield start
    for fake in started:
        fake.__exit__(None, None, None)


@pytest.fixture
def layer() -> Layer:
    """A model layer of this test alone."""
    return Layer()


def call(
    layer: Layer,
    history: Sequence[Any] | str = "hi",
    *,
    tools: Sequence[Tool] = (),
    instructions: str = "",
    step: int = 0,
    tries: int = 0,
    session: str = "ses_1",
    purpose: Literal["answer", "summary"] = "answer",
) -> ModelCall:
    """A call with a history, or with one message of a person."""
    if isinstance(history, str):
        history = [layer.read(layer.message_row([Message((history,))]))]
    box = layer.toolbox(tools)
    return ModelCall(SessionId(session), TurnId("turn_0"), step, tries, instructions, history, box, purpose)


async def collect(model: Model, asked: ModelCall) -> list[ModelOutput]:
    """Everything that an answer brings."""
    return [out async for out in model.answer(asked)]


def ask(model: Model, asked: ModelCall) -> Answer:
    """The answer to a call, in an event loop of its own."""
    *_, last = asyncio.run(collect(model, asked))
    assert isinstance(last, Answer)
    return last
