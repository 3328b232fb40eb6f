"""The effect "make the history shorter": cap what old tools returned, or have the model sum up what was said long ago.

Whatever goes wrong, the history stays as it is and the session goes on.
"""

from __future__ import annotations

import logging

from orchestrator.core.context import COMPACTION_TRIES, NOTHING_TO_DO
from orchestrator.core.effect import Compact
from orchestrator.core.event import storable
from orchestrator.core.fact import Compacted, CompactionBegun, CompactionLeft, CompactionTryFailed
from orchestrator.core.names import turn_id
from orchestrator.core.snapshot import Usage
from orchestrator.draft import BYTES_PER_TOKEN
from orchestrator.errors import JournalAway, JournalFull, UnreadableHistory
from orchestrator.ports import Answer, Compaction, ModelCall, ModelFailure
from orchestrator.turn.asking import again_at, listen
from orchestrator.turn.hands import Hands

log = logging.getLogger(__name__)

A_WINDOW = 200_000
"""Tokens of context where nobody knows how many the model takes in."""
NO_SUMMARY = "NO_SUMMARY"


def compact(hands: Hands, effect: Compact) -> None:
    """Make the history shorter. What came of it is given to `hands`; nothing, if it was interrupted."""
    snapshot, layer, at = hands.owned.snapshot, hands.process.layer, hands.process.clock.now()
    window, used = hands.window or A_WINDOW, snapshot.context
    if snapshot.turn is not None and snapshot.turn.step_open:
        # The provider has just said that it does not take this much in: its window is full, and no larger than what we have.
        window = min(window, (used + hands.owned.position.fresh // BYTES_PER_TOKEN) or window)
        used = max(used, window)
    try:
        plan = layer.compaction(
            hands.messages(),
            window_tokens=window,
            used_tokens=used or None,
            asked=effect.asked,
        )
        if plan is None:
            hands.give(CompactionLeft(NOTHING_TO_DO, Usage(), at))
        elif not effect.begun:
            hands.give(CompactionBegun(hands.model_name, snapshot.context, at))
        elif not plan.request:
            _finish(hands, plan, "", Usage())
        else:
            _sum_up(hands, plan, effect.tries)
    except UnreadableHistory:
        raise
    except (JournalAway, JournalFull):
        raise
    except Exception as broken:
        log.warning("%s: the history stays as it is: %r", hands.owned.session, broken)
        hands.give(CompactionLeft(NO_SUMMARY, Usage(), at))


def _sum_up(hands: Hands, plan: Compaction, tries: int) -> None:
    process, snapshot = hands.process, hands.owned.snapshot
    call = ModelCall(
        session=hands.owned.session,
        turn=snapshot.turn.id if snapshot.turn else turn_id(snapshot.next_turn),
        step=snapshot.turn.step if snapshot.turn else 0,
        tries=tries,
        instructions=plan.instructions,
        history=plan.request,
        tools=process.layer.toolbox(()),
        purpose="summary",
    )
    match listen(hands, process.model(hands.agent), call, lambda _kind, _text: None):
        case Answer(text=text, finish="stop" | "other", usage=usage) if text.strip():
            _finish(hands, plan, storable(text), usage)
        case Answer(usage=usage):
            hands.give(CompactionLeft(NO_SUMMARY, usage, process.clock.now()))
        case ModelFailure() as failure:
            _broke(hands, failure, tries + 1)
        case None:
            return


def _broke(hands: Hands, failure: ModelFailure, tries: int) -> None:
    at, code = hands.process.clock.now(), storable(failure.code)
    log.warning("%s: try %d of the summary broke: %s", hands.owned.session, tries, failure)
    if failure.retryable and tries < COMPACTION_TRIES:
        hands.give(CompactionTryFailed(code, again_at(hands, failure, tries), at))
    else:
        hands.give(CompactionLeft(code, Usage(unmeasured=1), at))


def _finish(hands: Hands, plan: Compaction, summary: str, usage: Usage) -> None:
    owned, process = hands.owned, hands.process
    messages = process.layer.compacted(hands.messages(), plan, summary)
    gen = owned.position.gen
    kept = process.repeat(lambda: process.reads.rows(owned.session, gen, plan.cut))
    fact = Compacted(hands.model_name, gen + 1, usage, process.clock.now())
    hands.give_generation(fact, messages, kept)
