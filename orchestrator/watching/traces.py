"""OpenTelemetry: one trace for each turn, whichever workers have a part in it.

    invoke_agent <agent>          the turn
      step <n>
        chat <model>              a model call
        execute_tool <tool>       a tool call

The ids of a turn and of its steps follow from the names of session, turn and step, so every worker knows them and none has to tell
another: a turn's span and a step's are begun by everybody who works on them and ended by the one that ends the turn or closes the step.
Calls are spans of the worker that makes them. All say which `orchestrator.attempt` they are of.

We use the API only; what becomes of spans is up to the SDK that the user has set up. Where there is none, nothing is recorded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_core import to_json

from orchestrator.config import Settings
from orchestrator.core.event import Outcome
from orchestrator.core.fact import Fact, ModelAnswered, StepCut, StepFailed, StepSettled, TurnSettled
from orchestrator.core.names import CallId, SessionId, TurnId
from orchestrator.core.snapshot import Call, Snapshot, Turn, Usage
from orchestrator.ports import Answer, ModelCall, ModelFailure
from orchestrator.watching import Drive, Heard, Hearing, Watch, Watched, code_of

SCOPE = "orchestrator"
MOST_CONTENT = 32_000
"""Characters of a prompt, an answer, arguments or a result that a span may have."""
FLUSH_MS = 1_500
PROVIDERS = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "google": "gcp.gen_ai",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""What the conventions call those that we call otherwise."""
_W3C = TraceContextTextMapPropagator()
_next_ids: ContextVar[tuple[int, int] | None] = ContextVar("orchestrator_next_ids", default=None)


class _Ids:
    """Makes the ids that were ordered for the next span, else what the user's own generator makes."""

    def __init__(self, others: Any) -> None:
        self._others = others

    def generate_trace_id(self) -> int:
        ordered = _next_ids.get()
        return ordered[0] if ordered else int(self._others.generate_trace_id())

    def generate_span_id(self) -> int:
        ordered = _next_ids.get()
        return ordered[1] if ordered else int(self._others.generate_span_id())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)


def ids_of(session: SessionId, turn: TurnId) -> tuple[int, int]:
    """The trace of a turn that came without one, and the span of the turn."""
    digest = sha256(f"{session}/{turn}".encode()).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


def step_span_id(session: SessionId, turn: TurnId, step: int) -> int:
    """The span of a step."""
    return int.from_bytes(sha256(f"{session}/{turn}/{step}".encode()).digest()[:8]) or 1


class Traces(Watch):
    """Tells OpenTelemetry what happens."""

    def __init__(self, settings: Settings) -> None:
        self.deployment = settings.deployment
        self.with_content = settings.traces == "content"
        self._tracer: Any = None

    @contextmanager
    def drive(self, owned: Watched) -> Iterator[Drive]:
        """A session is worked on."""
        tracer = self._found()
        if tracer is None:
            yield Drive()
            return
        drive = Traced(self, tracer, owned)
        try:
            yield drive
        finally:
            drive.leave()

    def came_in(self, headers: Mapping[str, str]) -> Callable[[], None]:
        """A request came in; unless a span of its own was begun for it, it is in the trace that its headers name."""
        if trace.get_current_span().get_span_context().is_valid:
            return lambda: None
        lower = {name.lower(): text for name, text in headers.items()}
        token = contexts.attach(propagate.extract(lower))
        return lambda: contexts.detach(token)

    def trace(self) -> str:
        """The trace that whoever calls is in."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get("traceparent", "")

    def flush(self) -> None:
        """Let the SDK send what it has: a worker's process may end without a word."""
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            with suppress(Exception):
                flush(FLUSH_MS)

    def _found(self) -> Any:
        """The SDK's tracer, whose ids we may choose. None as long as nobody has set up an SDK."""
        if self._tracer is None:
            tracer: Any = trace.get_tracer(SCOPE)
            if not hasattr(tracer, "id_generator"):
                return None
            if not isinstance(tracer.id_generator, _Ids):
                tracer.id_generator = _Ids(tracer.id_generator)
            self._tracer = tracer
        return self._tracer


