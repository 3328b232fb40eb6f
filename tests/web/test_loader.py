"""Finding the App."""

import sys
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.loader import load_app
from tests.web import wsgi


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder that Python does not know yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    return tmp_path


def test_an_app_is_found_by_module_and_name() -> None:
    assert load_app("tests.web.wsgi:app") is wsgi.app
    assert load_app("tests.web.wsgi") is wsgi.app


def test_the_current_folder_is_looked_through(here: Path) -> None:
    (here / "shop_of_a_test.py").write_text(
        "from orchestrator.agent import Agent, App\nbooks = App(agents=[Agent('books')])\n"
    )
    assert load_app("shop_of_a_test:books").agents[0].name == "books"
    with pytest.raises(ConfigError, match="It has: shop_of_a_test:books"):
        load_app("shop_of_a_test:app")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "ORCHESTRATOR_APP is not set"),
        ("no_such_module_here:app", "no module 'no_such_module_here'"),
        ("tests.no_such_module:app", "no module 'tests.no_such_module'"),
        ("tests.web.wsgi:nothing", "has no 'nothing'"),
        ("tests.web.wsgi:make", "of type function"),
        (":app", "names no module"),
        (".web:app", "names no module"),
    ],
)
def test_what_cannot_be_found_is_said_in_words(spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_app(spec)


def test_what_the_module_itself_gets_wrong_is_not_hidden(here: Path) -> None:
    (here / "broken_of_a_test.py").write_text("import a_library_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_missing"):
        load_app("broken_of_a_test:app")
