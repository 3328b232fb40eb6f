"""How things are printed: for people, with nothing in it that a terminal would obey; for programs, as JSON."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence


def plain(text: object) -> str:
    """Text of somebody else on one line: control characters become visible, line ends become spaces."""
    letters = str(text).replace("\r\n", " ").replace("\n", " ").replace("\t", " ")
    return "".join(_visible(letter) for letter in letters)


def _visible(letter: str) -> str:
    # Cc: what terminals obey. Cs: halves of characters, which cannot be printed.
    return f"\\u{ord(letter):04x}" if letter in TURNS_AROUND or unicodedata.category(letter) in ("Cc", "Cs") else letter


TURNS_AROUND = frozenset(map(chr, (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))))
"""What changes the direction of a line, so that it reads as something else."""


def short(text: object, most: int = 160) -> str:
    """The same, cut where it is long."""
    line = plain(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def as_json(value: object) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def say(text: str = "", *, end: str = "\n") -> None:
    """A line on standard output."""
    sys.stdout.write(text + end)


def note(text: str) -> None:
    """A line on standard error, beside what was asked for."""
    print(text, file=sys.stderr, flush=True)


def columns(rows: Sequence[Sequence[object]], indent: str = "") -> None:
    """Rows in columns, each as wide as it must be."""
    texts = [[plain(cell) for cell in row] for row in rows]
    widths = [max((len(row[place]) for row in texts), default=0) for place in range(len(texts[0]) if texts else 0)]
    for row in texts:
        say(indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def seconds(ms: float) -> str:
    """A duration as people say it: 12 ms, 3.4 s, 5 min, 2 h, 3 d."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    for most, unit, name in ((60_000, 1000, "s"), (3_600_000, 60_000, "min"), (86_400_000, 3_600_000, "h")):
        if ms < most:
            return f"{ms / unit:.1f} {name}"
    return f"{ms / 86_400_000:.1f} d"
