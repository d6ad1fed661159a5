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

from tightrope import NoisySGD, PoissonSampling, Target, account, find_noise
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency, BallsInBinsSampling, FixedSizeSampling

VARIABLE = "TIGHTROPE_ENCLOSURES"
FILE = os.environ.get(VARIABLE)
ENTRIES = json.loads(Path(FILE).read_text())["entries"] if FILE else []
WIDTH = 1e-6
# many batches at little noise: rounding of the law of an epoch (docs/balls_in_bins.md)
WIDER = {"balls_in_bins-s007": 5e-6}


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


REPLACED = {"adjacency": Adjacency.REPLACE_ONE}
FOUND: dict[str, Callable[[dict[str, Any]], Interval]] = {
    "balls_in_bins": lambda i: account(allocated(i)).epsilon(i["delta"]),
    "balls_in_bins_delta": lambda i: account(allocated(i)).delta(i["epsilon"]),
    "group_poisson": lambda i: account(poisson(i).group(i["group_size"])).epsilon(i["delta"]),
    "poisson_replace_one": lambda i: account(poisson(i, **REPLACED)).epsilon(i["delta"]),
    "fixed_size_replace_one": lambda i: account(fixed(i)).epsilon(i["delta"]),
    "banded_cyclic_poisson": banded,
}
BRACKETS = {"fixed_size_replace_one"}  # the truth itself is known between two ends only


@pytest.mark.skipif(FILE is None, reason=f"{VARIABLE} names no file of enclosures")
@pytest.mark.parametrize("entry", ENTRIES or [None], ids=lambda e: e and e["id"])
def test_enclosures_of_others_are_met(entry: dict[str, Any]) -> None:
    if entry["family"] not in FOUND:
        pytest.skip(f"nothing here accounts for {entry['family']}")
    found = FOUND[entry["family"]](entry["inputs"])
    assert found.lower <= entry["upper"] * (1 + 1e-11)
    assert found.upper >= entry["lower"] * (1 - 1e-11)
    if entry["family"] not in BRACKETS:
        assert found.width <= WIDER.get(entry["id"], WIDTH) * found.upper
