"""Vectors made by others, where their file is at hand: TIGHTROPE_VECTORS names it.

It is a JSON list of named cases with inputs, outputs and a tolerance. Most have a twin in our
golden files, made by generators of our own, which other tests hold the code to; the rest is
computed here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightrope.audit.one_run import p_value
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.pairs import GaussianPair, SampledGaussianPair
from tightrope.process.convex import ConvexLoss, NoisyGradientDescent
from tightrope.theorems.last_iterate.bounded import projected_squared_mu
from tightrope.theorems.last_iterate.descent import cyclic_squared_mu, full_batch_squared_mu
from tightrope.theorems.last_iterate.sampled import StopTerm
from tightrope_reproduce.formulas.last_iterates import (
    corrected_stop_renyi,
    printed_stop_renyi,
    skip_renyi,
)

VARIABLE = "TIGHTROPE_VECTORS"
FILE = os.environ.get(VARIABLE)
VECTORS = json.loads(Path(FILE).read_text()) if FILE else []
GOLDEN = [
    case
    for path in (Path(__file__).parents[1] / "golden").glob("*.json")
    for case in json.loads(path.read_text())
]
# statements that nobody should use, which are not part of the library, and judgements in words
LEFT_OUT = {
    "with_fourth_term", "leading_sufficient", "paper_final_WRONG", "corrected_1_plus_ln_n",
    "paper_sigma_condition", "thm35_bound", "valid", "shortcut_valid", "conditions_hold",
    "classical_ok",
}  # fmt: skip
Numbers = dict[str, float]


def cyclic(step: float, factor: float, batches: float, epochs: float, position: float) -> float:
    """The squared mu of the last iterate."""
    known = (int(batches), int(epochs), int(position))
    return step**2 * cyclic_squared_mu(factor, *known)


def divergence(i: Numbers, squared_mu: float) -> Numbers:
    return {"rdp": 0.5 * i["alpha"] * squared_mu, "gdp_mu": math.sqrt(squared_mu)}


def fixed_batch(i: Numbers) -> Numbers:
    here, worst = (cyclic(1 / i["sigma"], 1, i["Q"], i["T"], k) for k in (i["kappa"], i["Q"]))
    told, most = divergence(i, here), divergence(i, worst)
    return {"rdp_corrected": told["rdp"], "rdp_worst_kappa": most["rdp"], "gdp_mu": told["gdp_mu"]}


def skipped(i: Numbers) -> Numbers:
    step = 2 * i["L"] / i["sigma"]
    found = skip_renyi(i["alpha"], int(i["n"]), int(i["t"]), step)
    whole = 0.5 * i["alpha"] * cyclic(step, 1, i["n"], 1, i["t"])
    return {"exact_mixture": found, "theorem24": whole}


def stopped(i: Numbers) -> Numbers:
    step, records = 2 * i["L"] / i["sigma"], int(i["n"])
    term = StopTerm(step, 1.0, records, exact_up_to=records)
    return {
        "log_mean_exp": float(term.upper(np.array([i["alpha"]]))[0]),
        "corrected_H_n": corrected_stop_renyi(i["alpha"], records, step),
        "paper_ln_n": printed_stop_renyi(i["alpha"], records, step),
    }


def projected(i: Numbers) -> Numbers:
    loss = ConvexLoss(5 * i["L_over_n"], 1.0)
    run = NoisyGradientDescent(
        loss=loss,
        step_size=i["eta"],
        noise_std=i["sigma"],
        records=10,
        steps=int(i["t"]),
        diameter=i["D"],
    )
    mu = math.sqrt(projected_squared_mu(run))
    return {"mu": mu, "bok_theorem": mu}


def steps(i: Numbers) -> Numbers:
    found = {}
    for order in ("remove", "add"):
        pair: Any = SampledGaussianPair(i["q"], 1 / i["sigma"], order)  # type: ignore[arg-type]
        if i["q"] == 1.0:
            pair = GaussianPair(1 / i["sigma"])
        found[order] = profile.delta(((pair, int(i.get("T", 1))),), i["eps"]).upper
    return found if "T" in i else {**found, "both": max(found.values())}


COMPUTED: dict[str, Callable[[Numbers], Numbers]] = {
    "pnsgd_index": lambda i: divergence(i, cyclic(2 * i["L"] / i["sigma"], 1, i["n"], 1, i["t"])),
    "pnmsgd_multi_epoch": lambda i: divergence(
        i, cyclic(2 * i["L"] / i["sigma"], 1, i["n"], i["epochs"], i["index"])
    ),
    "fixed_batch_004": fixed_batch,
    "skip_pnsgd_index": skipped,
    "stop_pnsgd": stopped,
    "noisygd_strongly_convex_gdp": lambda i: {
        "mu": i["step_mu"] * math.sqrt(full_batch_squared_mu(i["c"], int(i["t"])))
    },
    "noisycgd_strongly_convex_gdp": lambda i: {
        "mu": math.sqrt(cyclic(i["step_mu"], i["c"], i["l"], i["E"], i["l"]))
    },
    "noisygd_projected_gdp": projected,
    "sgm_delta_T1": steps,
    "sgm_delta": steps,
    "one_run_audit_pvalue": lambda i: {
        "p": p_value(int(i["m"]), int(i["r"]), int(i["v"]), i["eps"], i["delta"])
    },
}


def numbers(values: Any) -> list[float]:
    """All numbers among them, sorted: what is left of inputs whose names differ."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return sorted(number for value in values for number in numbers(value))
    try:
        return [] if isinstance(values, bool) else [float(values)]
    except ValueError:
        return []


def twin(vector: dict[str, Any]) -> list[float]:
    """The outputs of the golden case with these inputs."""
    known = numbers(vector["inputs"])
    return next(
        numbers(case["outputs"])
        for case in GOLDEN
        if case["name"].startswith(vector["name"])
        and numbers(case["inputs"]) == pytest.approx(known, rel=1e-15)
    )


@pytest.mark.skipif(FILE is None, reason=f"{VARIABLE} names no file of vectors")
@pytest.mark.parametrize("vector", VECTORS or [None], ids=lambda v: v and v["name"])
def test_vectors_of_others_are_met(vector: dict[str, Any]) -> None:
    told = {k: float(v) for k, v in vector["outputs"].items() if k not in LEFT_OUT}
    tolerance = {"rel": max(float(vector["rtol"]), 3e-12), "abs": 1e-300}
    if vector["name"] not in COMPUTED:
        ours = twin(vector)
        for key, value in told.items():
            assert any(value == pytest.approx(number, **tolerance) for number in ours), key
        return
    inputs = {key: float(value) for key, value in vector["inputs"].items()}
    assert COMPUTED[vector["name"]](inputs) == pytest.approx(told, **tolerance)
