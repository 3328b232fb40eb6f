"""What becomes of a message: which events of a stream belong to its turn, when the turn is over, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.client import events
from orchestrator.client.errors import NoAnswer
from orchestrator.client.events import Event
from orchestrator.client.values import Failure, Request, Usage

State = Literal["completed", "failed", "cancelled", "waiting", "discarded"]
LOST = Failure("stream_lost", "The server's store has lost the end of this turn. What came of it is not known.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the turn of a message ended, or that it waits.

    state:          completed; failed (`error` says why); cancelled; waiting (for answers to `requests`); discarded (the session ended
                    before the message was used)
    text:           the final answer, as far as there is one: never the words between two tools, never those of an attempt that died
    result:         the structured result, if the message had an `output` schema: JSON
    usage:          that of the turn's steps, since the message came in
    session_usage:  that of the whole session so far
    cursor:         where the events behind this turn begin, or would
    """

    state: State
    session_id: str
    delivery_id: str | None
    turn_id: str | None
    text: str
    result: Any
    error: Failure | None
    requests: tuple[Request, ...]
    usage: Usage
    session_usage: Usage | None
    cursor: int

    def answer(self) -> str:
        """The text of a completed turn. Raises `NoAnswer` for any other."""
        if self.state != "completed":
            raise NoAnswer(self)
        return self.text


class Watch:
    """Follows one message through its stream, event by event. Without a `delivery` it is the one that began the session.

    `delivery` is known from the first event of the turn on, `turn_id` too.
    """

    def __init__(self, session: str, delivery: str | None, start: int) -> None:
        self.session = session
        self.delivery = delivery
        self.turn_id: str | None = None
        self.cursor = start
        """Where to read on."""
        self.over = False
        self._begun = False
        self._state: State | None = None
        self._parked = False
        self._caught_up = False
        self._told = False
        self._text = ""
        self._result: Any = None
        self._error: Failure | None = None
        self._open: dict[str, Request] = {}
        self._usage = Usage()
        self._session_usage: Usage | None = None

    @property
    def stops(self) -> bool:
        """Whether there is something to say: the turn is over, or it waits for people now (and not only in what was replayed)."""
        return self.over or (self._parked and self._caught_up)

    @property
    def has_news(self) -> bool:
        """Whether there is something to say that was not said yet. That a turn is over is news for ever."""
        return self.over or (self.stops and not self._told)

    def go_on(self) -> None:
        """Wait for what comes behind this wait, if it is one."""
        self._parked = self._told = False

    def ahead(self) -> Watch:
        """Another watch from here on, for those who look ahead."""
        found = Watch(self.session, self.delivery, self.cursor)
        found.turn_id = self.turn_id
        return found

    def tell(self) -> Outcome:
        """How it stands; a wait that was told is no news any more."""
        self._told = True
        return self.outcome()

    def take(self, event: Event, tail: int) -> bool:
        """Whether this event belongs to the turn. `tail` is the index of the last event that was there already."""
        self.cursor = event.index + 1
        self._caught_up = event.index >= tail
        if not self._begun:
            self._begun = self._begins(event)
        elif event.deliveries and self.delivery not in event.deliveries:
            return False
        if self._begun:
            self._note(event)
        return self._begun

    def outcome(self) -> Outcome:
        """How it stands. Ask when it `stops`."""
        state: State = self._state or ("waiting" if self._parked else "failed")
        lost = self._state is None and not self._parked
        return Outcome(
            state=state,
            session_id=self.session,
            delivery_id=self.delivery,
            turn_id=self.turn_id,
            text=self._text,
            result=self._result,
            error=LOST if lost else self._error,
            requests=tuple(self._open.values()),
            usage=self._usage,
            session_usage=self._session_usage,
            cursor=self.cursor,
        )

    def _begins(self, event: Event) -> bool:
        if self.delivery is None and event.deliveries:
            self.delivery = event.deliveries[0]
        match event:
            case events.MessageDiscarded(delivery_id=name) if name == self.delivery:
                self._state, self.over = "discarded", True
            case events.SessionCompleted() | events.SessionFailed():
                self._state, self.over = "discarded", True
            case _:
                pass
        return self.over or (self.delivery is not None and self.delivery in event.deliveries)

    def _note(self, event: Event) -> None:
        if isinstance(event, events.TurnEvent) and self.turn_id is None:
            self.turn_id = event.turn_id
        match event:
            case events.MessageCompleted(message=text, finish_reason=reason) if reason != "tool-calls":
                self._text = text
            case events.ResultCompleted(result=result):
                self._result = result
            case events.StepCompleted(usage=Usage() as usage):
                self._usage += usage
            case events.StepStarted():
                self._parked = False
            case events.InputRequested(requests=requests):
                self._open |= {request.request_id: request for request in requests}
            case events.InputResolved(resolutions=resolutions):
                self._parked = False
                for resolution in resolutions:
                    self._open.pop(resolution.request_id, None)
            case events.TurnWaiting(on=on, usage=total):
                self._parked = on == "input"
                self._session_usage = total
            case events.TurnCompleted():
                self._ended("completed")
            case events.TurnCancelled():
                self._ended("cancelled")
            case events.TurnFailed(code=code, message=message, details=details):
                self._ended("failed", Failure(code, message, details))
            case events.SessionWaiting(usage=total) | events.SessionCompleted(usage=total):
                self._session_usage, self.over = total, True
            case events.SessionFailed(code=code, message=message, details=details):
                self._ended(self._state or "failed", self._error or Failure(code, message, details))
                self.over = True
            case _:
                pass

    def _ended(self, state: State, error: Failure | None = None) -> None:
        self._state, self._error, self._parked = state, error, False
        self._open.clear()
