"""A provider's model: one request, streamed, its errors told apart.

Retries are not made here: SDK clients are told not to, the step's own retries are durable and honour `retry_after`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from decimal import Decimal
from typing import TypeVar

from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model as LibraryModel
from pydantic_ai.models import ModelRequestParameters, StreamedResponse, infer_model, infer_model_profile
from pydantic_ai.settings import ModelSettings

from orchestrator.core.snapshot import Usage
from orchestrator.errors import ConfigError
from orchestrator.models import answers as rules
from orchestrator.models import failures, files, rows
from orchestrator.models.history import Repairs
from orchestrator.models.results import ResultTools
from orchestrator.models.toolbox import Tools
from orchestrator.ports import Answer, ModelCall, ModelFailure, ModelOutput, ReasoningDelta, TextDelta

log = logging.getLogger(__name__)

STALL_SECONDS = 600.0
"""A model that says nothing for so long is cut, and the call tried again."""

MOST_REFUSED = 10_000
"""Files of which is remembered that the model does not take them."""
NOT_THE_FILES = frozenset({401, 402, 403, 404})
"""What a provider answers when it would have refused the request without files as well."""

OUR_EXTRAS = frozenset({"anthropic", "bedrock", "cohere", "google", "groq", "mistral", "openai", "xai"})

T = TypeVar("T")


class ProviderModel:
    """A model by its pydantic-ai name. Safe to use from several threads and event loops.

    Connections belong to the loop that opened them, so every loop has a client of its own. A request's CPU grows with the
    history in the provider's SDK (0.2 ms a message for openai), on the loop: that is what compaction is for.
    """

    def __init__(self, name: str, *, repairs: Repairs | None = None, stall_seconds: float = STALL_SECONDS) -> None:
        self._name = name
        self._stall_seconds = stall_seconds
        self._repairs = repairs or Repairs()
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self._of_loop: dict[asyncio.AbstractEventLoop, LibraryModel] = {}
        # Made here, outside of any loop, so that a wrong name or a missing key is known before the first turn.
        self._spare: LibraryModel | None = resolve(name)
        self._settings = _settings(self._spare)

    @property
    def name(self) -> str:
        """The name it was asked for by."""
        return self._name

    def __repr__(self) -> str:
        return f"ProviderModel({self._name!r})"

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        """Stream an answer: deltas, then exactly one `Answer`. Raises `ModelFailure`."""
        try:
            async with AsyncExitStack() as stack:
                stream = await self._begin(stack, call)
                events = aiter(stream)
                while (event := await self._in_time(_next(events))) is not None:
                    if (delta := _delta(event)) is not None:
                        yield delta
                answer = complete(stream.get())
        except ModelFailure:
            raise
        except Exception as broken:
            raise failures.failure(broken) from broken
        yield answer

    async def _begin(self, stack: AsyncExitStack, call: ModelCall) -> StreamedResponse:
        """The answer's stream. A request that is refused with files in it is made once more without them: a session must not be stuck
        because of a file that its model does not take."""
        messages = self._repairs.sendable(call.session, call.history, call.instructions, call.context)
        if not call.files:
            return await self._in_time(stack.enter_async_context(self._request(call, messages)))
        shown = call.files.keys() - self._refused
        try:
            with_files = files.filled(messages, call.files, self._refused)
            return await self._in_time(stack.enter_async_context(self._request(call, with_files)))
        except Exception as broken:
            failure = failures.failure(broken)
            if not shown or failure.retryable or failure.overflow or failure.details.get("statusCode") in NOT_THE_FILES:
                raise
            log.warning("%s: %s does not take the files of this request: %s", call.session, self._name, failure)
            without_files = files.filled(messages, call.files, call.files.keys())
            stream = await self._in_time(stack.enter_async_context(self._request(call, without_files)))
            if len(self._refused) > MOST_REFUSED:
                self._refused.clear()
            self._refused |= shown
            return stream

    def _request(self, call: ModelCall, messages: list[ModelMessage]) -> AbstractAsyncContextManager[StreamedResponse]:
        parameters = call.tools.parameters if isinstance(call.tools, Tools | ResultTools) else ModelRequestParameters()
        return model_request_stream(
            self._here(),
            messages,
            model_settings=self._settings,
            model_request_parameters=parameters,
        )

    async def _in_time(self, waiting: Awaitable[T]) -> T:
        limit = asyncio.timeout(self._stall_seconds)
        try:
            async with limit:
                return await waiting
        except TimeoutError as late:
            if limit.expired():
                raise failures.stalled(self._stall_seconds) from late
            raise

    def _here(self) -> LibraryModel:
        """The model whose connections are the running loop's."""
        loop = asyncio.get_running_loop()
        with self._lock:
            model = self._of_loop.get(loop)
            if model is None:
                for other in [other for other in self._of_loop if other.is_closed()]:
                    del self._of_loop[other]
                model, self._spare = self._spare or resolve(self._name), None
                self._of_loop[loop] = model
            return model


async def _next(events: AsyncIterator[ModelResponseStreamEvent]) -> ModelResponseStreamEvent | None:
    return await anext(events, None)


