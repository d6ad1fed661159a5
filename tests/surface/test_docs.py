"""One page per theorem, and it says what its docstring says."""

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


@pytest.mark.parametrize("name", PAGES)
def test_every_theorem_has_its_page(name: str) -> None:
    text = (DOCS / "theorems" / name).read_text()
    if "\nCode: `" in text or name == "README.md":
        assert text == PAGES[name], "run: python docs/generate_theorem_pages.py"
    else:
        assert len(text) > 500  # written by hand, with the proof
