"""Pages are readable as text, and each theorem has one that says what its docstring says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("pages", DOCS / "generate_theorem_pages.py")
assert SPEC and SPEC.loader
GENERATOR = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(GENERATOR)
PAGES = GENERATOR.pages()
ROOT = DOCS.parent
WRITTEN = [
    *ROOT.glob("*.md"),
    *(page for page in DOCS.rglob("*.md") if page.parent.name not in ("reproduction", "theorems")),
    ROOT / "benchmarks" / "RESULTS.md",
]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_longer_than_160_characters(page: Path) -> None:
    """Code, tables, links and pictures may be."""
    code, long = False, []
    for line in page.read_text().splitlines():
        code ^= line.lstrip().startswith("```")
        if not code and len(line) > 160 and not line.startswith(("|", "    ", "[", "![", "#", "<")):
            long.append(line[:60])
    assert not long


@pytest.mark.parametrize("name", PAGES)
def test_every_theorem_has_its_page(name: str) -> None:
    text = (DOCS / "theorems" / name).read_text()
    if "\nCode: `" in text or name == "README.md":
        assert text == PAGES[name], "run: python docs/generate_theorem_pages.py"
    else:
        assert len(text) > 500  # written by hand, with the proof
