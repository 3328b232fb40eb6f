"""The front door: what `from orchestrator import …` offers is decided here, documented, and nothing more."""

import importlib
import inspect

import pytest

orchestrator = importlib.import_module("orchestrator")

PUBLIC: set[str] = {
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
}


def test_the_front_door_offers_what_was_decided() -> None:
    assert set(orchestrator.__all__) == PUBLIC


WHO_CALLS = {
    *("Anonymous", "ApiKeys", "Authenticator", "Basic", "Caller", "Jwt", "Oidc", "Shown", "hash_password"),
    *("DEFAULT_SCOPES", "SCOPES", "Walk", "walk"),
}


def test_what_says_who_calls_is_in_one_place_and_documented() -> None:
    auth = importlib.import_module("orchestrator.auth")
    assert set(auth.__all__) == WHO_CALLS
    for name in WHO_CALLS - {"DEFAULT_SCOPES", "SCOPES"}:
        assert inspect.getdoc(getattr(auth, name)), f"{name} has no docstring"


def test_no_name_is_listed_twice() -> None:
    assert len(orchestrator.__all__) == len(set(orchestrator.__all__))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(orchestrator, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        assert inspect.getdoc(thing), f"{name} has no docstring"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_dir_shows_it(name: str) -> None:
    assert name in dir(orchestrator)
