"""What went wrong with a model call, in our words: whether to try again, when, and what to tell people.

Nothing secret passes: provider texts sometimes repeat the key they refuse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UserError,
)

from orchestrator.models.answers import content_filtered
from orchestrator.ports import ModelFailure

TEXT_LIMIT = 2000
"""Characters of a provider's text that are passed on."""

_AGAIN = frozenset({408, 409, 425, 429})
_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key|ak)[-_][A-Za-z0-9_*-]{8,}|\bAIza[A-Za-z0-9_-]{16,}|(?i:bearer)\s+[^\s'\"]+"
)
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$")


def cut() -> ModelFailure:
    """The stream ended in the middle without an error."""
    return ModelFailure(
        "The model's stream ended before the answer was complete.", retryable=True, details={"name": "StreamCut"}
    )


def stalled(seconds: float) -> ModelFailure:
    """The model has said nothing for too long."""
    return ModelFailure(
        f"The model has been silent for {seconds:g} seconds; the call was cut.",
        retryable=True,
        details={"name": "Stalled"},
    )


def failure(broken: BaseException) -> ModelFailure:
    """Any error of the provider library or of the network as a `ModelFailure`."""
    match broken:
        case ModelFailure():
            return broken
        case ContentFilterError():
            return content_filtered()
        case ModelHTTPError():
            text = _upstream(broken.body) or broken.message
            again = broken.status_code in _AGAIN or broken.status_code >= 500
            return _failure(
                f"The model provider answered {broken.status_code}: {text}",
                broken,
                # Of a 429 that says "your quota is used up" no waiting helps.
                again and not isinstance(broken, ModelQuotaExceededError),
                statusCode=broken.status_code,
                upstreamMessage=text,
                upstreamCode=broken.provider_error_code,
            )
        case ModelConnectionError():
            return _failure(f"The connection to the model provider broke: {_deepest(broken)}", broken, True)
        case ModelAPIError():
            again = not isinstance(broken, ModelRequestRejectedError | ModelQuotaExceededError)
            text = _upstream(broken.body) or str(broken)
            return _failure(
                f"The model provider reported an error: {text}",
                broken,
                again,
                upstreamMessage=text,
                upstreamCode=broken.provider_error_code,
            )
        case UserError():
            return _failure(f"The model cannot be used like this: {broken}", broken, False)
        case AgentRunError():  # an answer that the library cannot make sense of; the next one may be better
            return _failure(f"The model's answer could not be read: {broken}", broken, True)
    if any(isinstance(cause, OSError | TimeoutError) or _is_transport(cause) for cause in _causes(broken)):
        return _failure(f"The connection to the model provider broke: {_deepest(broken)}", broken, True)
    return _failure(f"The model call failed: {type(broken).__name__}: {broken}", broken, False)


def _failure(text: str, broken: BaseException, again: bool, **details: object) -> ModelFailure:
    shown = {"name": type(broken).__name__.lstrip("_"), **{k: v for k, v in details.items() if v is not None}}
    overflow = isinstance(broken, ModelContextWindowExceededError)
    if overflow:
        shown["semanticErrorId"] = "model-context-window-exceeded"
    after = getattr(broken, "retry_after", None) if again else None
    return ModelFailure(
        safe(text),
        retryable=again,
        retry_after=float(after) if isinstance(after, int | float) else None,
        details={key: safe(value) if isinstance(value, str) else value for key, value in shown.items()},
        overflow=overflow,
    )


def safe(text: str) -> str:
    """`text` without anything that looks like a key, or is one of this process's, and of a length that can be shown."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAME.search(name) and value in text:
            text = text.replace(value, "[secret]")
    text = _KEY.sub("[secret]", text)
    return text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "…"


def _upstream(body: object) -> str:
    """The provider's own sentence in the body of an error."""
    match body:
        case {"error": Mapping() as inner}:
            return _upstream(inner)
        case {"message": str(text)} if text:
            return text
        case {"error": str(text)} | {"detail": str(text)}:
            return text
        case str():
            return body.strip()
    return ""


def _causes(broken: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = broken
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _deepest(broken: BaseException) -> str:
    texts = [str(cause) or type(cause).__name__ for cause in _causes(broken)]
    return texts[-1] if texts[-1] != texts[0] else texts[0]


def _is_transport(cause: BaseException) -> bool:
    kinds: tuple[type[Any], ...] = type(cause).__mro__
    return any(kind.__name__ in ("TransportError", "StreamError") and "http" in kind.__module__ for kind in kinds)
