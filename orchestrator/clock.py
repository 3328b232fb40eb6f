"""Time as the engine has it: Redis's milliseconds, carried by a clock of this process that never steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from orchestrator.core.names import Millis

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds of a clock that never steps and goes on while the machine is suspended."""
    return time.clock_gettime(_STEADY)


class RedisClock:
    """`now` is the time of Redis as last heard, plus what has passed here since."""

    def __init__(self, ask: Callable[[], Millis]) -> None:
        self._ask = ask
        self._offset_ms: float | None = None

    def now(self) -> Millis:
        """Milliseconds as Redis has them. Asks Redis once, at the first call."""
        if self._offset_ms is None:
            self.look()
        assert self._offset_ms is not None
        return Millis(int(steady() * 1000 + self._offset_ms))

    def steady(self) -> float:
        """Seconds of this process's own clock."""
        return steady()

    def look(self) -> None:
        """Ask Redis what time it is."""
        asked_at = steady()
        self.heard(self._ask(), asked_at)

    def heard(self, at: Millis, asked_at: float) -> None:
        """An answer of Redis said what time it is there; it was asked at `asked_at` of our steady clock.

        Redis read its clock somewhere between the question and now: the difference of the clocks is moved no further than it
        must be to lie in between. A late answer teaches little, a clock that was set is followed.
        """
        least, most = at - steady() * 1000, at + 1 - asked_at * 1000
        known = self._offset_ms
        self._offset_ms = (least + most) / 2 if known is None else min(max(known, least), most)


def iso(at: Millis) -> str:
    """ISO 8601 with milliseconds and Z."""
    return f"{_second(at // 1000)}.{at % 1000:03d}Z"


@lru_cache(maxsize=16)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")
