"""Any story, whatever happens in it and in whatever order, keeps every promise. `world.py` says what may happen, `people.py` what may
be asked for, `ledger.py` and `doors.py` what must be true after every call.

    ORCHESTRATOR_PROPERTY_RUNS=4000 pytest tests/property               as many stories as that (default 120)
    ORCHESTRATOR_PROPERTY_SEED=1234 pytest tests/property -k one        the story that failed, again
    ORCHESTRATOR_PROPERTY_SEED=1234 ORCHESTRATOR_PROPERTY_MOVES=40 ...  only its first moves, then peace

What fails says its seed, and the fewest first moves that still fail.
"""

from __future__ import annotations

import logging
import os

import pytest
import redis

from tests.property.world import World, story

RUNS = int(os.environ.get("ORCHESTRATOR_PROPERTY_RUNS", "120"))
SEED = os.environ.get("ORCHESTRATOR_PROPERTY_SEED", "")
MOVES = os.environ.get("ORCHESTRATOR_PROPERTY_MOVES", "")
CHUNK = 60
TRIES = int(os.environ.get("ORCHESTRATOR_PROPERTY_TRIES", "40"))


def shorter(client: redis.Redis, seed: int, moves: int) -> tuple[int, str]:
    """How many first moves still fail, and what they fail with: halved while that works, then a few less."""
    found, text = moves, ""
    for _ in range(TRIES):
        for less in (found // 2, found * 3 // 4, found - 5, found - 1):
            if not 0 < less < found:
                continue
            try:
                story(client, seed, less)
            except Exception as broken:
                found, text = less, str(broken)
                break
        else:
            break
    return found, text


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_every_story_keeps_every_promise(client: redis.Redis, first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    seeds = range(first, min(first + CHUNK, RUNS))
    steps = 0
    for seed in seeds:
        try:
            world = story(client, seed)
        except Exception as broken:
            moves, text = shorter(client, seed, World.moves_of(seed))
            again = f"ORCHESTRATOR_PROPERTY_SEED={seed} ORCHESTRATOR_PROPERTY_MOVES={moves}"
            raise AssertionError(f"{again} pytest tests/property -k one\n{text or broken}") from broken
        steps += world.steps
    assert steps > 5 * len(seeds), "the stories are too short to show anything"


@pytest.mark.skipif(not SEED, reason="ORCHESTRATOR_PROPERTY_SEED names none")
def test_one_story_keeps_every_promise(client: redis.Redis) -> None:
    story(client, int(SEED), int(MOVES) if MOVES else None)


def test_a_seed_is_a_story(client: redis.Redis) -> None:
    """The same seed is the same story: else a failure could not be looked at again."""
    once, again = story(client, 5), story(client, 5)
    assert [(said.verb.name, said.at) for said in once.said] == [(said.verb.name, said.at) for said in again.said]
    assert once.steps == again.steps
