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