def _delta(event: ModelResponseStreamEvent) -> TextDelta | ReasoningDelta | None:
    match event:
        case (
            PartStartEvent(part=TextPart(content=str(text)))
            | PartDeltaEvent(delta=TextPartDelta(content_delta=str(text)))
        ) if text:
            return TextDelta(_storable(text))
        case (
            PartStartEvent(part=ThinkingPart(content=str(text)))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
        ) if text:
            return ReasoningDelta(_storable(text))
    return None


def complete(response: ModelResponse) -> Answer:
    """The answer that a finished stream has brought. Raises `ModelFailure` when it is none to go on from."""
    if _was_cut(response):
        raise failures.cut()
    if response.finish_reason == "content_filter":
        raise rules.content_filtered()
    response = _with_own_ids(replace(response, parts=[_storable_part(part) for part in response.parts]))
    calls = rows.calls(response)
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    reasoning = "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))
    rules.check(text, calls, response.finish_reason or "")
    finish = rules.finish_of(response.finish_reason or "", calls)
    row = b"" if rules.is_empty(text, calls) else rows.ONE.dump_json(response)
    return Answer(row, text, reasoning, finish, _usage(response), calls)


def _was_cut(response: ModelResponse) -> bool:
    """Whether the stream just ended. Not every server closes a broken one with an error.

    The library writes "stop" where a chat server sent no reason at all; its `provider_details` have what was sent. A
    server that never sends reasons still ends its streams with the usage.
    """
    if response.state not in ("complete", "suspended"):
        return True
    if (response.provider_details or {}).get("finish_reason"):
        return False
    if response.finish_reason is None:
        return True
    return response.finish_reason == "stop" and response.usage.unmeasured_requests > 0


def _storable(text: str) -> str:
    """`text` as UTF-8 can hold it: a server may send half of a character, or its two halves one by one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _storable_part(part: ModelResponsePart) -> ModelResponsePart:
    match part:
        case TextPart() | ThinkingPart() if (content := _storable(part.content)) is not part.content:
            return replace(part, content=content)
        case ToolCallPart(args=str(args)) if (storable := _storable(args)) is not args:
            return replace(part, args=storable)
    return part


def _with_own_ids(response: ModelResponse) -> ModelResponse:
    given = [part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart)]
    own = rules.own_ids(given)
    if own == given:
        return response
    names = iter(own)
    parts = [
        replace(part, tool_call_id=next(names)) if isinstance(part, ToolCallPart) else part for part in response.parts
    ]
    return replace(response, parts=parts)


def _usage(response: ModelResponse) -> Usage:
    usage = response.usage
    return Usage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        unmeasured=min(1, usage.unmeasured_requests),
        micro_usd=_micro_usd(response),
    )


def _micro_usd(response: ModelResponse) -> int:
    """What the answer cost: as a gateway has told it, else by the price lists that the library brings along; 0 where neither knows."""
    told = response.usage.cost
    try:
        price = response.cost().total_price if told is None else Decimal(told)
    except (LookupError, ValueError, AssertionError, ArithmeticError):
        return 0
    return max(0, round(price * 1_000_000))


def resolve(name: str) -> LibraryModel:
    """A new model of the library by name, whose client does not retry by itself. Raises `ConfigError`."""
    if name == "test" or ":" not in name:
        raise ConfigError(
            problem=f"{name!r} is no name of a model.",
            remedy="Write provider:model, for instance openai-chat:gpt-5 or anthropic:claude-sonnet-5.",
        )
    try:
        model = infer_model(name)
    except ImportError as missing:
        raise ConfigError(
            problem=f"The model {name!r} needs a package.", remedy=_install(name, str(missing))
        ) from missing
    except UserError as wrong:
        raise ConfigError(problem=f"The model {name!r} cannot be used.", remedy=_set(str(wrong))) from wrong
    except Exception as broken:
        raise ConfigError(
            problem=f"The model {name!r} cannot be used: {failures.safe(str(broken))}",
            remedy="Set what its provider asks for.",
        ) from broken
    client = _client(model)
    if isinstance(getattr(client, "max_retries", None), int):
        client.max_retries = 0  # type: ignore[attr-defined]  # the SDKs of openai, anthropic and groq have it
    return model


def context_tokens(name: str) -> int | None:
    """How many tokens a model takes in at once, where the library's tables know it. Makes no client and asks nobody."""
    try:
        return infer_model_profile(name).get("context_window")
    except (ImportError, UserError, ValueError):
        return None


def _client(model: LibraryModel) -> object:
    provider = model.provider
    try:
        return provider.client if provider is not None else None
    except (AttributeError, NotImplementedError):
        return None


def _settings(model: LibraryModel) -> ModelSettings:
    """The same for clients without that field: asked for with each request, where the model knows the setting."""
    if isinstance(getattr(_client(model), "max_retries", None), int) or "max_retries" in model.unsupported_settings:
        return ModelSettings()
    return ModelSettings(max_retries=0)


def _install(name: str, text: str) -> str:
    found = re.search(r"pydantic-ai-slim\[([\w-]+)", text)
    extra = found.group(1) if found else name.partition(":")[0]
    if extra in OUR_EXTRAS:
        return f"Install it: pip install 'celery-orchestrator[{extra}]'"
    return f"Install it: pip install 'pydantic-ai-slim[{extra}]'"


def _set(text: str) -> str:
    found = re.search(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`", text)
    if found:
        return f"Set the environment variable {found.group(1)}."
    return text.partition("\n")[0]
