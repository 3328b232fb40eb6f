"""Authored state: typed, durable values of a session that its tools read and change.

A call sees the committed state plus its own changes. They become committed together with the call's result, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def state(name: str, default: Callable[[], T], type: object = None) -> Slot[T]:
    """Declare a slot. `default` makes the value a session begins with; `type` says what it is read back as (its type by default)."""
    return Slot(name, default, type)
