"""Every theorem is documented, listed, and refuses what it does not cover."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import tightrope.theorems
from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Validity
from tightrope.process import (
    Adjacency,
    CyclicSampling,
    DeclaredApproxDP,
    FixedSizeSampling,
    FullBatch,
    NoisySGD,
    PoissonSampling,
    RandomizedResponse,
)
from tightrope.theorems.base import Refusal, Source
from tightrope.theorems.catalog import THEOREMS

HEADINGS = ("Statement", "Conditions", "Validity", "Source", "Error", "Vectors")
MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(tightrope.theorems.__path__, "tightrope.theorems.")
]
STATEMENTS = [
    found
    for module in MODULES
    for found in vars(module).values()
    if inspect.isclass(found) and found.__module__ == module.__name__ and hasattr(found, "applies")
    if hasattr(found, "NAME")
]
GOLDEN = Path(__file__).parents[1] / "golden"

FOREIGN: list[Any] = [
    NoisySGD(PoissonSampling(0.1), 1.0, 10, Adjacency.REPLACE_ONE),
    NoisySGD(CyclicSampling(10), 1.0, 10),
    NoisySGD(FixedSizeSampling(0.1), 1.0, 10),
    NoisySGD(PoissonSampling(0.1), 0.5, 10),
    NoisySGD(FullBatch(), 1.0, 10),
    DeclaredApproxDP(1.0, 1e-6),
    RandomizedResponse(0.5, adjacency=Adjacency.ADD_OR_REMOVE),
]


@pytest.mark.parametrize("theorem", STATEMENTS, ids=lambda theorem: theorem.__name__)
def test_a_theorem_states_itself(theorem: Any) -> None:
    for heading in HEADINGS:
        assert re.search(rf"^{heading}: ", inspect.getdoc(theorem) or "", re.MULTILINE), heading
    assert isinstance(theorem.NAME, str)
    assert isinstance(theorem.SOURCE, Source)
    assert isinstance(theorem.VALIDITY, Validity)


@pytest.mark.parametrize("theorem", STATEMENTS, ids=lambda theorem: theorem.__name__)
def test_a_theorem_is_in_the_catalogue(theorem: Any) -> None:
    assert theorem in THEOREMS


@pytest.mark.parametrize("theorem", STATEMENTS, ids=lambda theorem: theorem.__name__)
def test_a_theorem_refuses_with_a_reason(theorem: Any) -> None:
    refused = [process for process in FOREIGN if theorem.applies(process) is not None]
    assert refused, "a theorem about everything?"
    for process in refused:
        reason = theorem.applies(process)
        assert isinstance(reason, Refusal)
        assert len(reason) > 30
        assert "got" in reason or "needs" in reason
        with pytest.raises(DoesNotApply):
            theorem.guarantee(process)


def test_golden_files_hold_numbers() -> None:
    files = sorted(GOLDEN.glob("*.json"))
    assert files
    for file in files:
        assert (GOLDEN / f"generate_{file.stem}.py").exists(), f"{file.name} has no generator"
        assert len(json.loads(file.read_text())) >= 5
