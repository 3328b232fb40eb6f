"""The engine of this process, for whoever was given none."""

from __future__ import annotations

import importlib
from typing import cast

from orchestrator import world
from orchestrator.agent import App
from orchestrator.config import from_environment
from orchestrator.engine import Engine


def engine_of(app: App) -> Engine:
    """An engine for this App. Only the worker's package can publish through a broker that is not the journal's own server."""
    settings = from_environment(app.settings)
    if world.announces_itself(settings):
        return Engine(app, settings)
    return cast(Engine, importlib.import_module("tasks").engine_for(app, settings))
