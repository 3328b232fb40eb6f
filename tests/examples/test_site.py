"""The pages as a site: it builds without a warning, and nothing public is missing from it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = (DOCS / "reference.md").read_text()
NAMED = re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    shown = (tmp_path / "reference" / "index.html").read_text()
    for name in NAMED:
        assert f'id="{name}"' in shown, f"{name} is not on the page"
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(r'(?:src|<link[^>]* href)="(?:https?:)?//[^"]+"', page.read_text()), (
            "loads from elsewhere"
        )


def test_every_public_name_is_in_the_reference() -> None:
    assert {f"orchestrator.{name}" for name in orchestrator.__all__} <= set(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_what_the_reference_names_is_offered_where_it_says(name: str) -> None:
    module, _, thing = name.rpartition(".")
    home = importlib.import_module(module)
    assert thing in getattr(home, "__all__", dir(home))


def test_every_page_is_linked_from_the_first_one_and_in_the_menu() -> None:
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"\]\(([\w.-]+)\)", (DOCS / "index.md").read_text()))
    assert pages <= set(re.findall(r"^  - .*: ([\w.-]+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    readme = (ROOT / "README.md").read_text()
    assert {page for page in pages if f"(docs/{page})" not in readme} == set()
