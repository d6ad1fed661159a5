"""In the published index, a number shown as the paper's own stands in that paper."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

RECORDS = sorted((Path(__file__).parents[3] / "docs" / "reproduction").glob("*/record.json"))
# as they stand in the texts, tables and captions
_GDP = {
    *(95.0, 96.6, 97.0, 97.6, 97.8, 98.0, 0.23, 0.57, 1.13, 2.0, 2.76, 4.78),
    *(0.83, 2.32, 5.07, 9.98, 14.98, 31.12, 1.19, 3.01, 7.1, 13.27, 18.72, 32.4),
    *(1.3, 1.1, 0.7, 0.6, 0.55, 0.5, 0.56, 1212.0, 159.1, 77.6, 9.4),
    *(84.0, 84.5, 79.7, 83.9, 84.4, 2.03, 10.2, 14.7),
    *(83.8, 84.7, 85.4, 2.07, 10.43, 15.24),
    *(0.915, 0.893, 0.873, 0.916, 0.923, 1.117, 1.94, 10.61, 15.39),
    *(1.34, 0.35, 1.06, 8.68, 1.78, 0.638, 23, 18, 33, 26, 64, 45, 92.0, 96.0),
}
PRINTED = {
    "A Better Bound / Three Variants": {0.75, 100},
    "Deep Learning with Gaussian Differential Privacy": _GDP,
    "What you gain today": _GDP,  # its rows begin where Tables 1 to 4 end
}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_printed_claims_are_in_the_paper(path: Path) -> None:
    record = json.loads(path.read_text())
    for line in record["lines"]:
        if line["printed"]:
            assert line["claim"] in PRINTED.get(record["paper"], ()), line["what"]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_number_among_words_says_where_it_comes_from(path: Path) -> None:
    """Words escape the check above: a plain number, or a long one, must not be among them."""
    for line in json.loads(path.read_text())["lines"]:
        if isinstance(line["claim"], str):
            assert not re.fullmatch(r"[-+.\d]+", line["claim"]), line["what"]
            computed = re.search(r"\d\.\d{3}", line["claim"])
            marked = re.search(r"\((formula|leading terms)\)|drawn", line["claim"])
            assert not computed or marked, line["what"]


def test_some_are_printed_and_some_are_formulas() -> None:
    lines = [line for path in RECORDS for line in json.loads(path.read_text())["lines"]]
    numbers = [line for line in lines if isinstance(line["claim"], float)]
    printed = sum(line["printed"] for line in numbers)
    assert printed > 80 and len(numbers) - printed > 40
