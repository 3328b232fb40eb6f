"""What has to be done next, derived from the snapshot: at least once, always under the same key."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.names import Millis, TurnId
from orchestrator.core.snapshot import Call


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model for the step's answer. `tries` says how often it was asked already."""

    turn: TurnId
    step: int
    tries: int


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run the step's calls that have no result yet, at the same time."""

    turn: TurnId
    step: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Compact:
    """Make the history shorter. `asked`: somebody wants it; else only what is needed is done."""

    asked: bool
    begun: bool
    tries: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done before `until` (ms)."""

    until: Millis


Effect = CallModel | RunTools | Compact | Wait
