"""Enclosures made by others, where their file is at hand: TIGHTROPE_ENCLOSURES names it.

It is a JSON file with "entries", each with its family, its inputs, lower <= truth <= upper. Those
of families that are accounted here must be enclosed, at the widths that are promised.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightrope import LaplaceMechanism, NoisySGD, PoissonSampling, Target, account, find_noise
from tightrope.numerics.interval import Interval
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    FixedSizeSampling,
    Repeated,
    SampledRelease,
    TruncatedPoissonSampling,
)

VARIABLE = "TIGHTROPE_ENCLOSURES"
FILE = os.environ.get(VARIABLE)
ENTRIES = json.loads(Path(FILE).read_text())["entries"] if FILE else []
WIDTH = 1e-6


def allocated(i: dict[str, Any]) -> NoisySGD:
    batches = i["batches_per_epoch"]
    return NoisySGD(BallsInBinsSampling(batches), i["noise_multiplier"], batches * i["epochs"])


def poisson(i: dict[str, Any], **options: Any) -> NoisySGD:
    return NoisySGD(PoissonSampling(i["rate"]), i["noise_multiplier"], i["steps"], **options)


def fixed(i: dict[str, Any]) -> NoisySGD:
    sampling = FixedSizeSampling(i["rate"])
    return NoisySGD(sampling, i["noise_multiplier"], i["steps"], Adjacency.REPLACE_ONE)


def banded(i: dict[str, Any]) -> Interval:
    """b-banded noise with cyclic Poisson batches is a Poisson run of ceil(n/b) steps."""
    rate = i["batch"] * i["bands"] / i["records"]
    run = NoisySGD(PoissonSampling(rate), 1.0, math.ceil(i["steps"] / i["bands"]))
    return Interval.exact(find_noise(run, Target.approx_dp(i["epsilon"], i["delta"])).value)


def laplace(i: dict[str, Any]) -> Repeated:
    one = SampledRelease(LaplaceMechanism(i["scale_over_sensitivity"]), i["rate"])
    return Repeated(one, i["steps"])


def truncated(i: dict[str, Any]) -> Interval:
    """The bound; its lower end is that of data whose other gradients are 0."""
    sampling = TruncatedPoissonSampling(i["rate"], i["largest_batch"], i["records"])
    return account(NoisySGD(sampling, i["noise_multiplier"], i["steps"])).epsilon(i["delta"])


REPLACED = {"adjacency": Adjacency.REPLACE_ONE}
FOUND: dict[str, Callable[[dict[str, Any]], Interval]] = {
    "balls_in_bins": lambda i: account(allocated(i)).epsilon(i["delta"]),
    "balls_in_bins_delta": lambda i: account(allocated(i)).delta(i["epsilon"]),
    "group_poisson": lambda i: account(poisson(i).group(i["group_size"])).epsilon(i["delta"]),
    "poisson_replace_one": lambda i: account(poisson(i, **REPLACED)).epsilon(i["delta"]),
    "fixed_size_replace_one": lambda i: account(fixed(i)).epsilon(i["delta"]),
    "banded_cyclic_poisson": banded,
    "poisson_laplace": lambda i: account(laplace(i)).epsilon(i["delta"]),
    "truncated_poisson": truncated,
}
BRACKETS = {"fixed_size_replace_one", "truncated_poisson"}  # the truth is known between two ends


@pytest.mark.skipif(FILE is None, reason=f"{VARIABLE} names no file of enclosures")
@pytest.mark.parametrize("entry", ENTRIES or [None], ids=lambda e: e and e["id"])
def test_enclosures_of_others_are_met(entry: dict[str, Any]) -> None:
    if entry["family"] not in FOUND:
        pytest.skip(f"nothing here accounts for {entry['family']}")
    found = FOUND[entry["family"]](entry["inputs"])
    assert found.lower <= entry["upper"] * (1 + 1e-11)
    assert found.upper >= entry["lower"] * (1 - 1e-11)
    if "truth_at_least" in entry:  # both ends of a bracket
        ends = (entry["truth_at_least"], entry["upper"])
        assert (found.lower, found.upper) == pytest.approx(ends, rel=3e-5, abs=0)
    if entry["family"] not in BRACKETS:
        assert found.width <= WIDTH * found.upper
