"""Budgets: how much a session, or one turn of it, may use before somebody has to let it go on, and how that is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.core.fact import BudgetReached
from orchestrator.core.snapshot import Snapshot, Usage

TOKENS, COST = "SESSION_TOKEN_LIMIT_REACHED", "SESSION_TOKEN_COST_LIMIT_REACHED"
STEPS = "SESSION_STEP_LIMIT_REACHED"
CODES = {"input tokens": TOKENS, "output tokens": TOKENS, "USD": COST, "steps": STEPS}


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used until somebody lets it go on, each by itself. None: as much as it likes."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    micro_usd: int | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Budgets:
    """That of a session as a whole, and that of each of its turns."""

    session: Budget = Budget()
    turn: Budget = Budget()


UNLIMITED = Budgets()


def exceeded(snapshot: Snapshot, budgets: Budgets) -> str:
    """The code that says which budget is used up since somebody let it go on, or nothing."""
    used_up = next(_used_up(snapshot, budgets), None)
    return CODES[used_up[1]] if used_up else ""


def told(snapshot: Snapshot, budgets: Budgets) -> str:
    """What is used up, with figures, as a sentence."""
    found = list(_used_up(snapshot, budgets))
    whose = dict.fromkeys(whose for whose, _, _ in found)
    return " ".join(
        f"This {one} has used up its budget: {', '.join(figures for whose, _, figures in found if whose == one)}."
        for one in whose
    )


def _used_up(snapshot: Snapshot, budgets: Budgets) -> Iterator[tuple[str, str, str]]:
    """Whose, of what, and how much."""
    for what, figures in _over(snapshot.usage - snapshot.granted, budgets.session):
        yield "session", what, figures
    if snapshot.turn is not None:
        for what, figures in _over(snapshot.turn.spent, budgets.turn):
            yield "turn", what, figures


def _over(used: Usage, budget: Budget) -> Iterator[tuple[str, str]]:
    for what, number, most in (
        ("input tokens", used.input, budget.input_tokens),
        ("output tokens", used.output, budget.output_tokens),
        ("steps", used.answers, budget.steps),
    ):
        if most is not None and number >= most:
            yield what, f"{number:,} of {most:,} {what}"
    if budget.micro_usd is not None and used.micro_usd >= budget.micro_usd:
        yield "USD", f"{used.micro_usd / 1_000_000:,.2f} of {budget.micro_usd / 1_000_000:,.2f} USD"


def reached(snapshot: Snapshot, fact: BudgetReached) -> Snapshot:
    """People are to be asked before the next model call."""
    assert snapshot.turn is not None, "a budget's fact needs an open turn"
    return replace(snapshot, turn=replace(snapshot.turn, over_budget=fact.code))
