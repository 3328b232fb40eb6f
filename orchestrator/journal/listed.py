"""What a session's list says of an address: its state and since when, then its kind, channel and text.

`o` it is the session's, `t` it is being taken, `d` it is being dropped, `w` it was the session's: its door may still name it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

CHANNEL = "channel"
OPERATION = "op"
OWNED = "o"


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of the list."""

    state: str
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
    return Listed(state[:1].decode(), kind, channel, text)
