"""The tools of an agent as a model sees them: schemas out of signatures and docstrings, and a check of what comes back."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from pydantic import PydanticUserError, ValidationError
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import Tool as LibraryTool
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from orchestrator.errors import ConfigError
from orchestrator.ports import WrongCall
from orchestrator.tool import Tool, ToolContext

PROBLEMS_SHOWN = 20
"""Problems of one call that the model is told of."""


class Tools:
    """Schemas to send (`definitions`, `parameters`) and validators for what the model makes of them."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        made = {tool.name: _library_tool(tool) for tool in tools}
        self._validators = {name: tool.function_schema.validator for name, tool in made.items()}
        self.definitions: list[ToolDefinition] = [tool.tool_def for tool in made.values()]
        self.parameters = ModelRequestParameters(function_tools=self.definitions)

    result_tool = ""

    def result(self, given: object) -> object:
        """No result is owed."""
        raise AssertionError(f"a result that nobody wants: {given!r}")

    def check(self, tool: str, given: object) -> dict[str, Any]:
        """The arguments of a call as Python values, by name. Raises `WrongCall` with a text for the model."""
        validator = self._validators.get(tool)
        if validator is None:
            known = ", ".join(self._validators)
            raise WrongCall(
                f"There is no tool {tool!r}. " + (f"The tools are: {known}." if known else "There are no tools.")
            )
        try:
            # Always as JSON: a date is text there, also where a model's own class is strict about Python values.
            text = given if isinstance(given, str | bytes) else to_json(given)
            arguments: dict[str, Any] = validator.validate_json(text.strip() or "{}")
        except ValidationError as wrong:
            raise WrongCall(_problems(tool, wrong)) from wrong
        except Exception as broken:
            # A validator of the user's own that breaks: the model gave what it could not take.
            raise WrongCall(f"The arguments of {tool} do not fit: {type(broken).__name__}: {broken}") from broken
        return arguments


def _problems(tool: str, wrong: ValidationError) -> str:
    errors = wrong.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, error['loc'])) or 'arguments'}: {error['msg']}" for error in errors[:PROBLEMS_SHOWN]]
    if len(errors) > PROBLEMS_SHOWN:
        lines.append(f"and {len(errors) - PROBLEMS_SHOWN} more")
    return "\n".join([f"The arguments of {tool} do not fit. Correct them and call it again.", *lines])


def _library_tool(tool: Tool) -> LibraryTool[Any]:
    try:
        made = LibraryTool[Any](_bare(tool), takes_ctx=False, name=tool.name)
    except (UserError, PydanticUserError, TypeError, NameError, ValueError, AttributeError) as broken:
        reason = (str(broken).splitlines() or [type(broken).__name__])[0]
        raise ConfigError(
            problem=f"No schema can be made for the tool {tool.name!r}: {reason}",
            remedy="Annotate its parameters with types that JSON can express, importable where the function is defined.",
        ) from broken
    made.function_schema.json_schema.setdefault("additionalProperties", False)
    return made


def _bare(tool: Tool) -> Callable[..., Any]:
    """A function that looks like the tool's without its context: it is only ever looked at."""

    def bare(**_: Any) -> None:
        raise AssertionError("the schema's function is never called")

    signature = inspect.signature(tool.fn)
    parameters = list(signature.parameters.values())[1 if tool.takes_context else 0 :]
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ValueError(f"{parameter} has no name that a model could give")
    hints = _hints(tool.fn, {parameter.name: parameter.annotation for parameter in parameters})
    parameters = [parameter.replace(annotation=hints.get(parameter.name, Any)) for parameter in parameters]
    bare.__name__ = getattr(tool.fn, "__name__", tool.name)
    bare.__qualname__ = getattr(tool.fn, "__qualname__", tool.name)
    bare.__module__ = tool.fn.__module__
    bare.__doc__ = inspect.getdoc(tool.fn)
    bare.__annotations__ = dict(hints)
    bare.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect reads it from there
    return bare


def _hints(fn: Callable[..., Any], annotations: dict[str, Any]) -> dict[str, Any]:
    """Annotations as types, also where they are text (`from __future__ import annotations`)."""
    given = {name: kind for name, kind in annotations.items() if kind is not inspect.Parameter.empty}
    innermost = inspect.unwrap(fn)
    closure = inspect.getclosurevars(innermost).nonlocals if inspect.isfunction(innermost) else {}
    names = {"ToolContext": ToolContext, **closure}
    return typing.get_type_hints(
        SimpleNamespace(__annotations__=given), getattr(innermost, "__globals__", {}), names, include_extras=True
    )
