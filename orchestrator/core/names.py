"""The names of things: ids that a type checker keeps apart."""

from __future__ import annotations

from typing import NewType

SessionId = NewType("SessionId", str)
DeliveryId = NewType("DeliveryId", str)
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
Token = NewType("Token", str)
Millis = NewType("Millis", int)

NEVER = Millis(0)


def turn_id(number: int) -> TurnId:
    """The id of a session's `number`-th turn, from 0."""
    return TurnId(f"turn_{number}")


def step_key(turn: TurnId, step: int) -> str:
    """The key of a step within its session: what a wake is for, and what an attempt is counted for."""
    return f"{turn}/{step}"


def call_id(turn: int, step: int, place: int) -> CallId:
    """Our id of a tool call: unique in the session, the same in every attempt."""
    return CallId(f"call_{turn}_{step}_{place}")
