"""The result that a turn owes: one more tool, which the model calls to deliver it, and a check of what it delivers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pydantic_ai.tools import ToolDefinition

from orchestrator.asides import Misfit, fit
from orchestrator.models import rows
from orchestrator.models.toolbox import Tools
from orchestrator.ports import WrongCall

NAME = "final_result"
WRAPPED = "result"
"""A tool's arguments are an object. Any other result is this one argument."""
DESCRIPTION = "Deliver the final result. Call this once, when you have all that it needs; it ends your work."


class ResultTools:
    """The tools of an agent, and the one through which the result is delivered."""

    def __init__(self, tools: Tools, schema: str) -> None:
        self._tools = tools
        self._schema: dict[str, Any] = json.loads(schema)
        self._wrapped = self._schema.get("type") != "object"
        taken = {definition.name for definition in tools.definitions}
        self.result_tool = NAME
        while self.result_tool in taken:
            self.result_tool += "_"
        tool = ToolDefinition(
            name=self.result_tool,
            parameters_json_schema=_in_an_object(self._schema) if self._wrapped else self._schema,
            description=DESCRIPTION,
            kind="output",
        )
        self.parameters = replace(tools.parameters, output_mode="tool", output_tools=[tool], allow_text_output=False)

    def check(self, tool: str, given: object) -> dict[str, Any]:
        """As `Tools.check`."""
        return self._tools.check(tool, given)

    def result(self, given: object) -> object:
        """The result in the arguments of the call, or in a text: its JSON, or the text itself. Raises `WrongCall`."""
        value = rows.parsed(given) if isinstance(given, str) else given
        if self._wrapped and isinstance(value, dict) and value.keys() == {WRAPPED}:
            value = value[WRAPPED]
        try:
            fit(self._schema, value)
        except Misfit as problem:
            if isinstance(given, str) and value is not given and self._fits(given):
                return given
            raise WrongCall(
                f"The result does not fit. Correct it and call {self.result_tool} again.\n{problem}"
            ) from None
        return value

    def _fits(self, text: str) -> bool:
        try:
            fit(self._schema, text)
        except Misfit:
            return False
        return True


def _in_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    inner = _moved({name: value for name, value in schema.items() if name not in ("$schema", "$id")})
    return {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], "additionalProperties": False}


def _moved(part: Any) -> Any:
    """With references that lead to the new place of what they refer to."""
    match part:
        case dict():
            return {name: _reference(value) if name == "$ref" else _moved(value) for name, value in part.items()}
        case list():
            return [_moved(one) for one in part]
        case _:
            return part


def _reference(value: Any) -> Any:
    return f"#/properties/{WRAPPED}{value[1:]}" if isinstance(value, str) and value.startswith("#") else _moved(value)
