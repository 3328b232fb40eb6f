"""What has to be done next, derived from the snapshot: at least once, always under the same key."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.names import Millis, TurnId
from orchestrator.core.snapshot import Call, Candidate, Request


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
class JudgeCalls:
    """Ask the policies of these calls' tools whether they may run."""

    turn: TurnId
    step: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class JudgeCandidate:
    """Ask a tool's policy whether who has answered may."""

    turn: TurnId
    step: int
    request: Request
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class AskPeople:
    """Make the requests for these calls; for none, ask whether the session may go on beyond its budget."""

    turn: TurnId
    step: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing can be done before a person acts, or `until` (ms, 0: for ever)."""

    until: Millis


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


Effect = CallModel | RunTools | JudgeCalls | JudgeCandidate | AskPeople | Compact | Hold | Wait
