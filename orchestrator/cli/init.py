"""`orchestrator init`: a small project that runs at once. Its files are in `project/`, as they are written but for the project's name."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.cli.printed import say
from orchestrator.errors import ConfigError

TEMPLATE = Path(__file__).parent / "project"
SUFFIX = ".in"
"""Of every file in there: none of them is a module or a test of ours."""
DOT = "dot-"
"""Stands for the dot of a file that begins with one."""
NAME = "NAME"


def init(folder: Path) -> int:
    """Write the project into a folder that is new or empty. Raises `ConfigError`."""
    place = folder.expanduser().absolute()
    name = re.sub(r"[^a-z0-9]+", "-", place.name.lower()).strip("-") or "agents"
    try:
        if place.is_dir() and any(place.iterdir()):
            raise ConfigError(
                problem=f"{place} has something in it already.", remedy="Name a folder that is new or empty."
            )
        if place.exists() and not place.is_dir():
            raise ConfigError(problem=f"{place} is no folder.", remedy="Name one that is new or empty.")
        for source in sorted(TEMPLATE.rglob(f"*{SUFFIX}")):
            target = place / target_of(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text().replace(NAME, name))
    except OSError as broken:
        raise ConfigError(
            problem=f"{place} cannot be written: {broken.strerror or broken}.",
            remedy="Name a folder that you may write to.",
        ) from broken
    say(f"{place} is ready. Run it:\n\n  cd {folder}\n  orchestrator dev\n\nREADME.md says how to talk to it.")
    return 0


def target_of(source: Path) -> Path:
    """Where a file of the template goes, within the project."""
    path = source.relative_to(TEMPLATE)
    name = path.name.removesuffix(SUFFIX)
    return path.with_name(f".{name.removeprefix(DOT)}" if name.startswith(DOT) else name)
