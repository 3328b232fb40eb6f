"""Old deltas: about 35 bytes in the place of 260, with the same index, id and coordinates when read.

A stub is a letter for the type, the event's ULID, its turn's sequence and its stepIndex. A line begins with a brace, so the two
cannot be mistaken for each other.
"""

from __future__ import annotations

import json

from orchestrator.clock import iso
from orchestrator.core.event import encode
from orchestrator.ids import ulid_ms

LETTERS = {"message.appended": "m", "reasoning.appended": "r"}
TYPES = {letter: kind for kind, letter in LETTERS.items()}
FIELDS = {"m": "messageDelta", "r": "reasoningDelta"}


def stub(line: bytes) -> str | None:
    """The stub of a delta's line; None for any other line."""
    if not line.startswith((b'{"type":"message.appended"', b'{"type":"reasoning.appended"')):
        return None
    event = json.loads(line)
    data = event["data"]
    return f"{LETTERS[event['type']]}{event['meta']['id'][4:]}{data['sequence']}:{data['stepIndex']}"


def restore(line: bytes) -> bytes:
    """The line of a stub: the event with an empty delta. Any other line as it is."""
    if line[:1] == b"{":
        return line
    text = line.decode()
    letter, name, (sequence, _, step) = text[0], text[1:27], text[27:].partition(":")
    return encode(
        {
            "type": TYPES[letter],
            "data": {
                "turnId": f"turn_{sequence}",
                "sequence": int(sequence),
                "stepIndex": int(step),
                FIELDS[letter]: "",
            },
            "meta": {"id": f"evt_{name}", "at": iso(ulid_ms(name))},
        }
    ).encode()
