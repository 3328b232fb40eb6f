"""A store that loses its tail: all of it is again as it was some calls ago, and what was promised meanwhile is taken back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import cast

import redis

from tests.property.book import Book
from tests.property.ledger import Ledger

REMEMBERED = 6


class Past:
    """The last states of a story's store. The broker is another one, and keeps what it has."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client, self._prefix = client, prefix
        self._kept = (f"{prefix}:orc.".encode(), f"{prefix}:wakes".encode())
        self._states: deque[tuple[dict[bytes, bytes], dict[str, Book]]] = deque(maxlen=REMEMBERED)

    def photograph(self, ledgers: Mapping[str, Ledger]) -> None:
        """Remember the store as it is."""
        keys = self._keys()
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.dump(key)
        dumps = cast("list[bytes]", pipe.execute())
        books = {session: ledger.book.copy() for session, ledger in ledgers.items()}
        self._states.append((dict(zip(keys, dumps, strict=True)), books))

    def rewind(self, calls: int, ledgers: Mapping[str, Ledger], owners: Mapping[str, Mapping[str, int]]) -> bool:
        """The store is again as it was so many calls ago. `owners`: for each session, how many events its owners have seen."""
        if len(self._states) < calls:
            return False
        dumps, books = self._states[-calls]
        for _ in range(calls):
            self._states.pop()
        pipe = self._client.pipeline(transaction=True)
        for key in self._keys():
            pipe.delete(key)
        for key, dump in dumps.items():
            pipe.restore(key, 0, dump)
        pipe.execute()
        for session, ledger in ledgers.items():
            ledger.rewind(books.get(session, Book()), owners.get(session, {}))
        return True

    def _keys(self) -> list[bytes]:
        found = self._client.scan_iter(match=f"{self._prefix}:*", count=1000)
        return [key for key in found if not key.startswith(self._kept)]
