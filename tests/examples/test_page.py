"""examples/README.md lists what there is, and the commands that the examples name are those that run them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from orchestrator.loader import load_app

FOLDER = Path(__file__).parents[2] / "examples"
PAGE = (FOLDER / "README.md").read_text()
MODULES = sorted(FOLDER.glob("*.py"))


def docstring(module: Path) -> str:
    return ast.get_docstring(ast.parse(module.read_text())) or ""


def test_every_example_is_on_the_page_and_every_link_leads_somewhere() -> None:
    targets = set(re.findall(r"\]\(([^)]+)\)", PAGE))
    assert {module.name for module in MODULES} - {"__init__.py"} <= targets
    packages = {f"{folder.parent.name}/__init__.py" for folder in FOLDER.glob("*/__init__.py")}
    assert packages <= targets
    assert all((FOLDER / target).exists() for target in targets)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_the_commands_of_an_example_are_its_own(module: Path) -> None:
    lines = [line for line in docstring(module).splitlines() if line.startswith("    ")]
    for line in lines:
        if found := re.search(r"orchestrator dev (\S+)", line):
            assert found[1] == f"examples.{module.stem}:app"
            assert load_app(found[1]).agents
        elif found := re.search(r"python -m (\S+)", line):
            assert found[1] == f"examples.{module.stem}"
            assert 'if __name__ == "__main__":' in module.read_text()
        else:
            assert line.startswith("    printf"), line
    if "app = App(" in module.read_text() and module.stem != "watched":
        assert "orchestrator dev" in docstring(module), "it says how it is run"
