"""The documentation site: every page can be reached, and it builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

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


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="MkDocs is not installed: make docs")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "reference" / "train.html").exists()
