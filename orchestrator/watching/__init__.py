"""Who watches a process at work: metrics, traces, logs. Nobody does unless a setting says so.

A driver tells its `Drive` what it does, in the words of this module; what is made of that is the watchers' business. Nothing here
decides anything, writes to the journal, or may fail a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from orchestrator.clock import steady
from orchestrator.core.event import Outcome
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Call, Snapshot
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.config import Settings
    from orchestrator.core.fact import Fact
    from orchestrator.ports import Answer, ModelCall, ModelFailure

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
COMPLAIN_SECONDS = 60.0
_next_complaint = float("-inf")
Heard: TypeAlias = "Answer | ModelFailure | None"
Hearing = Callable[[Heard], Heard]
"""Is told what came of a model call, and gives it back."""


class Watched(Protocol):
    """An owned session as watchers see it: what it is at the moment they look."""

    @property
    def session(self) -> SessionId: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def attempt(self) -> int: ...


class _Silence(AbstractContextManager[Hearing]):
    """Something that nobody listens to."""

    def __enter__(self) -> Hearing:
        return _same

    def __exit__(
        self, kind: type[BaseException] | None, broken: BaseException | None, where: TracebackType | None
    ) -> None:
        return None


def _same(heard: Heard) -> Heard:
    return heard


_SILENCE = _Silence()


class Drive:
    """What one driver tells while it works on a session. This one listens to nothing."""

    def model_call(self, model: str, call: ModelCall) -> AbstractContextManager[Hearing]:  # noqa: ARG002
        """A model is called; what came of it is told to what this yields, unless it ends by an exception."""
        return _SILENCE

    def tool_call(self, call: Call, arguments: Mapping[str, object]) -> AbstractContextManager[object]:  # noqa: ARG002
        """A tool call is begun inside of this; it goes on behind it."""
        return _SILENCE

    def tool_ended(self, call: Call, outcome: Outcome | None) -> None:
        """It has its outcome, or none: it was stopped or left behind."""

    def committed(self, facts: Sequence[Fact], before: Snapshot, seconds: float) -> None:
        """These facts are in the journal, which took so long; the session's snapshot is the one after them."""


class Watch:
    """Who watches this process. This one is nobody."""

    def drive(self, owned: Watched) -> AbstractContextManager[Drive]:  # noqa: ARG002
        """A session is worked on inside of this."""
        return _NOBODY_LISTENS

    def rung(self, sessions: int) -> None:
        """The keeper rang for so many sessions."""

    def readers(self, more: int) -> None:
        """So many streams more (or fewer) are open."""

    def came_in(self, headers: Mapping[str, str]) -> Callable[[], None]:  # noqa: ARG002
        """A request came in; call what this returns when it is answered."""
        return _nothing

    def trace(self) -> str:
        """The trace that whoever calls is in, as a `traceparent`; empty where there is none."""
        return ""

    def flush(self) -> None:
        """This process is about to end."""


def _nothing() -> None:
    return None


class _NobodyListens(AbstractContextManager[Drive]):
    def __init__(self) -> None:
        self._drive = Drive()

    def __enter__(self) -> Drive:
        return self._drive

    def __exit__(
        self, kind: type[BaseException] | None, broken: BaseException | None, where: TracebackType | None
    ) -> None:
        return None


_NOBODY_LISTENS = _NobodyListens()
NOBODY = Watch()
UNWATCHED = Drive()


@cache
def watch(settings: Settings) -> Watch:
    """Who watches, by the settings: the same each time. Raises `ConfigError` where a library is asked for that is not there."""
    found: list[Watch] = []
    if settings.log:
        found.append(cast(Watch, _made("logs", "Lines", "", "")))
    if settings.traces:
        found.append(cast(Watch, _made("traces", "Traces", "ORCHESTRATOR_TRACES", "otel", settings)))
    if settings.counts:
        found.append(cast(Watch, _made("metrics", "Metrics", "ORCHESTRATOR_METRICS", "metrics")))
    return Several(found) if found else NOBODY


