"""An agent whose model and tools do what the die says, and a channel that hears some of it and may refuse to."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta

from orchestrator.agent import Agent, App, Limits
from orchestrator.approval import always
from orchestrator.channels import Channel, Event, ReplyTo
from orchestrator.models.scripted import Reply, ScriptedModel, answers, asks, calls, fails
from orchestrator.ports import ModelCall, ModelOutput
from orchestrator.state import state
from orchestrator.tool import Fatal, Tool, ToolContext, ask_question, tool
from tests.property.schedule import Pause

CHANNEL = "desk"
HEARD = ("message.received", "message.completed", "message.discarded", "session.completed")
"""What the channel's handler hears."""
TOOLS = ("note", "slow", "wait", "careful", "careful_wait", "boom", "fatal", "unknown", "note")
GATED = ("gated", "gated_soon", "gated_careful")
"""Tools that need leave for every call."""
QUESTIONS = ("ask_question", "ask_question")
LONG = "and so on " * 60
total = state("property.total", default=int)


def an_app(dice: random.Random, posts: Callable[[Event, ReplyTo], None] | None, window: int | None) -> App:
    """The App of a story: with a channel that is heard by `posts`, and with a model that takes in `window` tokens."""
    channels = []
    if posts is not None:
        channel = Channel(CHANNEL)
        channel.tries = dice.choice([2, 10])

        @channel.on(*HEARD)
        def post(event: Event, to: ReplyTo) -> None:
            posts(event, to)

        channels.append(channel)
    offered = (*TOOLS, *GATED) if dice.random() < 0.4 else TOOLS
    if dice.random() < 0.2:
        offered = (*offered, *QUESTIONS)
    agent = Agent(
        "helper",
        model=Model(dice, counts=window is not None, tools=offered),
        tools=[*the_tools(dice), ask_question],
        limits=Limits(steps=dice.choice([None, 4]), turn_steps=dice.choice([2, 3]))
        if dice.random() < 0.2
        else Limits(),
        user_instructions="Be kind." if dice.random() < 0.3 else "",
        context_window=window,
    )
    return App([agent], channels=channels)


def the_tools(dice: random.Random) -> list[Tool]:
    """One of each kind."""

    @tool
    def note(ctx: ToolContext, text: str) -> str:
        """Note something."""
        total.update(ctx, lambda sum: sum + 1)
        return text

    @tool(timeout=20)
    def slow(ctx: ToolContext, text: str) -> str:
        """A sync tool that may be left behind."""
        ctx.progress(f"{text} so far")
        return f"{text} {LONG}" if dice.random() < 0.3 else text

    @tool(timeout=30)
    async def wait(ctx: ToolContext, text: str) -> str:
        """An async tool."""
        for number in range(dice.randrange(4)):
            await Pause()
            ctx.progress(number)
        return text

    @tool(on_interrupt="report")
    def careful(ctx: ToolContext, text: str) -> str:
        """A tool that must not start twice."""
        return text

    @tool(on_interrupt="report")
    async def careful_wait(text: str) -> str:
        """An async one."""
        await Pause()
        return text

    @tool
    def boom(text: str) -> str:
        """A tool that breaks."""
        raise ValueError(text)

    @tool
    def fatal(text: str) -> str:
        """A tool that ends the turn."""
        raise Fatal(text)

    @tool(approval=always())
    def gated(text: str) -> str:
        """A tool that a person must approve."""
        return text

    @tool(approval=always(expires=timedelta(seconds=40)))
    async def gated_soon(text: str) -> str:
        """One that must be approved soon."""
        await Pause()
        return text

    @tool(approval=always(), on_interrupt="report")
    def gated_careful(text: str) -> str:
        """One that must not start twice either."""
        return text

    return [note, slow, wait, careful, careful_wait, boom, fatal, gated, gated_soon, gated_careful]


class Model:
    """A model that rolls dice. One that `counts` says how long its context is."""

    name = "dice"

    def __init__(self, dice: random.Random, counts: bool, tools: Sequence[str]) -> None:
        self._dice = dice
        self._tools = tools
        self._input_tokens = None if counts else 10

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        dice = self._dice
        reply = self._summary() if call.purpose == "summary" else self._reply(call)
        pieces = dice.randint(1, 4)
        if reply.failure is not None and dice.random() < 0.5:
            # It breaks in the middle of what it says.
            async for out in self._scripted(answers("some words"), 2).answer(call):
                await Pause()
                yield out
                break
        async for out in self._scripted(reply, pieces).answer(call):
            await Pause()
            yield out

    def _scripted(self, reply: Reply, pieces: int) -> ScriptedModel:
        return ScriptedModel(
            [reply] * 24,
            pieces=pieces,
            name=self.name,
            summary=reply,
            input_tokens=self._input_tokens,
        )

    def _reply(self, call: ModelCall) -> Reply:
        dice = self._dice
        if dice.random() < 0.15:
            return fails("broken", retryable=dice.random() < 0.8, retry_after=dice.choice([None, 0.5, 30.0]))
        if call.step >= 3 or dice.random() < 0.45:
            return answers(f"words of {dice.randrange(100)}", reasoning="hm" if dice.random() < 0.2 else "")
        asked = [self._call(dice.choice(self._tools)) for _ in range(dice.randint(1, 3))]
        if dice.random() < 0.1:
            asked.append(asks("note", wrong=1))
        return calls(*asked, text="Let me see." if dice.random() < 0.3 else "")

    def _call(self, name: str) -> Reply:
        dice, said = self._dice, str(self._dice.randrange(100))
        if name in QUESTIONS:
            return asks(name, question=f"{said}?", **({"options": ["red", "blue"]} if dice.random() < 0.5 else {}))
        return asks(name, text=said)

    def _summary(self) -> Reply:
        dice = self._dice
        if dice.random() < 0.35:
            return fails("no summary", retryable=dice.random() < 0.8, retry_after=dice.choice([None, 0.5, 30.0]))
        return answers("" if dice.random() < 0.15 else f"they spoke of {dice.randrange(100)}")
