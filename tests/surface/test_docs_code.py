"""Documentation: sessions print what they show, imports exist, links lead somewhere."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "CONTRIBUTING.md"]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
SESSIONS = [page for page in PAGES if ">>> " in page.read_text()]
PRINTED = [
    pytest.param(*found, id=f"{page.stem}-{number}")
    for page in [*PAGES, ROOT / "README.md"]
    for number, found in enumerate(
        re.findall(r"```python\n([^`]*)```\n\nprints\n\n```\n([^`]*)```", page.read_text())
    )
]
LINKS = [
    pytest.param(page, link, id=f"{page.stem}:{link}")
    for page in [*PAGES, *sorted(ROOT.glob("docs/[tw]*/*.md"))]
    for link in re.findall(r"\]\(((?!https?:|#)[^)\s]+)\)", page.read_text())
]


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_a_session_prints_what_it_shows(page: Path) -> None:
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert test.examples
    found = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test)
    assert found.failed == 0


@pytest.mark.parametrize(("code", "told"), PRINTED)
def test_a_block_prints_what_is_told(code: str, told: str, capsys: pytest.CaptureFixture) -> None:
    exec(code, {"__name__": "__main__"})
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_python_and_its_imports_exist(block: str) -> None:
    source = "".join(e.source for e in doctest.DocTestParser().get_examples(block)) or block
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tightrope"):
            module = importlib.import_module(str(node.module))
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not missing


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_links_lead_somewhere(page: Path, link: str) -> None:
    assert (page.parent / link.partition("#")[0]).exists()
