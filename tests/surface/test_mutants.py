"""The list of planted faults cannot rot: each old text is where it is said to be, once."""

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
    text = (ROOT / RUN.PACKAGE / fault.file).read_text()
    assert text.count(fault.old) == 1
    assert fault.new != fault.old
    for test in fault.tests.partition(" -k ")[0].split():
        assert (ROOT / test.split("::")[0]).is_file()


def test_enough_faults_are_planted() -> None:
    assert len(FAULTS) >= 80
    assert sum(bool(fault.harmless) for fault in FAULTS) <= 0.05 * len(FAULTS)
