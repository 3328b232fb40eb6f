"""When a request is made again, and when it is given up. The clock and chance come in as arguments.

Made again are requests that got no answer, or 429, 502, 503, 504, after a pause that grows, with chance in it, or as long as the server
asks for. Whatever else a server says is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

from orchestrator.client.asks import Ask, Reply
from orchestrator.client.errors import ClientError, ServerAway, SessionNotFound, refusal

T = TypeVar("T")
NOT_TAKEN = 429
AGAIN = frozenset({NOT_TAKEN, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits for a server that does not answer, and its pauses, which double from the first to the longest."""

    seconds: float = 60.0
    first_pause_seconds: float = 0.25
    longest_pause_seconds: float = 4.0

    def pause(self, failures: int, chance: float) -> float:
        """The seconds after so many failures, from 1 on; `chance` from 0 to 1 makes it half as long or longer, so that clients part."""
        whole = min(self.first_pause_seconds * 2.0 ** min(failures - 1, 30), self.longest_pause_seconds)
        return whole * (0.5 + chance / 2)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer came. `reached`: the request may have come in all the same."""

    reason: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """It is answered."""

    value: T


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long, then go on."""

    seconds: float


class Trying(Generic[T]):
    """One request from its first try to its answer. `now` is any clock that does not go back, in seconds."""

    def __init__(self, ask: Ask[T], patience: Patience, now: float) -> None:
        self._ask = ask
        self._patience = patience
        self._began = now
        self._failures = 0
        self._unclear = False

    def settle(self, came: Reply | Unanswered, now: float, chance: float) -> Done[T] | Pause:
        """What comes next. Raises what the server has refused, or `ServerAway`."""
        if isinstance(came, Reply) and (came.status not in AGAIN or not self._ask.retry):
            return self._answered(came)
        clear = came.status == NOT_TAKEN if isinstance(came, Reply) else not came.reached
        self._unclear = self._unclear or not clear
        self._failures += 1
        wanted = retry_after(came.headers) if isinstance(came, Reply) else None
        seconds = max(self._patience.pause(self._failures, chance), wanted or 0.0)
        last = not self._ask.retry or now - self._began + seconds > self._patience.seconds
        if last or not (clear or self._ask.again):
            raise self._given_up(came, now)
        return Pause(seconds)

    def _answered(self, reply: Reply) -> Done[Any]:
        try:
            return Done(self._ask.understand(reply))
        except SessionNotFound:
            if self._ask.method == "DELETE" and self._unclear:
                return Done(None)  # an earlier try has erased it
            raise

    def _given_up(self, came: Reply | Unanswered, now: float) -> ClientError:
        if isinstance(came, Reply) and came.status == NOT_TAKEN:
            return refusal(came.status, came.json(), retry_after(came.headers))
        return ServerAway(
            asked=str(self._ask),
            seconds=now - self._began,
            reason=reason(came),
            remedy="It may have come in all the same: look at the stream before you say it again."
            if self._unclear and not self._ask.again
            else "Is the server up, and its address right? Then ask again"
            + (", with the same key." if self._unclear and self._ask.method == "POST" else "."),
        )


def reason(came: Reply | Unanswered) -> str:
    """Why this is no answer."""
    if isinstance(came, Unanswered):
        return came.reason
    body = came.json()
    return f"{came.status} {body.get('code') or ''}: {body.get('error') or 'no answer of ours'}"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait: it says a number, or a date of its own clock."""
    said = headers.get("retry-after", "").strip()
    if said.isdecimal():
        return float(said)
    try:
        until, today = parsedate_to_datetime(said), parsedate_to_datetime(headers.get("date", ""))
    except ValueError:
        return None
    return max((_aware(until) - _aware(today)).total_seconds(), 0.0)


def _aware(when: datetime) -> datetime:
    return when if when.tzinfo else when.replace(tzinfo=UTC)
