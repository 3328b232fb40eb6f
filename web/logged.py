"""Paths as a log may show them: what opens a door by being known is cut off."""

from __future__ import annotations

import re

CAPABILITY = re.compile(r"(/(?:callback|webhook|requests)/).+")
"""Behind these words stand texts that nobody can guess; who has one needs no other key."""


def cut(path: str) -> str:
    """The path without what must not be known."""
    return CAPABILITY.sub(r"\1…", path)
