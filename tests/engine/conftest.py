"""A world for each test."""

from collections.abc import Iterator

import pytest

from tests.worlds import World


@pytest.fixture
def world(url: str) -> Iterator[World]:
    """A store, and workers that may die."""
    world = World(url)
    yield world
    world.close()
