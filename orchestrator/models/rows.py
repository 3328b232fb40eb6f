"""History rows: one message each, as the plain JSON of the library. Nothing is left out, so every version can read it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_core import from_json

from orchestrator.core.event import Outcome
from orchestrator.models import files
from orchestrator.ports import AskedTool, Message, Result

ONE: TypeAdapter[ModelMessage] = TypeAdapter(ModelMessage)


def message_row(messages: Sequence[Message]) -> bytes:
    """What people said, as one row. `metadata` remembers which parts are pinned instructions and not the person's words."""
    parts = [UserPromptPart(_content(message)) for message in messages]
    pinned = [place for place, message in enumerate(messages) if message.pinned]
    return ONE.dump_json(ModelRequest(parts=parts, metadata={"pinned": pinned} if pinned else None))


def _content(message: Message) -> str | list[UserContent]:
    if len(message.texts) == 1 and not message.files:
        return message.texts[0]
    return [files.text_of(message.files[p]) if p in message.files else text for p, text in enumerate(message.texts)]


def results_row(results: Sequence[Result]) -> bytes:
    """The results of one answer's calls, in call order, as one row."""
    return ONE.dump_json(ModelRequest(parts=[_returned(result) for result in results]))


def feedback_row(text: str) -> bytes:
    """Why an answer cannot be used, as one row."""
    part = RetryFeedbackPart(text, retry=RetryInfo(cause="model_retry"))
    return ONE.dump_json(ModelRequest(parts=[part]))


def _returned(result: Result) -> ToolReturnPart:
    outcome = result.outcome
    if outcome.error is None and outcome.status == "completed":
        return ToolReturnPart(result.tool, outcome.output, result.provider_id)
    # "failed" is the one outcome that every provider is told as an error, whether or not it has a field for it.
    return ToolReturnPart(result.tool, _error_text(outcome), result.provider_id, outcome="failed")


def _error_text(outcome: Outcome) -> str:
    for source in (outcome.error, outcome.output):
        match source:
            case {"message": str(text)} if text:
                return text
            case str() if source:
                return source
    return "The call was cancelled." if outcome.status == "cancelled" else "The tool failed."


def read(row: bytes) -> ModelMessage:
    """A row as a message. Raises `ValueError` for one that this version cannot read."""
    try:
        return ONE.validate_json(row)
    except ValidationError as broken:
        first = broken.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'row'}: {first['msg']}") from broken


def calls(message: object) -> tuple[AskedTool, ...]:
    """The tool calls of an answer, in order; none for a message that is not an answer."""
    if not isinstance(message, ModelResponse):
        return ()
    return tuple(
        AskedTool(part.tool_call_id, part.tool_name, parsed(part.args))
        for part in message.parts
        if isinstance(part, ToolCallPart)
    )


def parsed(arguments: object) -> object:
    """The arguments of a call as JSON; the text itself when it was not JSON at all."""
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        return from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return arguments
