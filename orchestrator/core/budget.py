"""Budgets: how much a session may use before somebody has to let it go on, and how that is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.core.fact import BudgetReached
from orchestrator.core.snapshot import Snapshot

TOKENS, COST = "SESSION_TOKEN_LIMIT_REACHED", "SESSION_TOKEN_COST_LIMIT_REACHED"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a session may use until somebody lets it go on, each by itself. None: as much as it likes."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    micro_usd: int | None = None


UNLIMITED = Budget()


def exceeded(snapshot: Snapshot, budget: Budget) -> str:
    """The code that says which budget is used up since somebody let the session go on, or nothing."""
    used = snapshot.usage - snapshot.granted
    if _is_over(used.input, budget.input_tokens) or _is_over(used.output, budget.output_tokens):
        return TOKENS
    return COST if _is_over(used.micro_usd, budget.micro_usd) else ""


def _is_over(used: int, most: int | None) -> bool:
    return most is not None and used >= most


def told(snapshot: Snapshot, budget: Budget) -> str:
    """What is used up, with figures, as a sentence."""
    return f"This session has used up its budget: {', '.join(_figures(snapshot, budget))}."


def _figures(snapshot: Snapshot, budget: Budget) -> Iterator[str]:
    used = snapshot.usage - snapshot.granted
    for what, number, most in (
        ("input tokens", used.input, budget.input_tokens),
        ("output tokens", used.output, budget.output_tokens),
    ):
        if most is not None and number >= most:
            yield f"{number:,} of {most:,} {what}"
    if budget.micro_usd is not None and used.micro_usd >= budget.micro_usd:
        yield f"{used.micro_usd / 1_000_000:,.2f} of {budget.micro_usd / 1_000_000:,.2f} USD"


def reached(snapshot: Snapshot, fact: BudgetReached) -> Snapshot:
    """People are to be asked before the next model call."""
    assert snapshot.turn is not None, "a budget's fact needs an open turn"
    return replace(snapshot, turn=replace(snapshot.turn, over_budget=fact.code))
