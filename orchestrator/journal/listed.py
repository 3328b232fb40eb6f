"""What a session's list says of an address: its state and the number of what was done last, then its kind, channel and text.

Numbers are times in ms, each later than the one before, so that what runs late is known to be late.
`o` it is the session's, `t` it is being taken, `d` it is being dropped, `w` it was the session's: its door may still name it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

CHANNEL = "channel"
OPERATION = "op"
OWNED, WAS = "o", "w"


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of the list."""

    state: str
    number: int
    kind: str
    channel: str
    text: str


def listed(kind: str, channel: str, text: str) -> str:
    """What is said of an address beside its state."""
    return json.dumps([kind, channel, text], separators=(",", ":"))


def understood(said: bytes) -> Listed:
    """An entry as it is stored."""
    state, _, what = said.partition(b" ")
    kind, channel, text = json.loads(what)
    return Listed(state[:1].decode(), int(state[1:]), kind, channel, text)
