"""The names of things: ids that a type checker keeps apart."""

from __future__ import annotations

from typing import NewType

SessionId = NewType("SessionId", str)
DeliveryId = NewType("DeliveryId", str)
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
RequestId = NewType("RequestId", str)
Token = NewType("Token", str)
Millis = NewType("Millis", int)

NEVER = Millis(0)


def turn_id(number: int) -> TurnId:
    """The id of a session's `number`-th turn, from 0."""
    return TurnId(f"turn_{number}")


def step_key(turn: TurnId, step: int) -> str:
    """The key of a step within its session: what a wake is for, and what an attempt is counted for."""
    return f"{turn}/{step}"


def result_key(turn: TurnId) -> str:
    """Under which the result of a turn is kept among the records until the turn is over. What came beside its messages is under its id."""
    return f"{turn}/result"


def request_id(fresh: str, place: int) -> RequestId:
    """The id of a request: 26 fresh characters, of which the last two say which of a batch it is."""
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return RequestId(f"req_{fresh[:24]}{digits[place >> 5 & 31]}{digits[place & 31]}")


def call_id(turn: int, step: int, place: int) -> CallId:
    """Our id of a tool call: unique in the session, the same in every attempt."""
    return CallId(f"call_{turn}_{step}_{place}")
