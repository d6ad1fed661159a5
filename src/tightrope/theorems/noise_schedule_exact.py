"""Noisy SGD with a schedule of noises fixed in advance.

Statement: the steps compose like any others: the pairs of Poisson-sampled Gaussian steps with the
    scheduled noises are multiplied, order by order of the neighbours; full batches add mu^2. With
    more than 1,000 distinct noises they are first rounded down to a grid of relative width 1e-3,
    which can only overstate the loss (less noise is a less private step).
Conditions: Poisson sampling, or full batches. The schedule must not depend on the data; otherwise
    use a filter.
Validity: exact up to 1,000 distinct noises, above an upper bound (about 1e-3 relative).
Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 10 (composition of dominating pairs).
Error: the rounding of the grid, on the safe side; the numerical composition states its own.
Vectors: sgm_eps, gdp_eps (constant schedules).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.process import (
    Adjacency,
    FullBatch,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    Process,
)
from tightrope.theorems import (
    gaussian_gdp_drs19,
    poisson_gaussian_exact_zdw22,
    poisson_replace_one_exact,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, require
from tightrope.validate import FloatArray

NAME = "Scheduled noise, composed"
SOURCE = Source("Zhu, Dong, Wang 2022", "Theorem 10", "zdw22")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD

_MANY, _GRID = 1000, 1e-3


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoiseSchedule):
        return foreign(NAME, "NoiseSchedule", process)
    if not isinstance(process.sampling, (PoissonSampling, FullBatch)):
        return Refusal(f"{NAME} needs Poisson sampling or full batches; got {process.sampling}.")
    theorem = _one_step(process)
    reason = theorem.applies(NoisySGD(process.sampling, 1.0, 1, process.adjacency))
    return reason if reason is None else reason.renamed(theorem.NAME, NAME)


def guarantee(process: NoiseSchedule) -> Guarantee:
    require(applies(process))
    noises, counts = np.unique(np.array(process.noise_multipliers), return_counts=True)
    distinct = len(noises)
    if distinct > _MANY:
        noises, counts = _rounded_down(noises, counts)
    runs = [
        NoisySGD(process.sampling, float(noise), int(count), process.adjacency)
        for noise, count in zip(noises, counts, strict=True)
    ]
    parts = [_one_step(process).guarantee(run) for run in runs]
    composed = compose(parts)
    return composed if distinct <= _MANY else composed.as_bound()


def _one_step(process: NoiseSchedule) -> Any:
    if isinstance(process.sampling, FullBatch):
        return gaussian_gdp_drs19
    replaced = process.adjacency is Adjacency.REPLACE_ONE
    return poisson_replace_one_exact if replaced else poisson_gaussian_exact_zdw22


def _rounded_down(noises: FloatArray, counts: Any) -> tuple[FloatArray, Any]:
    """Each noise replaced by the grid point below it; equal ones counted together."""
    with np.errstate(divide="ignore"):
        cell = np.floor(np.log(noises) / _GRID)
    below = np.minimum(np.exp(cell * _GRID), noises)
    below = np.where(noises > 0, below * (1 - 1e-12), 0.0)
    grid, place = np.unique(below, return_inverse=True)
    return grid, np.bincount(place, weights=counts).astype(np.int64)
