"""The golden values of `tests/golden/renyi.json`, and when an answer agrees with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CASES = json.loads((Path(__file__).parent / "golden" / "renyi.json").read_text())


def cases(name):
    chosen = [case for case in CASES if case["name"] == name]
    assert chosen, f"no golden values named {name}"
    return pytest.mark.parametrize("case", chosen, ids=lambda c: "-".join(c["inputs"].values()))


def read(case):
    inputs = [float(value) for value in case["inputs"].values()]
    outputs = {key: float(value) for key, value in case["outputs"].items()}
    return inputs, outputs, case["rtol"]


def encloses(enclosure, truth, rtol):
    """The truth is inside (up to its own last digit) and the enclosure is narrow."""
    lower, upper = enclosure
    assert lower <= truth * (1 + 2e-16) and truth * (1 - 2e-16) <= upper
    assert upper - lower <= rtol * truth


def just_above(value, truth, rtol):
    assert truth * (1 - 2e-16) <= value <= truth * (1 + rtol) + 1e-300
