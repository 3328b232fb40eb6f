"""What is true of every complete answer, whichever model gave it: one door, so that the scripted model and real ones agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.core.snapshot import MAX_CALLS
from orchestrator.ports import AskedTool, ModelFailure


def own_ids(given: Iterable[str]) -> list[str]:
    """The provider's call ids of one answer, made unique in it: results are paired with calls by them.

    A provider may send none, or the same one twice. An id that another answer also uses stays as it is.
    """
    taken: set[str] = set()
    unique: list[str] = []
    for place, name in enumerate(given):
        chosen = name or f"call_{place}"
        again = 1
        while chosen in taken:
            again += 1
            chosen = f"{name or 'call'}_{again}"
        taken.add(chosen)
        unique.append(chosen)
    return unique


def finish_of(reason: str, calls: Sequence[AskedTool]) -> str:
    """Why an answer ended, in our words. One that was cut by its length may lack the end of a call: none of its calls is run."""
    if calls and reason != "length":
        return "tool-calls"
    return _FINISH.get(reason, "other")


def check(text: str, calls: Sequence[AskedTool], reason: str) -> None:
    """Raise `ModelFailure` for an answer that nobody can go on from. A model that stops without a word has nothing more to say."""
    if len(calls) > MAX_CALLS:
        raise ModelFailure(
            f"The model asked for {len(calls)} tool calls at once; {MAX_CALLS} is the limit.",
            retryable=False,
            details={"name": "TooManyCalls"},
        )
    if is_empty(text, calls) and reason != "stop":
        raise ModelFailure(
            "The model gave an empty answer: no text and no tool call.",
            retryable=False,
            details={"name": "EmptyAnswer"},
        )


def is_empty(text: str, calls: Sequence[AskedTool]) -> bool:
    """Whether there is nothing in an answer that a history could keep: providers do not take such a message back."""
    return not calls and not text.strip()


def content_filtered() -> ModelFailure:
    """The provider's filter stopped the answer. What it had said so far is none."""
    return ModelFailure(
        "The model provider's content filter stopped the answer.",
        retryable=False,
        details={"semanticErrorId": "model-response-content-filtered", "name": "ContentFilter"},
    )


_FINISH = {
    "stop": "stop",
    "tool_call": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "error": "error",
}
