"""What a session's list says of an address: its state and since when, then its kind, channel and text.

`o` it is the session's, `t` it is being taken, `d` it is being dropped, `w` it was the session's: its door may still name it.
"""

from __future__ import annotations

import json

CHANNEL = "channel"
OPERATION = "op"


def listed(kind: str, channel: str, text: str) -> str:
    """What is said of an address beside its state."""
    return json.dumps([kind, channel, text], separators=(",", ":"))
