"""The table of attacks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ATTACKS = Path(__file__).parents[1] / "attacks"
NAMED = re.compile(r"`(tests/\S+/)?(test_\w+\.py)::(test_\w+)`")


def test_every_attack_that_is_named_exists() -> None:
    named = NAMED.findall((ATTACKS / "README.md").read_text())
    assert len(named) > 100
    for folder, file, test in named:
        source = (ATTACKS.parents[1] / folder if folder else ATTACKS) / file
        assert f"\ndef {test}(" in source.read_text(), f"{file}::{test}"
