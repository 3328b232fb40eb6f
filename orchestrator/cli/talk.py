"""A conversation as it is shown in a terminal: events go in, lines come out, and what is typed gets its meaning here. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.cli.printed import as_json, plain, short
from orchestrator.client import Answer, Event, Request, events

Style = Literal["agent", "quiet", "asks", "wrong"]
YES, NO = frozenset({"y", "yes"}), frozenset({"n", "no"})
COMMANDS = {
    "/new": "begin another session",
    "/clear": "let the model forget what was said",
    "/compact": "have what was said summed up",
    "/cancel": "stop what it is doing (Esc)",
    "/session": "say which session this is",
    "/help": "list these",
    "/quit": "leave (Ctrl-D); the session goes on",
}
FIRST = ""
"""In the place of a delivery's id: the message that began the session."""
FIRST_AT = 2
"""The index of its `message.received`: behind `session.started` and `turn.started`."""
MOST_SHOWN = 400
"""Characters of a tool's arguments or result."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line to print."""

    text: str
    style: Style = "agent"


@dataclass(frozen=True, slots=True)
class Say:
    """What was typed is a message. It steers while a turn is open."""

    text: str


@dataclass(frozen=True, slots=True)
class Order:
    """What was typed is a command."""

    name: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """What was typed looks like a command and is none."""

    text: str


