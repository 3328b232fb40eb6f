"""Authored state: typed, durable values of a session that its tools read and change.

A call sees the committed state plus its own changes. They become committed together with the call's result, or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from orchestrator.core import codec
from orchestrator.errors import NotStorable

if TYPE_CHECKING:
    from orchestrator.tool import ToolContext

T = TypeVar("T")
SLOT_LIMIT = 64 * 1024
"""Bytes a slot's value may have when stored."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one slot: `make` gives the new value from the committed one."""

    slot: Slot[object]
    make: Callable[[object], object]


@dataclass(slots=True)
class StateView:
    """What one call sees: the committed values, as bytes, and the changes it made itself."""

    committed: Mapping[str, bytes] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slot(Generic[T]):
    """A named value of the session."""

    name: str
    default: Callable[[], T]
    type: object = None

    def get(self, ctx: ToolContext) -> T:
        """The value as this call sees it."""
        value: object = self.read(ctx.state.committed)
        for change in ctx.state.changes:
            if change.slot.name == self.name:
                value = change.make(value)
        return cast(T, value)

    def set(self, ctx: ToolContext, value: T) -> None:
        """Replace the value. Of two calls that set at the same time, the one committed last wins."""
        self._change(ctx, lambda _: value)

    def update(self, ctx: ToolContext, make: Callable[[T], T]) -> None:
        """Change the value by a pure function, which is applied again to the committed value when the call's result is."""
        self._change(ctx, cast("Callable[[object], object]", make))

    def _change(self, ctx: ToolContext, make: Callable[[object], object]) -> None:
        before = self.get(ctx)
        self.write(make(before))  # what cannot be stored is refused here, where the tool can see it
        ctx.state.changes.append(Change(cast("Slot[object]", self), make))

    def read(self, values: Mapping[str, bytes]) -> T:
        """The value among the stored ones, or the default."""
        stored = values.get(self.name)
        if stored is None:
            return self.default()
        value = codec.unpack_value(stored)
        kind = self.type or type(self.default())
        if kind in (type(None), object) or type(value) is kind:
            return cast(T, value)
        from pydantic import TypeAdapter

        return TypeAdapter(cast("type[T]", kind)).validate_python(value)

    def write(self, value: object) -> bytes:
        """The value as it is stored. Raises `NotStorable`."""
        try:
            from pydantic import BaseModel

            packed = codec.pack_value(value.model_dump() if isinstance(value, BaseModel) else value)
        except codec.Unstorable as broken:
            raise NotStorable(where=f"state {self.name!r}", kind=broken.kind) from broken
        if len(packed) > SLOT_LIMIT:
            raise NotStorable(where=f"state {self.name!r}", kind=f"value of {len(packed)} bytes (limit {SLOT_LIMIT})")
        return packed


class SessionState(Mapping[str, bytes]):
    """The committed state of a session, read when it is first looked at, and the changes that wait for the next commit."""

    def __init__(self, read: Callable[[], Mapping[str, bytes]]) -> None:
        self._read = read
        self._values: dict[str, bytes] | None = None
        self._changed: dict[str, bytes] = {}
        # Tools look from threads of their own; what one of them reads must not be older than what is committed meanwhile.
        self._lock = threading.Lock()

    def _loaded(self) -> dict[str, bytes]:
        with self._lock:
            if self._values is None:
                self._values = dict(self._read())
            return self._values

    def __getitem__(self, name: str) -> bytes:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())

    def apply(self, changes: Sequence[Change]) -> None:
        """Make a call's changes, on top of what waits already: all of them or, if one raises, none."""
        if not changes:
            return
        seen = {**self._loaded(), **self._changed}
        fresh: dict[str, bytes] = {}
        for change in changes:
            slot = change.slot
            seen[slot.name] = fresh[slot.name] = slot.write(change.make(slot.read(seen)))
        self._changed.update(fresh)

    def pending(self) -> tuple[tuple[str, bytes], ...]:
        """What the next commit writes."""
        return tuple(self._changed.items())

    def committed(self) -> None:
        """The commit has written it."""
        with self._lock:
            if self._values is not None:
                self._values.update(self._changed)
            self._changed = {}


def state(name: str, default: Callable[[], T], type: object = None) -> Slot[T]:
    """Declare a slot. `default` makes the value a session begins with; `type` says what it is read back as (its type by default)."""
    return Slot(name, default, type)
