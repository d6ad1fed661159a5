"""The table of attacks names files that exist, and leaves out none."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`([\w/]+/test_\w+\.py)`")


def test_every_file_of_attacks_is_in_the_table_and_exists() -> None:
    named = set(NAMED.findall((TESTS / "attacks" / "README.md").read_text()))
    assert all((TESTS / name).is_file() for name in named)
    there = {str(path.relative_to(TESTS)) for path in (TESTS / "attacks").rglob("test_*.py")}
    assert not there - named


def test_every_letter_is_used_once() -> None:
    page = (TESTS / "attacks" / "README.md").read_text()
    assert re.findall(r"^\| ([A-Z]) \| .* \| `", page, re.MULTILINE) == list("ABCDEFGHIK")
