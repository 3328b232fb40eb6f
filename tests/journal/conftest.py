"""A hand at an empty journal, on Valkey and on Redis 7 in turn."""

from __future__ import annotations

import pytest
import redis

from tests.journal.world import Hand
from tests.servers import Server


@pytest.fixture
def hand(server: Server, client: redis.Redis) -> Hand:
    """A caller with a clock in its hand; the broker is the journal's own database."""
    return Hand(client)
