"""The documentation site: every page can be reached, and it builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {page for page in DOCS.rglob("*.md") if "learning" not in page.parts}


def linked(page: Path) -> set[Path]:
    links = re.findall(r"\]\(((?!https?:|#)[^)#\s]+\.md)[^)]*\)", page.read_text())
    return {(page.parent / link).resolve() for link in links}


def test_every_page_can_be_reached() -> None:
    nav = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    reached, found = set(), {DOCS / name for name in nav}
    while found:
        reached |= found
        found = {page for each in found for page in linked(each)} - reached
        found = {page for page in found if page.exists()}
    assert reached >= PAGES, sorted(str(page.relative_to(DOCS)) for page in PAGES - reached)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "reference" / "train.html").exists()
    assert (site / "tutorials" / "first_model.ipynb").exists()


@pytest.mark.parametrize("name", ["accounting", "process", "train", "more"])
def test_examples_of_the_reference_are_shown_as_code(name: str, site: Path) -> None:
    """Not as quotations or prose, which is what Markdown makes of them."""
    page = (site / "reference" / f"{name}.html").read_text()
    prose = re.sub(r"<[^>]+>", "", "".join(re.findall(r"<p>.*?</p>", page, re.DOTALL)))
    assert "<blockquote>" not in page and "import " not in prose and "for epoch in" not in prose


def test_lists_inside_of_lists_are_nested(site: Path) -> None:
    assert re.search(r"<li>At a glance\s*<ul>", (site / "reproduction" / "index.html").read_text())
    choose = (site / "how_to_choose.html").read_text()
    for question in ("How are batches drawn?", "Who is a neighbour?", "Were the parameters"):
        assert re.search(rf"<li>\s*<p><strong>{re.escape(question)}", choose), question


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "name", ["index.html", "tutorials/first_model.html", "reference/accounting.html"]
)
def test_axe_finds_nothing(name: str, scheme: str, site: Path, chromium: Any, axe: Any) -> None:
    page = chromium.new_page(color_scheme=scheme, viewport={"width": 1100, "height": 900})
    page.goto(f"file://{site / name}")
    assert axe(page) == []
    page.close()


def test_a_phone_shows_pages_whole(site: Path, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 375, "height": 800})
    page.goto(f"file://{site / 'tutorials/first_model.html'}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.close()


def test_words_are_found_and_nothing_is_loaded_from_elsewhere(site: Path, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 1300, "height": 800})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{site / 'tutorials/first_model.html'}")
    page.fill("[data-md-component=search-query]", "certificate")
    page.wait_for_selector(".md-search-result__item")
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    page.close()
