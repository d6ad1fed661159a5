"""The list of planted faults cannot rot: each is where it is said to be, once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("mutants_run", ROOT / "tests/mutants/run.py")
assert SPEC is not None and SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = RUN
SPEC.loader.exec_module(RUN)
FAULTS = RUN.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.words)
def test_a_fault_can_be_planted_and_has_tests(fault) -> None:  # type: ignore[no-untyped-def]
    assert not RUN.misplaced([fault])
    assert fault.new != fault.old
    for test in fault.named:
        assert (ROOT / test.split("::")[0]).is_file()


def test_enough_faults_are_planted() -> None:
    assert len(FAULTS) >= 80
    assert sum(bool(fault.harmless) for fault in FAULTS) <= 0.05 * len(FAULTS)


def test_faults_are_bound_to_functions_and_not_to_lines() -> None:
    """What is in no function, or is no expression, is found by its text: constants, SQL."""
    by_text = [fault for fault in FAULTS if "::" not in fault.place]
    assert len(by_text) <= 0.05 * len(FAULTS)


CODE = """class Some:
    def first(self, x):
        return x + 1

    def second(self, x):
        y = (x
             + 1)  # ±
        return y * f(x + 2)
"""


def _planted(place: str, old: str, new: str) -> str:
    return str(RUN.Fault(place, old, new, "").planted(CODE))


def test_a_fault_is_bound_to_a_function_however_it_is_written() -> None:
    assert "y = (x - 1)  # ±" in _planted("a.py::Some.second", "x + 1", "x - 1")
    assert "return x - 1" in _planted("a.py::Some.first", "x+1", "x - 1")
    assert "        pass  # ±\n" in _planted("a.py::Some.second", "y = x + 1", "pass")


@pytest.mark.parametrize(
    ("place", "old"),
    [("a.py", "return"), ("a.py::Some", "x"), ("a.py::Some.second", "x + 3"), ("a.py::Other", "x")],
)
def test_a_fault_that_is_nowhere_or_in_two_places_is_refused(place: str, old: str) -> None:
    with pytest.raises((LookupError, ValueError)):
        _planted(place, old, "0")
