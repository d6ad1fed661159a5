"""No golden number without a test that reads it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CODE = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__))
GROUPS = sorted(
    {
        (path.name, case["name"])
        for path in (TESTS / "golden").glob("*.json")
        for case in json.loads(path.read_text())
    }
)


@pytest.mark.parametrize(("file", "group"), GROUPS)
def test_every_golden_group_is_read(file: str, group: str) -> None:
    assert f'"{group}"' in CODE


@pytest.mark.parametrize("file", sorted({file for file, _ in GROUPS}))
def test_every_golden_file_has_its_generator(file: str) -> None:
    maker = TESTS / "golden" / f"generate_{Path(file).stem}.py"
    assert re.search(r"import mpmath|from mpmath", maker.read_text())


SOURCES = TESTS.parent / "src" / "tightrope"
NAMED = sorted(path for path in SOURCES.rglob("*.py") if "\nVectors:" in path.read_text())
NAMES = {group for _, group in GROUPS}
VALUES = {
    name
    for path in (TESTS / "golden").glob("*.json")
    for case in json.loads(path.read_text())
    for part in ("inputs", "outputs")
    for name in (case[part] if isinstance(case.get(part), dict) else ())
}


@pytest.mark.parametrize("path", NAMED, ids=lambda path: str(path.relative_to(SOURCES)))
def test_what_a_docstring_names_exists(path: Path) -> None:
    """Files, groups of golden numbers, and in brackets behind a group what is read of it."""
    said = re.search(r"^Vectors:(.*?)(?=\n\n|^\w[^:\n]*:|^\"\"\")", path.read_text(), re.M | re.S)
    assert said is not None
    words = said.group(1)
    files = re.findall(r"tests/[\w/.]+\.(?:py|json)", words)
    groups = set(re.findall(r"\b\w+_\w+\b", re.sub(r"tests/\S+|\([^)]*\)", "", words)))
    modules = {source.stem for source in SOURCES.rglob("*.py")}
    assert all((TESTS.parent / file).exists() for file in files)
    assert groups <= NAMES | modules, groups - NAMES - modules
    for read in re.findall(r"\b\w+_\w+ \(([\w, ]+)\) in tests/golden", words):
        assert set(re.split(r", ", read)) <= VALUES | NAMES, read
