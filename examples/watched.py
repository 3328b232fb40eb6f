"""The support agent under observation: every start and every end of a model call or a tool call is written down.

The record knows nothing of the product: it is a file to which each process appends lines, and the lines survive the process that
wrote them. `make demo` compares it with what the product says. Calls take longer here, so that there is time to interfere.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from examples.support import support
from orchestrator import App, Tool, ToolContext
from orchestrator.ports import Model, ModelCall, ModelOutput, TextDelta

LOG = os.environ.get("DEMO_LOG", "demo.log")
PACE_SECONDS = float(os.environ.get("DEMO_PACE", "0"))


def note(what: str, key: str, **more: object) -> None:
    """Append one line. One write, so that lines of several processes do not mix."""
    line = json.dumps({"at": time.time(), "pid": os.getpid(), "what": what, "key": key, **more}, default=str) + "\n"
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class WatchedModel:
    """Passes on what a model says, word by word."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """The model's own."""
        return self._model.name

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        """The model's answer, slower."""
        key = f"{call.session}/{call.turn}/{call.step}"
        note("model started", key)
        await asyncio.sleep(PACE_SECONDS / 2)
        async for output in self._model.answer(call):
            if isinstance(output, TextDelta):
                for word in re.findall(r"\s*\S+\s*", output.text):
                    yield TextDelta(word)
                    await asyncio.sleep(PACE_SECONDS / 15)
            else:
                yield output
        note("model answered", key)


def watched(tool: Tool) -> Tool:
    """The same tool to a model; each later call of an answer takes longer than the one before it."""
    signature = inspect.signature(tool.fn)
    own = list(signature.parameters.values())[1 if tool.takes_context else 0 :]

    @functools.wraps(tool.fn)
    def fn(ctx: ToolContext, /, **arguments: Any) -> Any:
        called: Mapping[str, object] = {"tool": tool.name, "arguments": arguments, "attempt": ctx.attempt}
        note("tool started", ctx.idempotency_key, **called)
        place = int(ctx.call_id.rpartition("_")[2])
        time.sleep(PACE_SECONDS * (1 + 2 * place))
        result = tool.fn(*((ctx,) if tool.takes_context else ()), **arguments)
        note("tool returned", ctx.idempotency_key, **called)
        return result

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY, annotation=ToolContext)
    vars(fn)["__signature__"] = signature.replace(parameters=[context, *own])
    return replace(tool, fn=fn)


assert support.model is not None
assert not isinstance(support.model, str)
app = App([replace(support, model=WatchedModel(support.model), tools=[watched(tool) for tool in support.tools])])