class Traced(Drive):
    """The spans of one driver."""

    def __init__(self, traces: Traces, tracer: Any, owned: Watched) -> None:
        self._traces, self._tracer, self._owned = traces, tracer, owned
        self._turn: tuple[TurnId, Span] | None = None
        self._step: tuple[int, Span] | None = None
        self._attempt = owned.attempt
        self._tools: dict[CallId, Span] = {}

    # What the driver tells --------------------------------------------------------------------------------------------

    @contextmanager
    def model_call(self, model: str, call: ModelCall) -> Iterator[Hearing]:
        """A `chat`. It is the current span of whatever the model's client does."""
        provider, _, name = model.rpartition(":")
        about = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": name,
            "gen_ai.output.type": "text",
            "orchestrator.try": call.tries + 1,
            "orchestrator.purpose": call.purpose,
        }
        if provider:
            about["gen_ai.provider.name"] = PROVIDERS.get(provider, provider)
        span = self._begin(f"chat {name}", self._parent(call.purpose == "answer"), about, SpanKind.CLIENT)
        if self._traces.with_content and span.is_recording():
            span.set_attribute("gen_ai.system_instructions", shown(call.instructions))
            span.set_attribute("gen_ai.input.messages", shown(call.history[-1:]))

        def heard(what: Heard) -> Heard:
            match what:
                case Answer(usage=usage, finish=finish):
                    span.set_attributes({**told(usage), "gen_ai.response.finish_reasons": [finish]})
                    if self._traces.with_content:
                        calls = [{"id": one.provider_id, "name": one.tool, "input": one.input} for one in what.calls]
                        span.set_attribute("gen_ai.output.messages", shown({"text": what.text, "calls": calls}))
                case ModelFailure(code=code):
                    _failed(span, code)
                case None:
                    span.set_attribute("orchestrator.interrupted", True)
            return what

        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield heard
        except BaseException as broken:
            span.set_attribute("orchestrator.interrupted", True)
            span.set_attribute("error.type", type(broken).__name__)
            raise
        finally:
            contexts.detach(token)
            span.end()

    @contextmanager
    def tool_call(self, call: Call, arguments: Mapping[str, object]) -> Iterator[object]:
        """An `execute_tool`. It is the current span of whatever the tool does."""
        about = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.provider_id or call.id,
            "orchestrator.call.id": call.id,
        }
        span = self._begin(f"execute_tool {call.tool}", self._parent(True), about)
        if self._traces.with_content and span.is_recording():
            span.set_attribute("gen_ai.tool.call.arguments", shown(arguments))
        self._tools[call.id] = span
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield None
        finally:
            contexts.detach(token)

    def tool_ended(self, call: Call, outcome: Outcome | None) -> None:
        """It has its outcome."""
        span = self._tools.pop(call.id, None)
        if span is None:
            return
        if outcome is None:
            span.set_attribute("orchestrator.interrupted", True)
        elif code := code_of(outcome):
            _failed(span, code)
        if outcome is not None and self._traces.with_content:
            span.set_attribute("gen_ai.tool.call.result", shown(outcome.output))
        span.end()

    def committed(self, facts: Sequence[Fact], before: Snapshot, seconds: float) -> None:  # noqa: ARG002
        """Ends the spans of what was closed with it."""
        turn, after = before.turn, self._owned.snapshot.turn
        if turn is not None:
            self._close(facts, turn)
        goes_on = turn is not None and after is not None and (after.id, after.step) == (turn.id, turn.step)
        self._attempt = max(self._owned.attempt, self._attempt if goes_on else 1)

    def _close(self, facts: Sequence[Fact], turn: Turn) -> None:
        used, spent, step_open = turn.usage, turn.spent, turn.step_open
        for fact in facts:
            match fact:
                case ModelAnswered(usage=usage):
                    used, spent = used + usage, spent + usage
                case StepFailed(code=code) if step_open:
                    _failed(self._step_span(turn, fact.step), code)
                case StepSettled() | StepCut() if step_open:
                    self._end_step(turn, used)
                    step_open = False
                case TurnSettled(outcome=outcome, code=code):
                    if step_open:
                        self._end_step(turn, used)
                    span = self._turn_span(turn)
                    span.set_attributes({"orchestrator.turn.outcome": outcome, **told(spent)})
                    if code:
                        _failed(span, code)
                    span.end()
                    self._turn = None
                    return  # what follows is of the next turn
                case _:
                    pass

    def leave(self) -> None:
        """What this driver has begun and not ended is ended by another, or was left behind."""
        for span in self._tools.values():
            span.set_attribute("orchestrator.interrupted", True)
            span.end()
        self._tools.clear()
        self._turn = self._step = None

    # Spans ------------------------------------------------------------------------------------------------------------

    def _parent(self, of_step: bool) -> Context:
        turn = self._owned.snapshot.turn
        if turn is None:
            return Context()  # the history is made shorter between two turns: a trace of its own
        span = self._step_span(turn, turn.step) if of_step or turn.step_open else self._turn_span(turn)
        return trace.set_span_in_context(span, Context())

    def _turn_span(self, turn: Turn) -> Span:
        if self._turn is None or self._turn[0] != turn.id:
            parent = _W3C.extract({"traceparent": turn.trace}, Context())
            about = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": turn.agent,
                "orchestrator.deployment": self._traces.deployment,
            }
            ordered = ids_of(self._owned.session, turn.id)
            span = self._begin(f"invoke_agent {turn.agent}", parent, about, ids=ordered, at_ms=turn.started)
            self._turn, self._step = (turn.id, span), None
        return self._turn[1]

    def _step_span(self, turn: Turn, step: int) -> Span:
        above = self._turn_span(turn)
        if self._step is None or self._step[0] != step:
            ordered = (0, step_span_id(self._owned.session, turn.id, step))
            parent = trace.set_span_in_context(above, Context())
            self._step = step, self._begin(f"step {step}", parent, {"orchestrator.step": step}, ids=ordered)
        return self._step[1]

    def _end_step(self, turn: Turn, used: Usage) -> None:
        span = self._step_span(turn, turn.step)
        # The last one: which calls were of which attempt is told by them.
        span.set_attributes({"orchestrator.attempt": self._attempt, **told(used)})
        span.end()
        self._step = None

    def _begin(
        self,
        name: str,
        parent: Context,
        about: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        ids: tuple[int, int] | None = None,
        at_ms: int | None = None,
    ) -> Span:
        turn = self._owned.snapshot.turn
        common = {"gen_ai.conversation.id": self._owned.session, "orchestrator.attempt": self._owned.attempt}
        if turn is not None:
            common["orchestrator.turn"] = turn.id
        start = min(at_ms * 1_000_000, time.time_ns()) if at_ms else None
        token = _next_ids.set(ids)
        try:
            span: Span = self._tracer.start_span(
                name, parent, kind=kind, attributes={**common, **about}, start_time=start
            )
        finally:
            _next_ids.reset(token)
        return span


def told(usage: Usage) -> dict[str, int]:
    """Tokens as attributes."""
    found = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
    }
    return {name: tokens for name, tokens in found.items() if tokens or not name.count("cache")}


def shown(value: object) -> str:
    """Content as text, cut where it is long."""
    try:
        text = value if isinstance(value, str) else to_json(value, fallback=repr, inf_nan_mode="strings").decode()
    except Exception:
        text = json.dumps(repr(value))
    return text if len(text) <= MOST_CONTENT else f"{text[:MOST_CONTENT]}…"


def _failed(span: Span, code: str) -> None:
    span.set_attribute("error.type", code)
    span.set_status(StatusCode.ERROR)
