"""The README's first example prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"\d+\.\d+", text)]


def test_the_first_example_is_real() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    told = re.search(r"prints\n\n```\n(.*?)```", README, re.DOTALL)
    assert code and told
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.group(1), {})
    assert numbers(printed.getvalue()) == pytest.approx(numbers(told.group(1)), rel=1e-7)
    assert re.sub(r"[\d.]+", "", printed.getvalue()) == re.sub(r"[\d.]+", "", told.group(1))


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    assert (Path(__file__).parents[2] / link).exists()
