"""A stream as one state: bytes go in, events come out, each index once and none left out, over any number of connections.

The shell does what `due` says, tells what came (`opened`, `refused`, `took`, `ended`), and takes events with `next`. A connection that is
quiet for too long is given up and another one begins at the cursor; a response that ends with its lease is followed by another at once.
What a broken connection has said of a line that is not whole is forgotten and read again. Behind a response that ended in order and
without an event, the next one begins at the last event that is known to be there: an ended session says so with nothing else.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.client.asks import Reply
from orchestrator.client.errors import ServerAway, StreamBroken, TookTooLong, refusal
from orchestrator.client.events import Event, event
from orchestrator.client.retrying import AGAIN, Patience, Pause, Unanswered, reason, retry_after
from orchestrator.client.shapes import Misfit

TERMINAL = frozenset({"session.completed", "session.failed"})
LEASE_ENDED = "stream.lease-ended"
CONTROL = "$eve"
SLACK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Open:
    """Open the stream with this query, and give the connection up when it brings nothing for `quiet_seconds`."""

    query: Mapping[str, str]
    quiet_seconds: float


class Following:
    """Reads from event `start` on (a negative one counts from the end): to the end of the session, or to the tail without `follow`.

    `until` is when the caller's own time is over. `now` is any clock that does not go back, in seconds.
    """

    def __init__(
        self,
        start: int,
        now: float,
        *,
        follow: bool = True,
        quiet_seconds: float = 15.0,
        patience: Patience = Patience(),  # noqa: B008  # a value
        timeout: float | None = None,
        what: str = "The end of the stream",
    ) -> None:
        self.over = False
        self.tail = -1
        """The index of the last event that the server has spoken of."""
        self._start = start
        self._next = start if start >= 0 else None
        self._follow = follow
        self._last: int | None = None
        self._at = 0
        self._empty = False
        self._quiet_seconds = quiet_seconds
        self._patience = patience
        self._what = what
        self._timeout = timeout
        self._until = None if timeout is None else now + timeout
        self._alone_since: float | None = None
        self._failures = 0
        self._paused = False
        self._wanted_pause = 0.0
        self._why = ""
        self._read_seconds = 0.0
        self.resting = False
        """This connection is of no more use: close it, and ask what is due."""
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []

    @property
    def cursor(self) -> int | None:
        """Where the next event will be; None before a start that counts from the end is known."""
        return self._next

    def due(self, now: float, chance: float) -> Open | Pause | None:
        """What to do now; None: it is over. Raises `ServerAway`, `TookTooLong`."""
        if self.over:
            return None
        left = float("inf") if self._until is None else self._until - now
        if left <= 0:
            raise TookTooLong(what=self._what, seconds=self._timeout)
        if self._failures and not self._paused:
            self._paused = True
            seconds = min(max(self._patience.pause(self._failures, chance), self._wanted_pause), left)
            self._check_patience(now, seconds)
            return Pause(seconds)
        self._paused, self._wanted_pause = False, 0.0
        self._read_seconds = min(self._quiet_seconds, max(left, 0.01))
        return Open(self._query(), self._read_seconds)

    def _query(self) -> dict[str, str]:
        self._at = self._start if self._next is None else self._next
        if self._empty and self._follow and self.tail >= 0:
            self._at = min(max(self._at - 1, 0), self.tail)
        query = {
            "startIndex": str(self._at),
            "includeTailIndex": "1",
            "streamControlVersion": "1",
        }
        return query if self._follow else {**query, "follow": "false"}

    # What came --------------------------------------------------------------------------------------------------------

    def opened(self, headers: Mapping[str, str]) -> None:
        """The response has begun. Raises `StreamBroken` when it does not say what was asked."""
        self._empty = True
        said = headers.get("x-eve-stream-tail-index", "")
        if said.removeprefix("-").isdecimal():
            self.tail = max(self.tail, int(said))
        elif self._next is None or not self._follow:
            raise StreamBroken(index=self._next or 0, reason="the answer does not tell the tail of the stream")
        if self._next is None:
            self._next = self._at = max(int(said) + 1 + self._start, 0)
        if not self._follow and self._last is None:
            self._last = int(said)
        self._check_end()

    def refused(self, reply: Reply, now: float) -> None:
        """The stream was not opened. Raises what the server says, unless it is worth another try."""
        if reply.status not in AGAIN:
            raise refusal(reply.status, reply.json())
        self._wanted_pause = retry_after(reply.headers) or 0.0
        self._alone(reason(reply), now)

    def took(self, data: bytes, now: float) -> None:
        """A piece of the body. Take all events with `next` before the piece behind it."""
        self._alone_since = None
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest.clear()
        if rest:
            self._rest.append(rest)
        self._lines.extend(line for line in lines if line.strip())
        if self._until is not None:
            left = self._until - now
            # With nothing but a sign of life: the connection waits longer than its caller, and the next one waits shorter.
            self.resting = left <= 0 or (not self._lines and left < self._read_seconds - SLACK_SECONDS)

    def next(self) -> Event | None:
        """The next event of what was taken. Raises `StreamBroken`."""
        while self._lines and not self.resting and not self.over:
            assert self._next is not None
            line = self._lines.popleft()
            try:
                found = json.loads(line)
                if isinstance(found, dict) and CONTROL in found:
                    self._control(found[CONTROL])
                    continue
                told = event(found, self._at)
            except (ValueError, RecursionError) as misfit:
                why = f"{misfit}" if isinstance(misfit, Misfit) else "it is no JSON"
                raise StreamBroken(index=self._at, reason=why) from None
            self._at += 1
            self.over = told.type in TERMINAL
            if told.index < self._next:
                continue
            self._next, self._failures, self._empty = self._at, 0, False
            self.tail = max(self.tail, told.index)
            self._check_end()
            return told
        return None

    def ended(self, now: float, broken: Unanswered | None = None) -> None:
        """The connection is gone, in order or not, or there never was one."""
        self._lines.clear()
        self._rest.clear()
        self._empty = self._empty and not self.resting and broken is None
        if self.resting:
            self._failures, self.resting = 0, False
        else:
            self._alone(broken.reason if broken else "the response ended", now)

    def _alone(self, why: str, now: float) -> None:
        self._failures += 1
        self._why = why
        if self._alone_since is None:
            self._alone_since = now

    def _check_patience(self, now: float, seconds: float) -> None:
        if self._alone_since is None or now - self._alone_since + seconds <= self._patience.seconds:
            return
        go_on = "" if self._next is None else f", from event {self._next} on"
        raise ServerAway(
            asked="a reader of the stream",
            seconds=now - self._alone_since,
            reason=self._why,
            remedy=f"Is the server up? Then read on{go_on}.",
        )

    def _control(self, said: object) -> None:
        if said == LEASE_ENDED:
            self.resting = True

    def _check_end(self) -> None:
        if self._last is not None and self._next is not None and self._next > self._last:
            self.over = True
