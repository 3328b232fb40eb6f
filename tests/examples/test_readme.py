"""What the README and the pages say is so: the example runs, the settings exist, the commands and the routes are there."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import web
from examples.support import app as support_app
from orchestrator import App, Engine, OrchestratorError, Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import SessionId
from web import problems, schema

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
TEXTS = {"README.md": README, **PAGES}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command line: the fenced ones of the README, and what stands in backticks and begins with a program of ours."""
    lines = [line for block in blocks(README, "sh") for line in block.splitlines() if line.strip()]
    for text in TEXTS.values():
        lines += re.findall(r"`((?:make|orchestrator|celery|gunicorn) [^`\n]+)`", text)
    return sorted(set(lines))


def example(place: Path) -> ModuleType:
    block, *_ = blocks(README, "python")
    file = place / "shop.py"
    file.write_text(block)
    spec = importlib.util.spec_from_file_location("readme_shop", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where the types of its annotations are looked for
    spec.loader.exec_module(module)
    return module


def events(engine: Engine, session: SessionId) -> list[dict[str, Any]]:
    return [json.loads(line) for line in engine.reads.events(session, 0, 1000)]


def say(engine: Engine, text: str) -> list[dict[str, Any]]:
    """A new session with this message, worked on here until it waits for the next one."""
    session = engine.create(Body((Part("text", text),))).session
    for _ in range(20):
        if engine.carry_on(session).how == "parked":
            return events(engine, session)
    raise AssertionError("the turn does not end")


def test_the_example_of_the_readme_runs(url: str, tmp_path: Path) -> None:
    module = example(tmp_path)
    app: App = module.app
    told = say(Engine(app, Settings(url=url)), "My book never came: B-1006.")
    types = [event["type"] for event in told]
    assert types[-2:] == ["turn.completed", "session.waiting"]
    assert types.count("action.result") == 2
    assert all(event["data"]["status"] == "completed" for event in told if event["type"] == "action.result")
    (key,) = module.PAYMENTS
    assert key.endswith("/turn_0/call_0_1_0")
    assert str(module.PAYMENTS[key]) == "14.99"


def test_the_example_of_approvals_waits_for_a_person(url: str) -> None:
    names: dict[str, Any] = {"__name__": "readme_approvals"}
    sys.modules["readme_approvals"] = ModuleType("readme_approvals")
    sys.modules["readme_approvals"].__dict__.update(names)
    exec(compile(blocks(README, "python")[1], "README.md", "exec"), sys.modules["readme_approvals"].__dict__)  # noqa: S102
    engine = Engine(sys.modules["readme_approvals"].app, Settings(url=url))
    told = say(engine, "My book never came.")
    assert [event["type"] for event in told][-2:] == ["input.requested", "turn.waiting"]
    assert told[-2]["data"]["requests"][0]["prompt"] == "Pay 14.99 EUR to B-1006?"


def test_the_example_of_channels_runs(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example(tmp_path)
    monkeypatch.setitem(sys.modules, "shop", module)
    monkeypatch.setenv("ORCHESTRATOR_URL", url)
    block = blocks(README, "python")[-1]
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102  # our own page
    session = names["support"].resolve("ticket-17")
    engine = Engine(module.app, Settings(url=url))
    for _ in range(20):
        if engine.carry_on(session).how == "parked":
            break
    told = [event["type"] for event in events(engine, session)]
    assert told[-2:] == ["turn.cancelled", "session.waiting"]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("Hi there", "Hello!"),
        ("Where is b-1006?", "B-1006, The Grapes of Wrath: 2026-03-09, by Post."),
        ("Where are B-1014 and B-1006?", "B-1014, A Tale of Two Cities: 2026-03-19, by Post.\nB-1006"),
        ("I am Marta Jensen. What is open?", "B-1011, The Grapes of Wrath: 2026-03-09, by Swift Parcel."),
        ("Tom Okafor here", "B-1006"),
        ("And B-9999?", "I cannot find that order."),
    ],
)
def test_the_example_agent_answers(url: str, message: str, answer: str) -> None:
    told = say(Engine(support_app, Settings(url=url)), message)
    assert answer in [event["data"]["message"] for event in told if event["type"] == "message.completed"][-1]


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `ORCHESTRATOR_([A-Z_]+)` \|.*\| (?:`([^`]*)` )?\|$", README, re.MULTILINE))
    real = {one.name.upper(): one.default for one in fields(Settings)}
    assert set(rows) == set(real)
    for name, default in real.items():
        assert rows[name] == (str(int(default)) if isinstance(default, float) else str(default)), name


def test_every_setting_that_a_page_names_exists() -> None:
    known = {one.name.upper() for one in fields(Settings)}
    for page, text in TEXTS.items():
        assert set(re.findall(r"\bORCHESTRATOR_([A-Z_]+[A-Z])", text)) <= known, page


def test_ci_finds_the_command_for_the_tests() -> None:
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    assert [line for line in lines if line.startswith("make test")]


@pytest.mark.parametrize("line", commands())
def test_a_command_that_is_named_exists(line: str) -> None:
    words = [word for word in shlex.split(line) if word != "export" and not re.fullmatch(r"[A-Z_]+=\S*", word)]
    match words:
        case []:
            names = re.findall(r"([A-Z_]+)=", line)
            assert names
            assert all(name.removeprefix("ORCHESTRATOR_").lower() in Settings.__dataclass_fields__ for name in names)
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["orchestrator", *rest]:
            known_flags(["-m", "orchestrator.cli"], rest)
        case ["celery", "-A", "tasks", *rest]:
            if rest != ["flower"]:  # whose help is its own
                known_flags(["-m", "celery", "-A", "tasks"], rest)
        case ["gunicorn", "-c", "python:web.gunicorn", "web:create_app()"]:
            assert callable(web.create_app)
        case ["docker", "compose", *_]:
            assert (ROOT / "docker-compose.yml").exists()
        case ["curl", *rest]:
            known_route(rest)
        case _:
            pytest.fail(f"nobody knows how to check {line!r}")


def known_flags(program: list[str], words: list[str]) -> None:
    """The subcommand answers --help, and its help names every flag."""
    commands = [
        word for word in words if re.fullmatch(r"[a-z]+", word) and word not in ("threads", "prefork", "website")
    ]
    if "|" in words:
        pytest.fail("name one command at a time")
    told = subprocess.run(
        [sys.executable, *program, *commands, "--help"], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert told.returncode == 0, told.stderr
    for flag in (word for word in words if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){flag}\b", told.stdout), flag


def known_route(words: list[str]) -> None:
    """The route exists and takes that method."""
    path = next(word for word in words if word.startswith("localhost:8000")).removeprefix("localhost:8000")
    adapter = web.create_app(support_app).url_map.bind("localhost")
    adapter.match(path.replace("$SESSION", "ses_1"), method="POST" if "-d" in words else "GET")
    if "-d" in words:
        assert isinstance(json.loads(words[words.index("-d") + 1]), dict)


def test_every_refusal_is_on_the_page() -> None:
    rows = set(re.findall(r"^\| (\d{3}) \| `([a-z_]+)` \|", PAGES["http.md"], re.MULTILINE))
    known = [kind for kind in every(OrchestratorError) if any(issubclass(kind, told) for told in problems.TABLE)]
    assert {(str(kind.status), kind.code) for kind in known} <= rows
    assert rows <= {(str(kind.status), kind.code) for kind in every(OrchestratorError)}


def every(kind: type[OrchestratorError]) -> list[type[OrchestratorError]]:
    return [kind, *(one for sub in kind.__subclasses__() for one in every(sub))]


def test_fields_that_are_refused_are_on_the_page() -> None:
    assert all(f"`{name}`" in PAGES["http.md"] for name in schema.NOT_YET)


def test_links_lead_somewhere() -> None:
    for page, text in TEXTS.items():
        folder = ROOT if page == "README.md" else ROOT / "docs"
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (folder / target).exists(), f"{page}: {target}"