@dataclass(slots=True)
class Talk:
    """What is known of the session that is talked to.

    partial:  the words of the answer that are not a whole line yet
    open:     what is asked, oldest first
    turn:     the open turn, or nothing
    ended:    whether the session takes no more messages
    """

    partial: str = ""
    open: dict[str, Request] = field(default_factory=dict)
    turn: str = ""
    ended: bool = False
    _streamed: str = ""
    _calls: dict[str, str] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.ended:
            return "ended"
        if self.open:
            return "waits for your answer"
        return "working, Esc stops it" if self.turn else "ready"

    def said(self, delivery: str | None) -> None:
        """This message (None: the first of its session) was typed here: it stands in the terminal already."""
        self._own.add(delivery or FIRST)

    @property
    def begins_here(self) -> bool:
        """Whether the session was begun here, so that nothing of it was seen elsewhere."""
        return FIRST in self._own

    # Events -----------------------------------------------------------------------------------------------------------

    def take(self, event: Event) -> list[Line]:
        """The lines that an event adds."""
        match event:
            case events.MessageAppended(message_delta=words):
                return self._words(words)
            case events.MessageCompleted(message=text):
                return self._whole(text)
        return [*self._break(), *self._others(event)]

    def _others(self, event: Event) -> Iterator[Line]:
        match event:
            case events.TurnStarted(turn_id=turn):
                self.turn = turn
            case events.MessageReceived(deliveries=names, index=index) if self._is_own(index, names):
                pass
            case events.MessageReceived(message=text):
                yield from (Line(f"> {line}", "quiet") for line in _lines(text))
            case events.MessageDeferred():
                yield Line("  (it is told when its tools are done)", "quiet")
            case events.StepSuperseded():
                yield Line("  (what it just said does not count: its worker died, and another goes on)", "quiet")
            case events.ActionsRequested(actions=actions):
                for action in actions:
                    self._calls[action.call_id] = action.tool_name
                    yield Line(f"  {plain(action.tool_name)}({_arguments(action.input)})", "quiet")
            case events.ActionPartial(result=result):
                yield Line(f"  … {plain(result.tool_name)}: {_value(result.output)}", "quiet")
            case events.ActionResult(result=result, status=status, error=error):
                style: Style = "quiet" if status == "completed" else "wrong"
                shown = _value(result.output) if error is None else plain(error.message)
                yield Line(f"  → {plain(result.tool_name)}: {short(shown, MOST_SHOWN)}", style)
            case events.InputRequested(requests=requests):
                for request in requests:
                    self.open[request.request_id] = request
                yield from self.asked()
            case events.InputResolved(resolutions=resolutions):
                for resolution in resolutions:
                    self.open.pop(resolution.request_id, None)
                    yield Line(f"  ({plain(resolution.outcome)})", "quiet")
            case events.ApprovalCandidate(outcome="rejected" | "failed" | "timed-out" | "stale" as outcome):
                yield Line(f"  (this answer did not count: {outcome})", "wrong")
            case events.ResultCompleted(result=result):
                yield Line(as_json(result))
            case events.TurnFailed(code=code, message=message):
                self._closed()
                yield Line(f"It failed: {plain(message)} [{plain(code)}]", "wrong")
            case events.TurnCancelled():
                self._closed()
                yield Line("Stopped.", "quiet")
            case events.TurnCompleted():
                self._closed()
            case events.ContextCleared():
                yield Line("It has forgotten what was said.", "quiet")
            case events.CompactionCompleted():
                yield Line("What was said is summed up.", "quiet")
            case events.SessionRewound():
                yield Line("The store has lost the end of this session; it goes on from before.", "wrong")
            case events.SessionCompleted() | events.SessionFailed():
                self._closed()
                self.ended = True
                yield Line("This session has ended. What you say next begins another.", "quiet")

    def _is_own(self, index: int, deliveries: Sequence[str]) -> bool:
        if FIRST in self._own and index <= FIRST_AT:
            self._own.update(deliveries[:1])
        return not self._own.isdisjoint(deliveries[-1:])

    def _closed(self) -> None:
        self.turn = ""
        self.open.clear()

    def _words(self, words: str) -> list[Line]:
        self._streamed += words
        *whole, self.partial = (self.partial + words).split("\n")
        return [Line(plain(line)) for line in whole]

    def _whole(self, text: str) -> list[Line]:
        if self._streamed == text:
            return self._break()
        lines = self._break()
        self._streamed = ""
        return [*lines, *(Line(line) for line in _lines(text))] if text else lines

    def _break(self) -> list[Line]:
        """End the line that is being said."""
        rest, self.partial, self._streamed = self.partial, "", ""
        return [Line(plain(rest))] if rest else []

    def asked(self) -> list[Line]:
        """What is asked first, and how to answer it."""
        first = next(iter(self.open.values()), None)
        if first is None:
            return []
        more = f" ({len(self.open) - 1} more behind it)" if len(self.open) > 1 else ""
        lines = [Line(f"? {line}", "asks") for line in _lines(first.prompt)]
        if first.action is not None and first.kind == "tool-approval":
            lines.append(Line(f"  {plain(first.action.tool_name)}({_arguments(first.action.input)})", "asks"))
        lines += [
            Line(f"  {number}. {plain(option.label or option.id)}", "asks")
            for number, option in enumerate(first.options, 1)
        ]
        how = "Type the number" if first.options else "Type your answer"
        free = ", or your own words" if first.options and first.allow_freeform else ""
        other = (
            ""
            if first.allow_freeform or first.kind == "session-limit"
            else "; other words take it back and are said instead"
        )
        return [*lines, Line(f"  {how}{free}{other}.{more}", "quiet")]

    # What is typed ----------------------------------------------------------------------------------------------------

    def meaning(self, typed: str) -> Say | Order | Unknown | Answer | None:
        """What something typed means. None: nothing was typed."""
        text = typed.strip()
        if not text:
            return None
        if text.startswith("/") and " " not in text:
            return Order(text) if text in COMMANDS else Unknown(text)
        first = next(iter(self.open.values()), None)
        return Say(typed) if first is None else _answer(first, text) or Say(typed)


def _answer(request: Request, text: str) -> Answer | None:
    """An answer, if it can be one: an option by its label, id or number, and anything where anything may be said."""
    said = text.casefold()
    for names in (
        {option.label.strip().casefold(): option.id for option in reversed(request.options) if option.label},
        {option.id.casefold(): option.id for option in request.options},
        {str(number): option.id for number, option in enumerate(request.options, 1)},
    ):
        if said in names:
            return request.answer(option=names[said])
    if request.kind != "question" and said in YES | NO and len(request.options) == 2:
        return request.answer(option=request.options[said in NO].id)
    return request.answer(text=text) if request.allow_freeform else None


def _lines(text: str) -> list[str]:
    return [plain(line) for line in text.split("\n")]


def _arguments(given: Any) -> str:
    if isinstance(given, Mapping):
        return short(", ".join(f"{name}={as_json(value)}" for name, value in given.items()), MOST_SHOWN)
    return short(as_json(given), MOST_SHOWN)


def _value(value: Any) -> str:
    return short(value if isinstance(value, str) else as_json(value), MOST_SHOWN)
