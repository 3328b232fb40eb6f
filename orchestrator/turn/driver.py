"""The loop and the commit: judge, perform, commit, until the session is parked, chained or given back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, assert_never

from orchestrator.clock import steady
from orchestrator.core.advance import Scene, key_of_next, next_effect, understands
from orchestrator.core.effect import (
    AskPeople,
    CallModel,
    Compact,
    Effect,
    Hold,
    JudgeCalls,
    JudgeCandidate,
    RunTools,
    Wait,
)
from orchestrator.core.event import Outcome
from orchestrator.core.fact import CallStarted, CompactionLeft, TailLost
from orchestrator.core.names import CallId, Millis
from orchestrator.core.snapshot import READS, Usage
from orchestrator.draft import Draft, Given, Ground, draft, started_step
from orchestrator.journal import Done, Mode, News
from orchestrator.journal.calling import MOST_HEADS
from orchestrator.process.owned import READY_SECONDS, Owned
from orchestrator.process.shared import Process
from orchestrator.state import SessionState
from orchestrator.turn.alone import FAULTS
from orchestrator.turn.asking import ask
from orchestrator.turn.calling import Calling
from orchestrator.turn.compacting import compact
from orchestrator.turn.hands import Hands
from orchestrator.turn.judging import judge_calls, judge_candidate
from orchestrator.turn.requesting import request_input
from orchestrator.watching import UNWATCHED
from orchestrator.watching import Drive as Watching

SHORT_WAIT_MS = 2_000
"""A wait that is longer becomes a timer and frees the worker."""

Left = Literal["chained", "parked", "ended", "too_new"]
"""How a session was left: with a wake for its next step, without one, for good, or for a worker that can read it."""


class Driver:
    """Drives one owned session."""

    def __init__(self, process: Process, owned: Owned, lost_events: int = 0, watch: Watching = UNWATCHED) -> None:
        self.steps = 0
        self._process = process
        self._owned = owned
        self._hands = Hands(process, owned, watch)
        self._state = SessionState(lambda: process.repeat(lambda: process.reads.state(owned.session)))
        self._calling = Calling(self._hands, self._state, self._record_starts)
        self._outcomes: dict[CallId, Outcome] = {}
        self._commits = itertools.count()
        if owned.position.events < lost_events:
            self._hands.give(TailLost(owned.position.events, lost_events, None, 0, process.clock.now()))

    @property
    def has_posts(self) -> bool:
        """Whether its outbox has something to post."""
        return self._hands.has_posts

    # The loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> Left:
        """Until there is nothing to do, or the task has done its share."""
        try:
            self._load_outcomes()
            self._look_for_poison()
            while True:
                if self._owned.lost:
                    self._hands.lose(self._owned.lost)
                # What comes before an effect may take its time: a provider's library is loaded, a long history is read.
                self._owned.busy_until = steady() + READY_SECONDS
                made = self._draft()
                effect = next_effect(made.snapshot, self._process.clock.now())
                left = self._go_on(made, effect) if effect is not None else self._between_turns(made)
                if left is not None:
                    return left
        finally:
            self._calling.stop()
            self._hands.let_go()

    def _between_turns(self, made: Draft) -> Left | None:
        assert made.snapshot.turn is None, f"{self._owned.session}: an open turn without an effect"
        if made.ended:
            return "ended" if self._commit(made, "end") is not None else None
        if made.snapshot.ending:
            if self._commit(made, "keep") is not None:
                self._hands.look_at_the_inbox()
            return None
        more = made.snapshot.waiting > 0
        mode: Mode = "park" if not more else "chain" if self._share_done(made) else "keep"
        done = self._commit(made, mode)
        if done is None:
            return None
        if not done.kept:
            return "chained" if more else "parked"
        if self._share_done():
            return self._release()
        self._hands.look_at_the_inbox()
        if not self._hands.heads:
            return self._release()
        return None if any(map(understands, self._hands.heads)) else self.leave_for_newer()

    def _go_on(self, made: Draft, effect: Effect) -> Left | None:
        hands = self._hands
        match effect:
            case Hold():
                return self._park(made)
            case Wait(until=until) if until - self._process.clock.now() > SHORT_WAIT_MS:
                return self._park(made)
            case Wait(until=until):
                if self._commit(made, "keep") is not None:
                    self._wait(until)
            case _:
                if (started_step(made) or made.ended_turn) and self._share_done(made):
                    return "chained" if self._commit(made, "chain") is not None else None
                if self._commit(made, "keep") is None:
                    return None
                if len(hands.heads) >= MOST_HEADS:
                    hands.look_for_news()
                if hands.interrupted():
                    return None
                hands.look_at_the_lease()
                self._perform(effect)
        return None

    def _park(self, made: Draft) -> Left | None:
        """Leave it to the timer, or to whoever has to act. What has come in meanwhile is looked at first."""
        done = self._commit(made, "park")
        if done is None or not done.kept:
            return None if done is None else "parked"
        return None if any(map(understands, done.heads)) else self.leave_for_newer()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case CallModel():
                ask(self._hands)
            case RunTools():
                self._calling.run()
            case JudgeCalls():
                judge_calls(self._hands, effect)
            case JudgeCandidate():
                judge_candidate(self._hands, effect)
            case AskPeople():
                request_input(self._hands, effect)
            case Compact():
                compact(self._hands, effect)
            case Hold() | Wait():
                raise AssertionError(f"{effect} is nothing to perform")
            case _:
                assert_never(effect)

    def _wait(self, until: Millis) -> None:
        """A short wait in place; news and leaving end it."""
        seconds = max((until - self._process.clock.now()) / 1000, 0.001)
        self._owned.busy_until = steady() + seconds + READY_SECONDS
        self._hands.hear(seconds)

    def _share_done(self, made: Draft | None = None) -> bool:
        """Whether this task has closed as many steps as it may, `made` among them if it is not written yet."""
        closed = self.steps + (1 if made is not None and made.closed_step else 0)
        return closed >= self._process.settings.steps_per_task or self._process.draining.is_set()

    def _release(self) -> Left:
        what = key_of_next(self._owned.snapshot)
        self._process.repeat(lambda: self._process.journal.release(self._owned.session, self._owned.token, what))
        return "chained"

    def leave_for_newer(self) -> Left:
        """The history has a row this version cannot read: the session waits for a worker that can. Its turn stays open."""
        owned = self._owned
        writes = Draft(self._draft().ground, owned.snapshot).writes(self._commit_id(), "park", reads=READS + 1)
        answer = self._process.repeat(lambda: self._process.journal.commit(owned.session, owned.token, writes))
        return self._release() if isinstance(answer, Done) and answer.kept else "too_new"

    # Committing -------------------------------------------------------------------------------------------------------

    def _draft(self) -> Draft:
        owned, hands = self._owned, self._hands
        at, deadline = self._process.clock.now(), owned.granted.deadline
        scene = Scene(
            at=at,
            agent=hands.agent.name,
            model=hands.model_name,
            seq=0,
            events=0,
            call=hands.call,
            most_tokens=int(hands.agent.compact_at * hands.window),
            all_in=hands.all_in,
            # What only a newer version understands is served first, by that.
            expired=0 < deadline <= at and all(map(understands, hands.heads)),
            may_ask=hands.may_ask,
        )
        ground = Ground(
            session=owned.session,
            snapshot=owned.snapshot,
            position=owned.position,
            fact_base=owned.granted.fact_base,
            attempt=owned.attempt,
            token=owned.token,
            scene=scene,
            layer=self._process.layer,
            pinned=hands.pinned,
            load=hands.bodies,
            posts=hands.posts,
            notes=hands.notes,
            outcomes=dict(self._outcomes),
            aside=hands.aside,
            result=hands.result,
            budgets=hands.agent.limits.budgets,
        )
        return draft(ground, hands.given, hands.heads, hands.loose)

    def _commit(self, made: Draft, mode: Mode, *, fsync: bool = False) -> Done | None:
        """Write it. None: refused because of news, which is taken in; make the draft again."""
        owned, hands = self._owned, self._hands
        if not made and mode == "keep":
            return Done(self._process.clock.now(), owned.last_n, True, hands.heads)
        if made.ended_turn:
            self._calling.stop()
        asked_at = steady()
        with owned.sending:
            # Between the flush and the commit nothing may be appended: the commit names the place it builds on.
            hands.flush()
            made.ground.position = owned.position
            writes = made.writes(self._commit_id(), mode, state=self._state.pending(), fsync=fsync)
            begun = steady()
            answer = self._process.repeat(lambda: self._process.journal.commit(owned.session, owned.token, writes))
            took = steady() - begun
            if isinstance(answer, Done):
                owned.position = writes.snapshot.at
        if isinstance(answer, News):
            hands.take_in(answer.heads)
            return None
        if not isinstance(answer, Done):
            hands.lose(answer)
        before, owned.snapshot = owned.snapshot, writes.snapshot
        owned.renewed(asked_at)
        owned.last_n = max(owned.last_n, answer.n)
        self._wrote(made, answer)
        hands.watch.committed(made.facts, before, took)
        return answer

    def _wrote(self, made: Draft, done: Done) -> None:
        hands = self._hands
        hands.given, hands.loose, hands.heads = [], None, done.heads
        hands.all_in, hands.call = False, ""
        hands.has_posts = done.out > 0
        hands.wrote(made.rows, made.new_gen, made.aside)
        self._state.committed()
        if made.closed_step:
            self.steps += 1
        if made.progress:
            self._owned.attempt = 1
        self._outcomes = made.ground.outcomes
        turn = self._owned.snapshot.turn
        if made.closed_step or made.ended_turn:
            self._calling.forget()
        if turn is None or not turn.calls:
            self._outcomes, hands.asked = {}, {}

    def _record_starts(self, starts: Sequence[CallStarted]) -> bool:
        """Commit, on disk where the server can, that calls are about to start. False: news came in; they must not."""
        self._hands.given = [Given(start) for start in starts]
        if self._commit(self._draft(), "keep", fsync=True) is None:
            self._hands.given = []
            return False
        return self._owned.snapshot.turn is not None

    def _commit_id(self) -> str:
        return f"{self._owned.token[-26:]}.{next(self._commits)}"

    # Beginning --------------------------------------------------------------------------------------------------------

    def _load_outcomes(self) -> None:
        turn = self._owned.snapshot.turn
        settled = [call.id for call in turn.calls if call.state == "settled"] if turn else []
        if settled:
            self._outcomes = self._process.repeat(lambda: self._process.reads.records(self._owned.session, settled))

    def _look_for_poison(self) -> None:
        snapshot, faults = self._owned.snapshot, self._owned.granted.faults
        turn = snapshot.turn
        if faults < FAULTS:
            return
        if snapshot.compacting is not None:
            self._hands.give(CompactionLeft("STEP_CRASHED", Usage(), self._process.clock.now()))
        elif turn is not None:
            text = f"Step {turn.step} brought its process down {faults} times and was given up."
            self._hands.fail_step("STEP_CRASHED", f"{text} Look at the tools it ran; the session can be used again.")
