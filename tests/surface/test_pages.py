"""Walks and tutorials: what a person types, run again, shows what the page shows."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("run_pages", DOCS / "run_pages.py")
assert SPEC and SPEC.loader
PAGES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGES)
NEEDS = {"engineer": "torch", "first_model": "torch", "team_budget": "sqlalchemy"}
NEEDS |= {"auditing_a_run": "torch", "from_opacus": "tensorboard", "data_scientist": "sklearn"}
NEEDS |= {"private_table": "sklearn", "recipes": "lightning", "is_this_run_private": "torch"}


def test_there_is_one_for_everybody():
    assert [page.stem for page in PAGES.WALKS] == [
        "auditor", "contributor", "data_scientist", "engineer", "researcher",
    ]  # fmt: skip
    assert len(PAGES.TUTORIALS) == 6


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, about itself
@pytest.mark.parametrize(
    "page", [*PAGES.WALKS, *PAGES.GUIDES, *PAGES.TUTORIALS], ids=lambda page: page.stem
)
def test_a_page_shows_what_happens(page):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem], reason="the page uses it")
    assert PAGES.run_page(page) == page.read_text("utf-8"), "run: python docs/run_pages.py"


@pytest.mark.parametrize("page", PAGES.TUTORIALS, ids=lambda page: page.stem)
def test_the_notebook_is_the_page(page):
    text = page.with_suffix(".ipynb").read_text("utf-8")
    assert text == PAGES.notebook(page.read_text("utf-8")), "run: python docs/run_pages.py"
    assert any(
        cell["cell_type"] == "code" and cell["outputs"] for cell in json.loads(text)["cells"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES.TUTORIALS, ids=lambda page: page.stem)
def test_the_notebook_runs(page, tmp_path, monkeypatch):
    """With the command on the path, as where it is installed."""
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ.get('PATH', '')}")
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    client = pytest.importorskip("nbclient", reason="notebooks need nbclient")
    pytest.importorskip("ipykernel", reason="notebooks need ipykernel")
    book = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(book)
    folder = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(book, timeout=300, kernel_name="python3", resources=folder).execute()
    ran = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in ran)
    assert "command not found" not in nbformat.writes(book)
