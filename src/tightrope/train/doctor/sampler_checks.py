"""Does the sampler draw what it declares? Draws are thrown away and the sampler is put back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tightrope.process import FixedSizeSampling, PoissonSampling, UserLevel
from tightrope.train.doctor.sampler_trials import SAMPLER, trials_of
from tightrope.train.doctor.trials import judge
from tightrope.train.doctor.verdict import Finding, fault
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.samplers import Indices

__all__ = ["check_rehearsed", "check_sampler", "draw_batches"]

REHEARSED = "batches of the run"

_WORK = 2**25  # draws for single records
_FEWEST, _MOST = 128, 4096  # batches looked at


def check_sampler(
    run: PrivateOptimizer, batches: list[Indices], population: int, rate: float
) -> list[Finding]:
    """The declared sampling is the accounted one, and the batches look like it.

    rate: the chance that any of these tests accuses a sound sampler.
    """
    declared, process = run.sampler.sampling, run.ledger.process(1)
    process = process.run if isinstance(process, UserLevel) else process
    accounted: Any = getattr(process, "parts", (process,))[-1]
    if accounted.sampling != declared or accounted.adjacency != run.sampler.adjacency:
        return [fault(SAMPLER, f"runs {declared}, accounts {accounted.sampling}")]
    if accounted.noise_multiplier != run.noise.noise_multiplier:
        return [fault(SAMPLER, "the accounted noise multiplier is not the running one")]
    found = trials_of(declared, batches, population)
    if isinstance(found, str):
        return [fault(SAMPLER, f"declares {declared}, but {found}")]
    blame = f"this is not {declared}, which is accounted"
    return judge(found, rate, {SAMPLER: blame})


def check_rehearsed(
    run: PrivateOptimizer, batches: list[Indices], population: int, rate: float
) -> list[Finding]:
    """What the run itself drew, where each batch is drawn anew: no loop may change or repeat it."""
    declared = run.sampler.sampling
    if not isinstance(declared, PoissonSampling | FixedSizeSampling) or not batches:
        return []
    found = trials_of(declared, batches, population)
    if isinstance(found, str):
        return [fault(REHEARSED, f"declares {declared}, but {found}")]
    trials = [replace(trial, check=REHEARSED) for trial in found]
    return judge(trials, rate, {REHEARSED: f"the rehearsed batches are not {declared}"})


def draw_batches(run: PrivateOptimizer, population: int) -> list[Indices]:
    """Whole epochs where there are epochs."""
    epoch = getattr(run.sampler.sampling, "batches_per_epoch", 1)
    rest = epoch - run.sampler.position if run.sampler.position else 0
    count = max(int(np.clip(_WORK // max(population, 1), _FEWEST, _MOST)), 4 * epoch)
    state = run.sampler.state()
    try:
        for _ in range(rest):  # to the end of an epoch that is under way
            run.sampler.draw(population)
        return [run.sampler.draw(population) for _ in range(count // epoch * epoch)]
    finally:
        run.sampler.restore(state)
