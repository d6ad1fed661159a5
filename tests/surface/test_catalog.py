"""Every theorem is documented, listed, and refuses what it does not cover."""

from __future__ import annotations

import importlib
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
HELPERS = {"base", "catalog"}
MODULES = [
    importlib.import_module(f"tightrope.theorems.{info.name}")
    for info in pkgutil.iter_modules(tightrope.theorems.__path__)
    if info.name not in HELPERS
]
STATEMENTS = [module for module in MODULES if hasattr(module, "applies")]
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


@pytest.mark.parametrize("module", STATEMENTS, ids=lambda m: m.__name__.rsplit(".", 1)[1])
def test_a_theorem_states_itself(module: Any) -> None:
    for heading in HEADINGS:
        assert re.search(rf"^{heading}: ", module.__doc__ or "", re.MULTILINE), heading
    assert isinstance(module.NAME, str)
    assert isinstance(module.SOURCE, Source)
    assert isinstance(module.VALIDITY, Validity)


@pytest.mark.parametrize("module", STATEMENTS, ids=lambda m: m.__name__.rsplit(".", 1)[1])
def test_a_theorem_is_in_the_catalogue(module: Any) -> None:
    assert module in THEOREMS


@pytest.mark.parametrize("module", STATEMENTS, ids=lambda m: m.__name__.rsplit(".", 1)[1])
def test_a_theorem_refuses_with_a_reason(module: Any) -> None:
    refused = [process for process in FOREIGN if module.applies(process) is not None]
    assert refused, "a theorem about everything?"
    for process in refused:
        reason = module.applies(process)
        assert isinstance(reason, Refusal)
        assert len(reason) > 30
        assert "got" in reason or "needs" in reason
        with pytest.raises(DoesNotApply):
            module.guarantee(process)


def test_golden_files_hold_numbers() -> None:
    files = sorted(GOLDEN.glob("*.json"))
    assert files
    for file in files:
        assert (GOLDEN / f"generate_{file.stem}.py").exists(), f"{file.name} has no generator"
        assert len(json.loads(file.read_text())) >= 5
