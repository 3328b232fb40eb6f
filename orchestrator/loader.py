"""Finding the App that a process serves: `module:name`, as ORCHESTRATOR_APP has it."""

from __future__ import annotations

import importlib
import os
import sys

from orchestrator.agent import App
from orchestrator.errors import ConfigError


def load_app(spec: str) -> App:
    """The App behind `module:name`; modules in the current folder are found. Raises `ConfigError`.

    What the module itself raises while it is imported is passed on as it is: its traceback says more than we could.
    """
    if not spec:
        raise ConfigError(
            problem="ORCHESTRATOR_APP is not set.", remedy="Set it to module:name of your App, such as support:app."
        )
    module_name, _, name = spec.partition(":")
    name = name or "app"
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        # Missing is only what we asked for; a module that it imports in turn is the user's to see.
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise
        raise ConfigError(
            problem=f"ORCHESTRATOR_APP={spec}: there is no module {missing.name!r} in {here} or on the Python path.",
            remedy="Start in the folder that has it, or name it in full.",
        ) from missing
    except (ValueError, TypeError) as broken:
        if module_name and not module_name.startswith("."):
            raise
        raise ConfigError(
            problem=f"ORCHESTRATOR_APP={spec!r} names no module.", remedy="Write module:name."
        ) from broken
    try:
        found: object = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        apps = ", ".join(f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, App))
        raise ConfigError(
            problem=f"ORCHESTRATOR_APP={spec}: the module {module_name} has no {name!r}.",
            remedy=f"It has: {apps}." if apps else "Write `app = App(agents=[...])` in it.",
        ) from None
    if not isinstance(found, App):
        raise ConfigError(
            problem=f"ORCHESTRATOR_APP={spec} is of type {type(found).__name__}, not an App.",
            remedy="Name the `App(agents=[...])`.",
        )
    return found
