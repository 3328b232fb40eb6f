"""Lua scripts by name: the file's header says what it takes, callers pass it by keyword.

Line 1 of a script becomes its flags, line 2 the binding of the header's names and the parts it uses (each a `.part` file), so that an
error of Redis names the right line of the file, and line 2 if it is in a part. The SHA is computed here; a server that does not know a
script yet is given it once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import redis

FOLDER = Path(__file__).parent / "lua"
Value = str | int | float | bytes


class Script:
    """One verb's script."""

    def __init__(self, name: str) -> None:
        text = (FOLDER / f"{name}.lua").read_text()
        header = dict(re.findall(r"^-- (FLAGS|PARTS|KEYS|ARGV) ?(.*)$", text, re.MULTILINE))
        self.name = name
        self.keys = header.get("KEYS", "").split()
        self.args = header.get("ARGV", "").split()
        bindings = [f"local {key} = KEYS[{place}]" for place, key in enumerate(self.keys, 1)]
        bindings += [f"local {arg} = ARGV[{place}]" for place, arg in enumerate(self.args, 1)]
        bindings.append(f"local rest = {len(self.args)}")
        parts = [_part(name) for name in header.get("PARTS", "").split()]
        flags = "#!lua flags=allow-oom" if header["FLAGS"] == "allow-oom" else "#!lua"
        lines = text.split("\n")
        self.text = "\n".join([flags, "; ".join(bindings) + " " + " ".join(parts), *lines[2:]])
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()

    def command(
        self, named: Mapping[str, Value], rest: Iterable[Value] = (), more_keys: Iterable[str] = ()
    ) -> tuple[Value, ...]:
        """The EVALSHA command. Names that the header has and the caller has not are a `KeyError`."""
        keys = [named[key] for key in self.keys]
        keys.extend(more_keys)
        return ("EVALSHA", self.sha, len(keys), *keys, *[named[arg] for arg in self.args], *rest)

    def load(self, client: redis.Redis) -> None:
        """Give the server the script."""
        client.execute_command("SCRIPT LOAD", self.text)


def _part(name: str) -> str:
    lines = (FOLDER / f"{name}.part").read_text().split("\n")
    return " ".join(line for line in lines if not line.lstrip().startswith("--"))


@cache
def script(name: str) -> Script:
    """The script of a verb."""
    return Script(name)


VERBS = (
    *("create", "deliver", "arrive", "reserve", "list_address", "take_address", "drop_address"),
    *("own", "commit", "append", "renew", "release", "disown", "keep_blob", "take_out", "settle_out", "claim"),
    *("due", "prune", "forget", "erase", "heartbeat"),
)
