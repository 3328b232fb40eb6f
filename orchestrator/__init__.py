"""Durable AI agents on Celery, Redis and Flask.

What a user writes:      Agent App Limits Uploads tool ToolContext state Fatal Retry
What a person decides:   Approval always once never Deny ask_question
Ways in and out:         Channel StandardWebhook Incoming
Models without a key:    ScriptedModel asks answers fails
What a program embeds:   Engine Settings
What can go wrong:       OrchestratorError and its tree in `orchestrator.errors`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.agent import Agent, App, Limits
from orchestrator.approval import Approval, Deny, always, never, once
from orchestrator.config import Settings
from orchestrator.errors import (
    BadRequest,
    ConfigError,
    InboxFull,
    JournalAway,
    JournalFull,
    OrchestratorError,
    SessionNotActive,
    SessionNotFound,
)
from orchestrator.parts import Uploads
from orchestrator.state import state
from orchestrator.tool import Fatal, Retry, SessionView, Tool, ToolContext, ask_question, tool

if TYPE_CHECKING:
    from orchestrator.channels import Channel, Incoming, StandardWebhook
    from orchestrator.engine import Engine
    from orchestrator.models.scripted import ScriptedModel, answers, asks, fails

__all__ = [
    "Agent",
    "App",
    "Approval",
    "BadRequest",
    "Channel",
    "ConfigError",
    "Deny",
    "Engine",
    "Fatal",
    "InboxFull",
    "Incoming",
    "JournalAway",
    "JournalFull",
    "Limits",
    "OrchestratorError",
    "Retry",
    "ScriptedModel",
    "SessionNotActive",
    "SessionNotFound",
    "SessionView",
    "Settings",
    "StandardWebhook",
    "Tool",
    "ToolContext",
    "Uploads",
    "always",
    "answers",
    "ask_question",
    "asks",
    "fails",
    "never",
    "once",
    "state",
    "tool",
]

_LATER = {
    "Channel": "orchestrator.channels",
    "Engine": "orchestrator.engine",
    "Incoming": "orchestrator.channels",
    "ScriptedModel": "orchestrator.models.scripted",
    "StandardWebhook": "orchestrator.channels",
    "answers": "orchestrator.models.scripted",
    "asks": "orchestrator.models.scripted",
    "fails": "orchestrator.models.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
