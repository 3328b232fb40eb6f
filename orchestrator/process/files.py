"""The bytes of files that this process has had in its hands lately: each model call sends them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

MOST_BYTES = 64 * 1024 * 1024


class Files:
    """By the names of blobs, bounded in bytes; what was not used for longest goes first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes | str] = OrderedDict()
        self._bytes = 0

    def take(self, names: Sequence[str]) -> dict[str, bytes | str]:
        """Those that are here."""
        with self._lock:
            found = {name: self._kept[name] for name in names if name in self._kept}
            for name in found:
                self._kept.move_to_end(name)
            return found

    def put(self, files: Mapping[str, bytes | str]) -> None:
        """Remember them."""
        with self._lock:
            for name, data in files.items():
                if name not in self._kept:
                    self._kept[name] = data
                    self._bytes += len(data)
            while self._bytes > self._most:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= len(gone)
