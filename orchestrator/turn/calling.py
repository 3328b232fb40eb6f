"""The effect "run the tools": start the calls of an answer that have no result, and take in their results as they come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from orchestrator.clock import steady
from orchestrator.core.event import Bodies, Outcome
from orchestrator.core.fact import CallsJudged, CallStarted, CallStatus, ToolReturned, Verdict
from orchestrator.core.names import CallId
from orchestrator.core.snapshot import Call, Principal
from orchestrator.errors import NotStorable
from orchestrator.notes import digest_of
from orchestrator.perform import Returned, ToolRun, Withheld, failed, plain_json, run_tool
from orchestrator.ports import WrongCall
from orchestrator.process.owned import NEWS
from orchestrator.state import SessionState, StateView
from orchestrator.tool import Approved, Tool, ToolContext
from orchestrator.turn.filing import user_files
from orchestrator.turn.hands import Hands
from orchestrator.turn.judging import first_gate, judge_again

log = logging.getLogger(__name__)

AFTER_TIMEOUT = 30.0
STOP_SECONDS = 1.0
Start = tuple[Call, Tool, dict[str, object]]


class Calling:
    """The tool calls that run for one owned session."""

    def __init__(self, hands: Hands, state: SessionState, record: Callable[[Sequence[CallStarted]], bool]) -> None:
        """`record` commits that calls are about to start; False if the turn must not go on."""
        self._hands = hands
        self._state = state
        self._record = record
        self._running: list[ToolRun] = []
        self._on_record: set[CallId] = set()
        self._judged: set[CallId] = set()

    def run(self) -> None:
        """Start the calls that have no result and do not run here yet; take in at least one result."""
        hands, owned, turn = self._hands, self._hands.owned, self._hands.turn
        going = {run.call.id for run in self._running}
        fresh = [call for call in turn.calls if call.state != "settled" and call.id not in going and may_run(call)]
        if fresh and not self._start(fresh):
            return None
        if hands.given:
            return None
        owned.busy_until = max((run.until for run in self._running), default=steady()) + AFTER_TIMEOUT
        while True:
            soonest = min((run.until for run in self._running), default=None)
            seconds = None if soonest is None or soonest == float("inf") else max(soonest - steady(), 0.001)
            item = hands.hear(seconds)
            if item is NEWS and hands.unjudged() and not hands.interrupted():
                return None  # whoever sent it is told what becomes of it
            if isinstance(item, Returned) and item.run is self:
                self._returned(item)
                # What is ready together is committed together.
                for other in hands.ready():
                    self._returned(other)
                return None
            if isinstance(item, Withheld) and item.run is self:
                withheld = [run for run in self._running if run.call.id == item.call]
                self._running = [run for run in self._running if run.call.id != item.call]
                for run in withheld:
                    hands.watch.tool_ended(run.call, None)
                return None  # the driver looks at the lease, and starts it again if it may
            if hands.interrupted():
                return self.stop()
            if self._time_out():
                return None

    def forget(self) -> None:
        """The step is closed."""
        self._on_record, self._judged = set(), set()

    def stop(self) -> None:
        """Stop what runs. What cannot be stopped is left behind; if this process is leaving, it must be ended hard."""
        for run in self._running:
            run.cancel()
            self._hands.watch.tool_ended(run.call, None)
        until = steady() + STOP_SECONDS
        for run in self._running:
            if run.running is not None:
                run.running.ended.wait(max(until - steady(), 0))
        process = self._hands.process
        if process.grace_over.is_set() and any(run.unstoppable for run in self._running):
            process.hard_exit_needed = True
        self._running = []

    # Starting ---------------------------------------------------------------------------------------------------------

    def _start(self, fresh: list[Call]) -> bool:
        """Start calls. False when a start had to be committed and news came with it: a refusal, or that the turn must stop."""
        hands = self._hands
        approved = [
            one for one in fresh if (one.gate, one.state) == ("approved", "asked") and one.id not in self._judged
        ]
        if approved and not judge_again(hands, approved):
            return False
        self._judged.update(call.id for call in approved)
        if hands.given:
            return True
        ready = self._ready(fresh)
        if hands.given:
            return True
        turn, at = hands.turn, hands.process.clock.now()
        starts = [
            CallStarted(turn.id, call.id, at)
            for call, tool, _ in ready
            if call.gate == "approved" or {"report", "ask"} & {tool.on_interrupt, call.on_interrupt}
        ]
        if starts:
            # From here on these calls may have happened: it must be on record before they begin.
            if not self._record(starts):
                return False
            self._on_record.update(start.call for start in starts)
            if hands.interrupted():
                return False
            hands.look_at_the_lease()
        hands.owned.open_stream(turn)
        for call, tool, arguments in ready:
            self._running.append(self._begin(call, tool, arguments))
        return True

    def _ready(self, fresh: list[Call]) -> list[Start]:
        """The calls that can start. Those that cannot have their result now."""
        hands = self._hands
        tools = {tool.name: tool for tool in hands.agent.tools}
        toolbox = hands.process.layer.toolbox(hands.agent.tools)
        inputs = hands.inputs()
        ready: list[Start] = []
        again: list[Verdict] = []
        for call in fresh:
            tool = tools.get(call.tool)
            if call.state == "started" and call.id not in self._on_record and call.on_interrupt == "ask":
                again.append(Verdict(call.id, "ask"))
            elif call.state == "started" and call.id not in self._on_record:
                text = "The call was interrupted. It may have run, wholly or partly."
                self._settle(call, failed("OUTCOME_UNKNOWN", text))
            elif call.gate == "approved" and call.digest != digest_of(inputs[call.id]):
                text = "This call is not the one that was approved."
                self._settle(call, failed("APPROVAL_OF_ANOTHER_CALL", text))
            elif tool is None:
                text = f"There is no tool {call.tool!r} any more: the agent was changed while this call was waiting."
                self._settle(call, failed("TOOL_REMOVED", text))
            elif not (call.asks or call.gate) and first_gate(tool.approval, hands.owned.snapshot.approved, tool.name):
                # A deploy has put it under approval since the model asked for it.
                again.append(Verdict(call.id, "ask"))
            else:
                try:
                    ready.append((call, tool, toolbox.check(call.tool, inputs[call.id])))
                except WrongCall as problem:
                    self._settle(call, failed("INVALID_CALL", str(problem)))
        if again:
            # It may have run, or it must not run without leave any more: a person decides.
            turn = hands.turn
            hands.give(CallsJudged(turn.id, turn.step, tuple(again), hands.process.clock.now()))
        return ready

    def _begin(self, call: Call, tool: Tool, arguments: dict[str, object]) -> ToolRun:
        hands, owned, process = self._hands, self._hands.owned, self._hands.process

        def progress(value: object) -> None:
            # One that was left behind talks to nobody.
            if not context.cancelled.is_set() and owned.show(call.id, call.tool, _shown(value)):
                process.pump.hint(owned)

        context = ToolContext(
            session=hands.session_view(),
            call_id=call.id,
            idempotency_key=f"{owned.session}/{hands.turn.id}/{call.id}",
            attempt=owned.attempt,
            state=StateView(self._state),
            files=user_files(hands) if tool.takes_context else (),
            approval=self._approval(call) if tool.takes_context and call.gate == "approved" else None,
            _progress=progress,
        )
        loops, threads = process.loops, process.threads
        with hands.watch.tool_call(call, arguments):
            return run_tool(
                call, tool, arguments, context, owned.mailbox, loops, threads, self, steady(), owned.is_ours
            )

    def _approval(self, call: Call) -> Approved | None:
        request = next(one for one in reversed(self._hands.turn.requests) if one.call == call.id)
        note = self._hands.notes([request.id]).get(request.id, {})
        by = note.get("by")
        return Approved(request.id, Principal(**by) if by else None, str(note.get("text", "")))

    # Results ----------------------------------------------------------------------------------------------------------

    def _returned(self, item: Returned) -> None:
        run = next((run for run in self._running if run.call.id == item.call), None)
        if run is None:
            return
        self._running.remove(run)
        outcome = item.outcome
        try:
            self._state.apply(item.changes)
        except Exception as broken:
            name = "NotStorable" if isinstance(broken, NotStorable) else type(broken).__name__
            outcome = failed("STATE_NOT_CHANGED", f"{name}: {broken}", name)
        self._settle(run.call, outcome)
        if item.fatal:
            self._hands.fail_step("TOOL_FATAL", item.fatal)

    def _settle(self, call: Call, outcome: Outcome) -> None:
        status: CallStatus = "completed" if outcome.status == "completed" else "failed"
        turn = self._hands.turn
        self._hands.watch.tool_ended(call, outcome)
        fact = ToolReturned(turn.id, turn.step, call.id, status, self._hands.process.clock.now())
        self._hands.give(fact, Bodies(outcomes={call.id: outcome}))

    def _time_out(self) -> bool:
        now = steady()
        late = [run for run in self._running if run.until <= now]
        for run in late:
            run.cancel()
            self._running.remove(run)
            if run.unstoppable:
                log.warning("%s: %s hangs and is left behind", self._hands.owned.session, run.call.tool)
            text = f"{run.call.tool} took longer than its timeout and was stopped. It may have partly run."
            self._settle(run.call, failed("TOOL_TIMEOUT", text))
        return bool(late)


def may_run(call: Call) -> bool:
    """Whether nothing stands before a call any more."""
    return call.gate in ("", "approved")


def _shown(value: object) -> object:
    try:
        return plain_json(value)
    except ValueError as broken:
        return str(broken)
