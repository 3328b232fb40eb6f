"""One word for a session: the first line of the table that fits."""

from __future__ import annotations

import itertools
import typing
from dataclasses import replace

import pytest

from orchestrator.core.status import Look, Status, status

QUIET = Look(life="live", owned=False, lease_ms=0, now_ms=1000, work=False, head_above_judged=False, next_timer=0)


@pytest.mark.parametrize(
    ("look", "word"),
    [
        (QUIET, "idle"),
        (replace(QUIET, lease_ms=5000), "idle"),  # a lease of nobody
        (replace(QUIET, owned=True, lease_ms=1001), "running"),
        (replace(QUIET, owned=True, lease_ms=1001, work=True, head_above_judged=True), "running"),
        (replace(QUIET, owned=True, lease_ms=1000), "interrupted"),
        (replace(QUIET, owned=True, lease_ms=0), "interrupted"),
        (replace(QUIET, work=True), "queued"),
        (replace(QUIET, head_above_judged=True), "queued"),
        (replace(QUIET, head_above_judged=True, hold="input"), "queued"),  # somebody must look at what came in
        (replace(QUIET, hold="input"), "waiting_for_input"),
        (replace(QUIET, hold="input", next_timer=2000), "waiting_for_input"),
        (replace(QUIET, hold="tasks"), "waiting_for_tasks"),
        (replace(QUIET, next_timer=1001), "waiting_for_timer"),
        (replace(QUIET, next_timer=1000), "queued"),  # it has come, and nobody has looked yet
        (replace(QUIET, work=True, reads=2, newest_reads=1), "needs_newer_worker"),
        (replace(QUIET, reads=2, newest_reads=2), "idle"),
        (replace(QUIET, reads=2, newest_reads=0), "idle"),  # nobody knows
        (replace(QUIET, owned=True, lease_ms=2000, reads=2, newest_reads=1), "running"),  # somebody can, evidently
        (replace(QUIET, life="ending", owned=True, lease_ms=2000), "ending"),
        (replace(QUIET, life="ended", work=True, reads=9, newest_reads=1), "ended"),
    ],
)
def test_a_look_has_one_word(look: Look, word: Status) -> None:
    assert status(look) == word


def test_every_look_has_a_word_and_every_word_a_look() -> None:
    yes_no = (False, True)
    words = {
        status(Look(life, owned, lease, 1000, work, head, timer, hold, reads, newest))
        for life, owned, lease, work, head, timer, hold, reads, newest in itertools.product(
            ("live", "ending", "ended"), yes_no, (0, 2000), yes_no, yes_no, (0, 500, 2000), ("", "input", "tasks"),
            (1, 2), (0, 1),
        )
    }  # fmt: skip
    assert words == set(typing.get_args(Status))
