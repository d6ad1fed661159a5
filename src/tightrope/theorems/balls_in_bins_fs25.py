"""Every record in exactly one random batch of each epoch (random allocation, balls in bins).

Statement: with t batches an epoch and lam = 1 - (1 - 1/t)^t, one epoch satisfies
    delta_remove(eps) <= (1/lam) delta^P_remove(ln(1 + lam (e^eps - 1))) and
    delta_add(eps) <= ((lam + e^eps (1-lam))/lam) delta^P_add(-ln(1 - lam (1 - e^-eps))),
    where delta^P is the exact profile of t Poisson steps of rate 1/t. Both are also at most the
    profile of one Gaussian step (quasi-convexity). Epochs compose. A replaced record is one
    removed and one added: a group of two.
Conditions: batches assigned independently of the data.
Validity: upper bound. (Not dominated by Poisson: t = 2, noise 1, eps = 0.5 has delta 0.1492
    against 0.1479.)
Source: Feldman, Shenfeld 2025 (arXiv:2502.08202), Theorem 4.1; Chua et al. 2024
    (arXiv:2412.16802); theory notes C.9.
Error: several epochs are composed through a pessimistic discretisation.
Vectors: random_allocation_transform, random_allocation_rdp_remove.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tightrope.guarantee.base import Components, Guarantee, Validity
from tightrope.guarantee.gaussian import profile as gaussian
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee, pair_above
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.lattice_curve import delta_upper
from tightrope.guarantee.loss.pair import Direction, DiscretePair, SampledGaussianPair
from tightrope.process import Adjacency, BallsInBinsSampling, NoisySGD
from tightrope.theorems import poisson_gaussian_exact_zdw22 as exact
from tightrope.theorems.base import Source, require
from tightrope.validate import FloatArray

NAME = "Balls in bins"
SOURCE = Source("Feldman, Shenfeld 2025", "Theorem 4.1", "fs25")
VALIDITY = Validity.BOUND

_GRID = 320  # losses of one epoch; the pessimism of the chords falls with its square


def applies(process: Any) -> str | None:
    if not isinstance(process, NoisySGD) or not isinstance(process.sampling, BallsInBinsSampling):
        return f"{NAME} speaks about noisy SGD with BallsInBinsSampling; got {_words(process)}."
    return None


def _words(process: Any) -> str:
    return str(process.sampling) if isinstance(process, NoisySGD) else type(process).__name__


def guarantee(process: Any) -> Guarantee:
    require(applies(process))
    return through_removal(process, _add_or_remove)


def through_removal(process: Any, analyse: Callable[[Any], Guarantee]) -> Guarantee:
    """A replaced record as one removed and one added; alone in its batch it needs no detour."""
    batches, noise = process.sampling.batches_per_epoch, process.noise_multiplier
    if process.adjacency is Adjacency.ADD_OR_REMOVE:
        return analyse(process)
    if batches == 1 or noise == 0.0 or process.steps == 0:
        return gaussian_bound(process)
    return analyse(replace(process, adjacency=Adjacency.ADD_OR_REMOVE)).as_replace_one()


def gaussian_bound(process: Any) -> GaussianGuarantee:
    """One step an epoch, without the secret of which."""
    epochs = -(-process.steps // process.sampling.batches_per_epoch)
    mu = process.step_mu * math.sqrt(epochs) if epochs else 0.0
    return GaussianGuarantee(mu, process.adjacency, VALIDITY)


def _add_or_remove(process: Any) -> Guarantee:
    batches, mu = process.sampling.batches_per_epoch, process.step_mu
    epochs = -(-process.steps // batches)
    if epochs == 0 or batches == 1 or not exact.within_reach(1.0 / batches, mu, epochs):
        return gaussian_bound(process)
    if epochs == 1:
        epoch = Epoch(batches, mu)
        return ProfileGuarantee(epoch.delta, process.adjacency, VALIDITY, epoch.epsilon)
    orders = tuple(((pair, epochs),) for pair in _epoch_pairs(batches, mu))
    return LossGuarantee(orders, process.adjacency, VALIDITY)


@lru_cache(maxsize=32)
def _epoch_pairs(batches: int, mu: float) -> tuple[DiscretePair, DiscretePair]:
    """One epoch as a pair for each order of the neighbours, never below its profile."""
    epoch = Epoch(batches, mu)
    grid = np.linspace(0.0, max(epoch.epsilon(1e-16), 1e-3), _GRID)
    remove, add = (
        dict(zip(grid.tolist(), curve.tolist(), strict=True)).__getitem__
        for curve in epoch.curves(grid)
    )
    return pair_above(remove, add, grid), pair_above(add, remove, grid)


class Epoch:
    """One epoch of t batches: upper bounds of both profiles."""

    def __init__(self, batches: int, mu: float) -> None:
        self.batches, self.mu = batches, mu
        self.some_hit = -math.expm1(batches * math.log1p(-1.0 / batches))  # lam

    def _poisson(self, direction: Direction) -> Components:
        return ((SampledGaussianPair(1.0 / self.batches, self.mu, direction), self.batches),)

    def _moved(self, direction: Direction, epsilon: Any) -> tuple[Any, Any]:
        """Where the Poisson profile is read, and the factor before it."""
        lam = self.some_hit
        if direction == "remove":
            return epsilon + np.log(lam - (lam - 1.0) * np.exp(-epsilon)), 1.0 / lam
        factor = (lam + np.exp(np.minimum(epsilon, 700.0)) * (1.0 - lam)) / lam
        return -np.log1p(lam * np.expm1(-epsilon)), factor

    def _upper(self, direction: Direction, epsilon: float) -> float:
        inner, factor = self._moved(direction, epsilon)
        found = profile.delta(self._poisson(direction), float(inner)).upper
        plain = gaussian.delta_interval(epsilon, self.mu).upper
        return min(plain, float(factor) * found * (1 + 1e-12))

    def remove(self, epsilon: float) -> float:
        return self._upper("remove", epsilon)

    def add(self, epsilon: float) -> float:
        return self._upper("add", epsilon)

    def curves(self, grid: FloatArray) -> list[FloatArray]:
        """Both bounds on a whole grid, a little looser and far quicker than one by one."""
        directions: tuple[Direction, ...] = ("remove", "add")
        plain = gaussian.delta_bounds(grid, self.mu)[1]
        found = []
        for direction in directions:
            inner, factor = self._moved(direction, grid)
            curve = delta_upper(self._poisson(direction), inner)
            found.append(np.minimum(factor * curve * (1 + 1e-12), plain))
        return found

    def delta(self, epsilon: float) -> float:
        return max(self.remove(epsilon), self.add(epsilon))

    def epsilon(self, delta: float) -> float:
        """The inverse: for removal the map of epsilon is undone, for addition it is checked."""
        if delta == 0.0:
            return math.inf
        plain = gaussian.epsilon_interval(delta, self.mu).upper
        inner = profile.epsilon(self._poisson("remove"), min(1.0, self.some_hit * delta)).upper
        if inner > plain:  # losses of removal are larger than those of its Poisson steps
            return plain
        epsilon = math.log1p(math.expm1(inner) / self.some_hit) * (1 + 1e-12)
        if self.add(epsilon) <= delta:
            return min(epsilon, plain)
        return min(ProfileGuarantee(self.delta).epsilon(delta).upper, plain)
