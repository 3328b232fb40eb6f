"""The one door to the provider library, pydantic-ai: models by name, tool schemas, history rows.

Nothing outside of this package imports it, and importing this package does not either: it takes half a second, which the
command line, the web process and a worker with scripted models would pay for nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.ports import AskedTool, Compaction, Message, Model, Result, ToolBox

if TYPE_CHECKING:
    from orchestrator.core.delivery import File
    from orchestrator.models.history import Repairs
    from orchestrator.models.provider import ProviderModel
    from orchestrator.models.toolbox import Tools
    from orchestrator.tool import Tool

__all__ = ["Layer"]

TOOLBOXES_KEPT = 256


class Layer:
    """`ports.ModelLayer`. One per process; safe to use from several threads and event loops.

    `stall_seconds` is how long a model may say nothing before its call is cut and tried again.
    """

    def __init__(self, *, stall_seconds: float = 600.0) -> None:
        self._stall_seconds = stall_seconds
        self._lock = threading.RLock()
        self._models: dict[str, ProviderModel] = {}
        self._toolboxes: OrderedDict[tuple[Tool, ...], Tools] = OrderedDict()
        self._repairs: Repairs | None = None
        self._windows: dict[str, int | None] = {}

    def model(self, named: str | Model) -> Model:
        """A model by name (made once per process) or itself. Raises `ConfigError` that says what to install or set."""
        if not isinstance(named, str):
            return named
        from orchestrator.models.history import Repairs
        from orchestrator.models.provider import ProviderModel

        with self._lock:
            made = self._models.get(named)
            if made is None:
                self._repairs = self._repairs or Repairs()
                made = ProviderModel(named, repairs=self._repairs, stall_seconds=self._stall_seconds)
                self._models[named] = made
            return made

    def toolbox(self, tools: Sequence[Tool]) -> ToolBox:
        """The schemas of an agent's tools (made once per tool list). Raises `ConfigError` for one that cannot have any."""
        from orchestrator.models.toolbox import Tools

        key = tuple(tools)
        with self._lock:
            made = self._toolboxes.get(key)
            if made is None:
                made = self._toolboxes[key] = Tools(key)
                if len(self._toolboxes) > TOOLBOXES_KEPT:
                    self._toolboxes.popitem(last=False)
            return made

    def result_box(self, tools: Sequence[Tool], schema: str) -> ToolBox:
        """The same with one more tool: the model is to deliver a result that fits this JSON Schema (as text)."""
        from orchestrator.models.results import ResultTools

        box: Any = self.toolbox(tools)
        return ResultTools(box, schema)

    def feedback_row(self, text: str) -> bytes:
        """Why an answer cannot be used, as one history row (JSON)."""
        from orchestrator.models import rows

        return rows.feedback_row(text)

    def message_row(self, messages: Sequence[Message]) -> bytes:
        """What people said, as one history row (JSON)."""
        from orchestrator.models import rows

        return rows.message_row(messages)

    def results_row(self, results: Sequence[Result]) -> bytes:
        """The results of one answer's calls, in call order, as one history row (JSON)."""
        from orchestrator.models import rows

        return rows.results_row(results)

    def read(self, row: bytes) -> Any:
        """A row as a message of the library. Raises `ValueError` for one that this version cannot read."""
        from orchestrator.models import rows

        return rows.read(row)

    def calls(self, message: Any) -> tuple[AskedTool, ...]:
        """The tool calls of an answer read from its row, in order."""
        from orchestrator.models import rows

        return rows.calls(message)

    def files(self, history: Sequence[Any]) -> list[File]:
        """The files that a history speaks of, oldest first."""
        from orchestrator.models import files

        return files.in_history(history)

    async def download(self, url: str, media_type: str, limit_bytes: int) -> bytes:
        """What is behind a URL. See `ports.ModelLayer`."""
        from orchestrator.models import files

        return await files.download(url, media_type, limit_bytes)

    def context_tokens(self, model_name: str) -> int | None:
        """How many tokens a model takes in at once, as the library's own tables know it; None where they do not."""
        if ":" not in model_name:
            return None
        with self._lock:
            if model_name not in self._windows:
                from orchestrator.models.provider import context_tokens

                self._windows[model_name] = context_tokens(model_name)
            return self._windows[model_name]

    def compaction(
        self, messages: Sequence[Any], *, window_tokens: int, used_tokens: int | None, asked: bool
    ) -> Compaction | None:
        """How this history gets shorter, or None where there is nothing to do. See `ports.ModelLayer`."""
        from orchestrator.models import compaction

        return compaction.plan(messages, window_tokens=window_tokens, used_tokens=used_tokens, asked=asked)

    def compacted(self, messages: Sequence[Any], plan: Compaction, summary: str) -> tuple[bytes, ...]:
        """The rows (JSON) in the place of `messages[:plan.cut]`. Raises `ValueError` for an empty summary."""
        from orchestrator.models import compaction

        return compaction.compacted(messages, plan, summary)
