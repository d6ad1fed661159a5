"""Does the sampler draw what it declares? Draws are thrown away and the sampler is put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from tightrope.process import (
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    PoissonSampling,
    ShuffledSampling,
)
from tightrope.train.doctor.verdict import Finding, fault, good
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.samplers import Indices

__all__ = ["check_sampler"]

CHECK = "sampler = accountant"
_WORK = 2_000_000  # indices looked at
_FEWEST, _MOST = 64, 512  # batches looked at


def check_sampler(run: PrivateOptimizer, population: int, false_alarm: float) -> list[Finding]:
    """The declared sampling is the accounted one, and the batches look like it."""
    declared, process = run.sampler.sampling, run.ledger.process(1)
    accounted: Any = getattr(process, "parts", (process,))[-1]
    if accounted.sampling != declared or accounted.adjacency != run.sampler.adjacency:
        return [fault(CHECK, f"runs {declared}, accounts {accounted.sampling}")]
    if accounted.noise_multiplier != run.noise.noise_multiplier:
        return [fault(CHECK, "the accounted noise multiplier is not the running one")]
    batches = _draw(run, population)
    trouble = _TESTS[type(declared)](declared, batches, population, false_alarm)
    if trouble is not None:
        return [fault(CHECK, f"declares {declared}, but {trouble}")]
    return [good(CHECK, f"{len(batches)} batches drawn look like {declared}")]


def _draw(run: PrivateOptimizer, population: int) -> list[Indices]:
    epoch = getattr(run.sampler.sampling, "batches_per_epoch", 1)
    rest = epoch - run.sampler.position if run.sampler.position else 0
    count = max(int(np.clip(_WORK // max(population, 1), _FEWEST, _MOST)), 2 * epoch)
    state = run.sampler.state()
    try:
        for _ in range(rest):  # to the end of an epoch that is under way
            run.sampler.draw(population)
        return [run.sampler.draw(population) for _ in range(count)]
    finally:
        run.sampler.restore(state)


def _poisson(declared: Any, batches: list[Indices], n: int, false_alarm: float) -> str | None:
    rate, level = declared.rate, false_alarm / 3
    sizes = np.array([len(batch) for batch in batches])
    if rate in (0.0, 1.0):
        return None if (sizes == n * rate).all() else "batches have other sizes"
    if stats.binomtest(int(sizes.sum()), n * len(batches), rate).pvalue < level:
        return f"the mean batch is {sizes.mean():.1f} instead of {n * rate:.1f}"
    variance = n * rate * (1 - rate)
    spread = float(((sizes - n * rate) ** 2).sum() / variance)
    tail = min(stats.chi2.sf(spread, len(sizes)), stats.chi2.cdf(spread, len(sizes)))
    if variance > 5 and 2 * tail < level:
        return (
            f"batch sizes vary by {sizes.std():.2f} instead of {variance**0.5:.2f}: records do not "
            "join independently"
        )
    pairs = range(0, len(batches) - 1, 2)
    shared = sum(len(np.intersect1d(batches[i], batches[i + 1])) for i in pairs)
    if stats.binomtest(shared, n * len(pairs), rate**2).pvalue < level:
        return "one batch depends on the one before it, as when shuffling"
    return None


def _fixed(declared: Any, batches: list[Indices], n: int, false_alarm: float) -> str | None:
    size = round(declared.rate * n)
    if any(len(np.unique(batch)) != size for batch in batches):
        return f"not every batch has {size} different records"
    pairs = range(0, len(batches) - 1, 2)
    shared = [len(np.intersect1d(batches[i], batches[i + 1])) for i in pairs]
    mean, law = float(np.mean(shared)), stats.hypergeom(n, size, size)
    if law.std() == 0:
        return None
    z = (mean - law.mean()) / (law.std() / len(shared) ** 0.5)
    return None if 2 * stats.norm.sf(abs(z)) > false_alarm else "batches are not independent"


def _epoch(declared: Any, batches: list[Indices], n: int, false_alarm: float) -> str | None:
    b = declared.batches_per_epoch
    for start in range(0, len(batches) - b + 1, b):
        used = np.bincount(np.concatenate(batches[start : start + b]), minlength=n)
        if (used != 1).any():
            return "an epoch does not use every record exactly once"
    return None


def _full(declared: Any, batches: list[Indices], n: int, false_alarm: float) -> str | None:
    return None if all(len(batch) == n for batch in batches) else "a batch leaves records out"


_TESTS: dict[type, Callable[[Any, list[Indices], int, float], str | None]] = {
    PoissonSampling: _poisson,
    FixedSizeSampling: _fixed,
    ShuffledSampling: _epoch,
    CyclicSampling: _epoch,
    BallsInBinsSampling: _epoch,
    FullBatch: _full,
}