def _made(module: str, name: str, setting: str, extra: str, *given: object) -> object:
    try:
        return getattr(import_module(f"orchestrator.watching.{module}"), name)(*given)
    except ImportError as missing:
        raise ConfigError(
            problem=f"{setting} is set, and {missing.name} is not installed.",
            remedy=f"pip install 'celery-orchestrator[{extra}]', or take the setting away.",
        ) from missing


class Several(Watch):
    """Watchers that are all told the same; the first comes in first and leaves last. One that breaks disturbs nobody."""

    def __init__(self, watchers: Sequence[Watch]) -> None:
        self._watchers = watchers

    @contextmanager
    def drive(self, owned: Watched) -> Iterator[Drive]:
        """A session is worked on."""
        with _All([partial(watcher.drive, owned) for watcher in self._watchers]) as drives:
            yield _SeveralDrives(drives)

    def rung(self, sessions: int) -> None:
        """The keeper rang."""
        for watcher in self._watchers:
            _tell(watcher.rung, sessions)

    def readers(self, more: int) -> None:
        """Streams were opened or closed."""
        for watcher in self._watchers:
            _tell(watcher.readers, more)

    def came_in(self, headers: Mapping[str, str]) -> Callable[[], None]:
        """A request came in."""
        leave = [_tell(watcher.came_in, headers) or _nothing for watcher in self._watchers]

        def leave_all() -> None:
            for one in reversed(leave):
                _tell(one)

        return leave_all

    def trace(self) -> str:
        """The trace that whoever calls is in."""
        return next(filter(None, (_tell(watcher.trace) for watcher in self._watchers)), "")

    def flush(self) -> None:
        """This process is about to end."""
        for watcher in self._watchers:
            _tell(watcher.flush)


class _SeveralDrives(Drive):
    def __init__(self, drives: Sequence[Drive]) -> None:
        self._drives = drives

    @contextmanager
    def model_call(self, model: str, call: ModelCall) -> Iterator[Hearing]:
        with _All([partial(drive.model_call, model, call) for drive in self._drives]) as hearing:

            def heard(what: Heard) -> Heard:
                for one in hearing:
                    _tell(one, what)
                return what

            yield heard

    @contextmanager
    def tool_call(self, call: Call, arguments: Mapping[str, object]) -> Iterator[object]:
        with _All([partial(drive.tool_call, call, arguments) for drive in self._drives]):
            yield None

    def tool_ended(self, call: Call, outcome: Outcome | None) -> None:
        for drive in self._drives:
            _tell(drive.tool_ended, call, outcome)

    def committed(self, facts: Sequence[Fact], before: Snapshot, seconds: float) -> None:
        for drive in self._drives:
            _tell(drive.committed, facts, before, seconds)


# Whatever is wrong with a watcher -----------------------------------------------------------------------------------------


class _All(AbstractContextManager[list[T]]):
    """Inside of all of these; what one of them raises by itself goes to the log."""

    def __init__(self, begin: Sequence[Callable[[], AbstractContextManager[T]]]) -> None:
        self._begin = begin
        self._inside: list[AbstractContextManager[T]] = []

    def __enter__(self) -> list[T]:
        found: list[T] = []
        for begin in self._begin:
            try:
                manager = begin()
                found.append(manager.__enter__())
                self._inside.append(manager)
            except Exception:
                _complain()
        return found

    def __exit__(
        self, kind: type[BaseException] | None, broken: BaseException | None, where: TracebackType | None
    ) -> None:
        for manager in reversed(self._inside):
            try:
                manager.__exit__(kind, broken, where)
            except Exception:
                _complain()


def _tell(tell: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | None:
    try:
        return tell(*given, **named)
    except Exception:
        _complain()
        return None


def _complain() -> None:
    global _next_complaint
    if steady() >= _next_complaint:
        _next_complaint = steady() + COMPLAIN_SECONDS
        log.exception("what watches this process has broken; the work goes on without it")


def code_of(outcome: Outcome) -> str:
    """Why a call failed; empty where it did not."""
    return str((outcome.error or {}).get("code", "")) or ("" if outcome.status == "completed" else outcome.status)
