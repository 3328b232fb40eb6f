"""Prometheus: what happens in this process is counted here; what is a fact of the journal is read when somebody scrapes.

With PROMETHEUS_MULTIPROC_DIR all processes that name the same folder count together, and any of them answers for all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client import generate_latest as as_text
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from orchestrator.clock import steady
from orchestrator.core.event import Outcome
from orchestrator.core.fact import Fact, StepCut, StepSettled, TurnSettled, TurnStarted
from orchestrator.core.names import CallId
from orchestrator.core.snapshot import Call, Snapshot
from orchestrator.ports import Answer, ModelCall, ModelFailure
from orchestrator.watching import Drive, Heard, Hearing, Watch, Watched, code_of

CONTENT_TYPE = CONTENT_TYPE_LATEST
TOGETHER = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's own variable: the folder in which processes count together."""
LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that was read for a scrape: its name, what it means, and a value for each set of labels."""

    name: str
    about: str
    values: Sequence[tuple[Mapping[str, str], float]] = field(default_factory=tuple)


class Instruments:
    """What is counted. Made once in a process: prometheus_client knows each name once."""

    def __init__(self) -> None:
        # It chose when it was imported, and Celery's command imports it with Flower before any setting of ours is known.
        if values.ValueClass is values.MutexValue:
            values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]  # it has no types
        self.turns = Counter("orchestrator_turns", "Turns that have ended.", ["agent", "outcome"])
        self.steps = Counter("orchestrator_steps", "Steps that were closed.", ["agent"])
        self.attempts = Counter("orchestrator_attempts", "Times a worker began to work on a session.")
        self.takeovers = Counter("orchestrator_takeovers", "Those that went on where another worker was lost.")
        self.rung = Counter("orchestrator_rung", "Sessions that keepers rang for: lost wakes, lost workers, timers.")
        self.commits = Histogram("orchestrator_commit_seconds", "How long a commit took.", buckets=SHORT)
        self.model = Histogram("orchestrator_model_seconds", "Model calls that were answered.", ["model"], buckets=LONG)
        self.tokens = Counter("orchestrator_model_tokens", "Tokens of answers.", ["model", "kind"])
        self.model_failures = Counter("orchestrator_model_failures", "Model calls that broke.", ["model", "code"])
        self.tool = Histogram("orchestrator_tool_seconds", "Tool calls that have ended.", ["tool"], buckets=LONG)
        self.tool_failures = Counter("orchestrator_tool_failures", "Those that failed.", ["tool", "code"])
        self.readers = Gauge("orchestrator_streams_open", "Streams that are read now.", multiprocess_mode="livesum")


_instruments: Instruments | None = None


def instruments() -> Instruments:
    """Those of this process."""
    global _instruments
    if _instruments is None:
        _instruments = Instruments()
    return _instruments


class Metrics(Watch):
    """Counts what happens in this process."""

    @cached_property
    def _count(self) -> Instruments:
        return instruments()

    def __init__(self) -> None:
        _ = self._count  # now and not in the first turn

    @contextmanager
    def drive(self, owned: Watched) -> Iterator[Drive]:
        """A session is worked on."""
        self._count.attempts.inc()
        if owned.attempt > 1:
            self._count.takeovers.inc()
        yield Counted(self._count)

    def rung(self, sessions: int) -> None:
        """The keeper rang."""
        if sessions:
            self._count.rung.inc(sessions)

    def readers(self, more: int) -> None:
        """Streams were opened or closed."""
        self._count.readers.inc(more)


class Counted(Drive):
    """Counts what one driver does."""

    def __init__(self, count: Instruments) -> None:
        self._count = count
        self._begun: dict[CallId, float] = {}

    @contextmanager
    def model_call(self, model: str, call: ModelCall) -> Iterator[Hearing]:  # noqa: ARG002
        """Its time if it is answered, its tokens, or its failure."""
        count, begun = self._count, steady()

        def heard(what: Heard) -> Heard:
            match what:
                case Answer(usage=usage):
                    count.model.labels(model).observe(steady() - begun)
                    for kind in ("input", "output", "cache_read", "cache_write"):
                        if tokens := getattr(usage, kind):
                            count.tokens.labels(model, kind).inc(tokens)
                case ModelFailure(code=code):
                    count.model_failures.labels(model, code).inc()
                case None:
                    pass
            return what

        yield heard

    @contextmanager
    def tool_call(self, call: Call, arguments: Mapping[str, object]) -> Iterator[object]:  # noqa: ARG002
        """It begins."""
        self._begun[call.id] = steady()
        yield None

    def tool_ended(self, call: Call, outcome: Outcome | None) -> None:
        """Its time and, if it failed, its code. One that was refused before it began is no call."""
        begun = self._begun.pop(call.id, None)
        if begun is None or outcome is None:
            return
        self._count.tool.labels(call.tool).observe(steady() - begun)
        if code := code_of(outcome):
            self._count.tool_failures.labels(call.tool, code).inc()

    def committed(self, facts: Sequence[Fact], before: Snapshot, seconds: float) -> None:
        """Its time, and the steps and turns that it closed."""
        self._count.commits.observe(seconds)
        agent = before.turn.agent if before.turn else ""
        for fact in facts:
            match fact:
                case TurnStarted(agent=agent):
                    pass
                case StepSettled() | StepCut():
                    self._count.steps.labels(agent).inc()
                case TurnSettled(outcome=outcome):
                    self._count.turns.labels(agent, outcome).inc()
                case _:
                    pass


# Answering a scrape -----------------------------------------------------------------------------------------------------


class _Read(Collector):
    def __init__(self, figures: Sequence[Figure]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for figure in self._figures:
            names = list(figure.values[0][0]) if figure.values else []
            family = GaugeMetricFamily(figure.name, figure.about, labels=names)
            for labels, value in figure.values:
                family.add_metric([labels[name] for name in names], value)
            yield family


def text(figures: Sequence[Figure] = ()) -> bytes:
    """What was counted, here or by all that count together, and these figures, as Prometheus reads them."""
    counted = REGISTRY
    if os.environ.get(TOGETHER):
        counted = CollectorRegistry()
        MultiProcessCollector(counted)  # type: ignore[no-untyped-call]  # it has no types
    if not figures:
        return as_text(counted)
    read = CollectorRegistry()
    read.register(_Read(figures))
    return as_text(counted) + as_text(read)


def forget(pid: int) -> None:
    """A process that counted with us has ended: what it had open is open no more."""
    if os.environ.get(TOGETHER):
        mark_process_dead(pid)  # type: ignore[no-untyped-call]  # it has no types
