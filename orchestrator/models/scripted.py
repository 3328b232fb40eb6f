"""A model that follows a script: for demos and tests. No key, no network, the same answers every time.

    ScriptedModel([asks("find_order", order_id="A-1"), answers("It is on its way.")])

The script starts again with each turn and its place is the step's number, so it needs no memory: another worker goes on
where the first one died. A function is a script too:

    ScriptedModel(lambda talk: answers(f"You said {talk.message}, for the {len(talk.messages)}. time."))

When a long history is summed up the script is not asked and does not move on; what is said then is `summary`:

    ScriptedModel(script, summary=lambda talk: answers(f"{talk.sums_up} messages, the last of them about pears."))
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, cast

from orchestrator.core.snapshot import Usage
from orchestrator.models import answers as rules
from orchestrator.ports import Answer, AskedTool, ModelCall, ModelFailure, ModelOutput, ReasoningDelta, TextDelta

__all__ = ["Conversation", "Reply", "ScriptedModel", "answers", "asks", "calls", "delivers", "fails"]


RESULT = ""
"""In place of a tool's name: whatever the result is delivered by."""
Finish = Literal["stop", "length", "content_filter"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says at one step. Made by `answers`, `asks`, `calls`, `delivers`, `fails`; `a & b` says both at once."""

    text: str = ""
    reasoning: str = ""
    asked: tuple[tuple[str, object], ...] = ()
    seconds: float | None = None
    pieces: int | None = None
    failure: ModelFailure | None = None
    times: int | None = None
    then: Reply | None = None
    finish: Finish = "stop"

    def __and__(self, other: Reply) -> Reply:
        """Both in one answer: texts joined, calls in order. The timing is the first one's that has any."""
        return replace(
            self,
            text=self.text + other.text,
            reasoning=self.reasoning + other.reasoning,
            asked=self.asked + other.asked,
            seconds=other.seconds if self.seconds is None else self.seconds,
            pieces=other.pieces if self.pieces is None else self.pieces,
            failure=self.failure or other.failure,
            finish=other.finish if self.finish == "stop" else self.finish,
        )


def answers(
    text: str,
    *,
    reasoning: str = "",
    seconds: float | None = None,
    pieces: int | None = None,
    finish: Finish = "stop",
) -> Reply:
    """A final text. `seconds` and `pieces` say how long it takes and in how many deltas it comes (else the model's own).

    `finish="length"`: it was cut; `finish="content_filter"`: what was said so far is none, and the call fails.
    """
    return Reply(text, reasoning, seconds=seconds, pieces=pieces, finish=finish)


def asks(tool: str, /, **arguments: object) -> Reply:
    """One tool call. Arguments are plain JSON values; they reach the tool checked, as a real model's would."""
    return Reply(asked=((tool, arguments),))


def delivers(result: object) -> Reply:
    """The result that the turn owes (`outputSchema`), any JSON value."""
    return Reply(asked=((RESULT, result),))


def calls(*asked: Reply, text: str = "", reasoning: str = "") -> Reply:
    """Several tool calls in one answer, with a text beside them if you like."""
    made = Reply(text, reasoning)
    for each in asked:
        made = made & each
    return made


def fails(
    text: str,
    *,
    retryable: bool = True,
    retry_after: float | None = None,
    times: int | None = None,
    then: Reply | None = None,
    overflow: bool = False,
) -> Reply:
    """A failing call. With `times=2, then=answers("hi")` the first two tries of the step fail and the third says hi.

    With `overflow` it fails because the history is too long for the model.
    """
    if (times is None) != (then is None):
        raise ValueError("fails(): `times` and `then` belong together: how often it fails, and what comes after that.")
    failure = ModelFailure(
        text, retryable=retryable, retry_after=retry_after, details={"name": "Scripted"}, overflow=overflow
    )
    return Reply(failure=failure, times=times, then=then)


class Conversation:
    """What a script may look at. Everything is read from the call when asked for, so an unused field costs nothing."""

    __slots__ = ("_call",)

    def __init__(self, call: ModelCall) -> None:
        self._call = call

    @property
    def step(self) -> int:
        """The number of this model call in its turn, from 0."""
        return self._call.step

    @property
    def turn(self) -> str:
        """The id of the turn: `turn_0`, `turn_1`, ..."""
        return self._call.turn

    @property
    def tries(self) -> int:
        """How often this step has failed before."""
        return self._call.tries

    @property
    def instructions(self) -> str:
        """The instructions as they are sent to the model."""
        return self._call.instructions

    @property
    def context(self) -> list[str]:
        """What came beside the messages of this turn, for this turn only."""
        return list(self._call.context)

    @property
    def owes_result(self) -> bool:
        """Whether this turn must deliver a result that fits a schema."""
        return bool(self._call.tools.result_tool)

    @property
    def compacting(self) -> bool:
        """Whether a summary of the history is wanted and no answer. `message` and `messages` are then what is to be summed up."""
        return self._call.purpose == "summary"

    @property
    def sums_up(self) -> int:
        """How many messages the summary is of, 0 where none is wanted."""
        if not self.compacting:
            return 0
        return sum((message.metadata or {}).get("sums_up", 1) for message in self._call.history)

    @property
    def summary(self) -> str:
        """The summary that the history begins with, as the model reads it; "" where nothing was summed up yet."""
        found = (text for message in self._call.history for text in _user_texts(message, "summary"))
        return next(found, "")

    @property
    def message(self) -> str:
        """The last thing that the person said, "" before the first."""
        for message in reversed(self._call.history):
            for text in reversed(list(_said(message))):
                return text
        return ""

    @property
    def messages(self) -> list[str]:
        """Everything that the person said, oldest first."""
        return [text for message in self._call.history for text in _said(message)]

    @property
    def results(self) -> list[tuple[str, Any]]:
        """The results of the previous step's calls, in call order, as (tool, output). Empty at step 0."""
        if self._call.step == 0:
            return []
        found: list[tuple[str, Any]] = []
        for message in reversed(self._call.history):
            if message.kind == "response":
                break
            found[:0] = [(part.tool_name, part.content) for part in message.parts if part.part_kind == "tool-return"]
        return found

    @property
    def answers(self) -> int:
        """How many answers the model has given in this conversation."""
        return sum(message.kind == "response" for message in self._call.history)


Script = Sequence[Reply] | Callable[[Conversation], Reply]
Summary = Reply | Callable[[Conversation], Reply]


class ScriptedModel:
    """A model that answers from `script`: a list of replies that starts again each turn, or a function of the conversation.

    An answer takes `seconds` and comes in `pieces` deltas. After the end of a list the call fails, and is not tried again.
    The tokens it reports are invented: `input_tokens` in, a quarter of the characters out. With `input_tokens=None` it
    counts a quarter of the characters that it was given. Each answer costs `cost_usd`. `summary` is what it says when a
    history is summed up; "Summary of 12 messages." without it.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        seconds: float = 0.0,
        pieces: int = 1,
        summary: Summary | None = None,
        input_tokens: int | None = 10,
        cost_usd: float = 0.0,
    ) -> None:
        self._script = script if callable(script) else tuple(script)
        self._summary = summary
        self._input_tokens = input_tokens
        self._micro_usd = round(cost_usd * 1_000_000)
        self._name = name
        self.seconds = seconds
        self.pieces = pieces
        # A function may do what it likes, so it is never called instant.
        self.instant = (
            isinstance(self._script, tuple)
            and seconds <= 0
            and not any(reply.seconds for reply in self._script)
            and (summary is None or (isinstance(summary, Reply) and not summary.seconds))
        )

    @property
    def name(self) -> str:
        """As the stream shows it."""
        return self._name

    def __repr__(self) -> str:
        return f"ScriptedModel({self._name!r})"

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        """Stream the scripted reply of this step."""
        reply = self._reply(call)
        seconds = self.seconds if reply.seconds is None else reply.seconds
        pieces = max(1, self.pieces if reply.pieces is None else reply.pieces)
        if seconds <= 0 and pieces == 1:
            if reply.reasoning:
                yield ReasoningDelta(reply.reasoning)
            if reply.text:
                yield TextDelta(reply.text)
        else:
            for number in range(pieces):
                if seconds > 0:
                    await asyncio.sleep(seconds / pieces)
                if reasoning := _piece(reply.reasoning, number, pieces):
                    yield ReasoningDelta(reasoning)
                if text := _piece(reply.text, number, pieces):
                    yield TextDelta(text)
        yield self._answer(call, reply)

    def _reply(self, call: ModelCall) -> Reply:
        if call.purpose == "summary":
            reply = self._summary_of(Conversation(call))
        elif callable(self._script):
            reply = self._script(Conversation(call))
        elif call.step < len(self._script):
            reply = self._script[call.step]
        else:
            raise ModelFailure(
                f"The script of {self._name!r} is over: it has {len(self._script)} replies, this is step {call.step}.",
                retryable=False,
                details={"name": "ScriptOver"},
            )
        if not isinstance(cast(object, reply), Reply):
            raise ModelFailure(
                f"The script of {self._name!r} returned {type(reply).__name__}. It must return what `answers`, `asks` or `calls` make.",
                retryable=False,
                details={"name": "NoReply"},
            )
        if reply.then is not None and reply.times is not None and call.tries >= reply.times:
            reply = reply.then
        if reply.failure is not None:
            broken = reply.failure
            raise ModelFailure(
                broken.message,
                retryable=broken.retryable,
                retry_after=broken.retry_after,
                details=broken.details,
                overflow=broken.overflow,
            )
        return reply

    def _summary_of(self, talk: Conversation) -> Reply:
        match self._summary:
            case None:
                return answers(f"Summary of {talk.sums_up} messages.")
            case Reply() as reply:
                return reply
            case script:
                return script(talk)

    def _answer(self, call: ModelCall, reply: Reply) -> Answer:
        asked = tuple(
            AskedTool(f"{call.turn}_{call.step}_{place}", _name(call, tool), arguments)
            for place, (tool, arguments) in enumerate(reply.asked)
        )
        if reply.finish == "content_filter":
            raise rules.content_filtered()
        rules.check(reply.text, asked, reply.finish)
        finish = rules.finish_of(reply.finish, asked)
        given = _tokens(call) if self._input_tokens is None else self._input_tokens
        usage = Usage(input=given, output=1 + len(reply.text) // 4, micro_usd=self._micro_usd)
        row = b"" if rules.is_empty(reply.text, asked) else _row(self._name, reply, asked, usage)
        return Answer(row, reply.text, reply.reasoning, finish, usage, asked)


def _piece(text: str, number: int, pieces: int) -> str:
    return text[len(text) * number // pieces : len(text) * (number + 1) // pieces]


def _said(message: Any) -> Iterator[str]:
    yield from _user_texts(message, "")


def _user_texts(message: Any, mark: str) -> Iterator[str]:
    """The texts of a request with that mark, "" for none: those are what the person said."""
    if message.kind != "request":
        return
    marks = {place: name for name, places in (message.metadata or {}).items() if name in _MARKS for place in places}
    for place, part in enumerate(message.parts):
        if part.part_kind == "user-prompt" and marks.get(place, "") == mark:
            content = part.content
            yield (
                content if isinstance(content, str) else "\n".join(piece for piece in content if isinstance(piece, str))
            )


def _tokens(call: ModelCall) -> int:
    return (len(call.instructions) + sum(_length(part) for message in call.history for part in message.parts)) // 4


def _length(part: Any) -> int:
    values = (getattr(part, "content", None), getattr(part, "args", None))
    return sum(len(value if isinstance(value, str) else json.dumps(value, default=str)) for value in values if value)


_MARKS = ("pinned", "summary")


# The row is written here and not by the library: it is the same JSON (a test compares them), at a tenth of the cost and
# without importing it.

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_TEXT = '{"content":%s,"id":null,"provider_name":null,"provider_details":null,"citations":null,"part_kind":"text"}'
_THINKING = (
    '{"content":%s,"id":null,"signature":null,"provider_name":null,"provider_details":null,"part_kind":"thinking"}'
)
_CALL = (
    '{"tool_name":%s,"args":%s,"tool_call_id":%s,"tool_kind":null,"id":null,"provider_name":null,'
    '"provider_details":null,"part_kind":"tool-call"}'
)
_ROW = (
    '{"parts":[%s],"usage":{"input_tokens":%d,"cache_write_tokens":0,"cache_write_1h_tokens":0,"cache_read_tokens":0,'
    '"output_tokens":%d,"output_reasoning_tokens":0,"input_audio_tokens":0,"cache_audio_read_tokens":0,'
    '"output_audio_tokens":0,"audio_seconds":0.0,"details":{},"cost":null},"model_name":%s,"model_id":null,'
    '"timestamp":"%s","kind":"response","provider_name":null,"provider_url":null,"canonical_system":null,'
    '"provider_details":null,"provider_response_id":null,"finish_reason":"%s","run_id":null,"conversation_id":null,'
    '"metadata":null,"workspace_ref":null,"history_digest":null,"failed_attempts":null,"state":"complete"}'
)


def _name(call: ModelCall, tool: str) -> str:
    return tool if tool != RESULT else call.tools.result_tool or "final_result"


def _arguments(given: object) -> str:
    """An object, or any other value as its text: so the library has them."""
    return _encode(given) if isinstance(given, Mapping) else _encode(_encode(given))


def _row(name: str, reply: Reply, asked: Sequence[AskedTool], usage: Usage) -> bytes:
    parts = []
    if reply.reasoning:
        parts.append(_THINKING % _encode(reply.reasoning))
    if reply.text:
        parts.append(_TEXT % _encode(reply.text))
    parts += [_CALL % (_encode(call.tool), _arguments(call.input), _encode(call.provider_id)) for call in asked]
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    finish = "tool_call" if asked and reply.finish == "stop" else reply.finish
    return (_ROW % (",".join(parts), usage.input, usage.output, _encode(name), now, finish)).encode()
