"""docs/http.md is true: its routes, its refusals, its example."""

import re
from pathlib import Path

import web
from orchestrator import errors
from orchestrator.agent import Agent, App
from orchestrator.auth import SCOPES
from orchestrator.config import Settings
from orchestrator.engine import Engine

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "http.md").read_text()
ROUTE = re.compile(r"^\| (GET|POST|DELETE) \| `([^`]+)` \| (yes)? ?\|", re.MULTILINE)


def test_the_routes_that_are_listed_are_those_that_there_are() -> None:
    flask = web.create_app(engine=Engine(App(agents=[Agent("helper")]), Settings()))
    there = {
        (method, rule.rule)
        for rule in flask.url_map.iter_rules()
        for method in (rule.methods or set()) & {"GET", "POST", "DELETE"}
        if not rule.rule.startswith(("/v1/channels/", "/v1/webhooks/"))
    }
    listed = set()
    for method, path, ours in ROUTE.findall(PAGE):
        listed |= {(method, prefix + path) for prefix in (("/v1",) if ours else ("/eve/v1", "/v1"))}
    assert listed == there


def test_every_code_that_can_be_answered_is_listed() -> None:
    public = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.OrchestratorError) and kind.status != 500
    }
    assert {code for code in public if f"`{code}`" not in PAGE} == set()


def test_every_event_is_listed() -> None:
    made = set(re.findall(r'Event\("([a-z.]+)"', (ROOT / "orchestrator" / "core" / "event.py").read_text()))
    assert "turn.completed" in made
    assert {kind for kind in made if f"`{kind}`" not in PAGE} == set()


def test_every_scope_is_explained() -> None:
    assert {scope for scope in SCOPES if f"`{scope}`" not in PAGE} == set()


def test_the_example_of_who_calls_works() -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "docs/http.md", "exec"), names)  # noqa: S102  # our own page
    app = names["app"]
    assert isinstance(app, App)
    web.create_app(engine=Engine(app, Settings()))
