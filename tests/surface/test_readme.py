"""The README's links; what its examples print is compared in test_docs_code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    path, _, place = link.partition("#")
    assert not path or (Path(__file__).parents[2] / path).exists()
    if not path:
        assert place in {heading.lower() for heading in re.findall(r"^#+ (\S+)$", README, re.M)}
