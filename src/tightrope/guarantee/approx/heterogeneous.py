"""Optimal composition of different (epsilon_i, delta_i) guarantees.

Statement: together they are (x, 1 - prod(1 - delta_i) (1 - D(x)))-DP, D(x) = E (1 - e^{x - L})_+
    with L the sum of independent +-eps_i, + with probability e^eps_i/(1 + e^eps_i); optimal for
    the worst mechanisms.
Conditions: adaptive composition; the (eps_i, delta_i) are fixed in advance.
Validity: exact where the number of different sums is at most ENUMERATED (and for equal eps_i); else
    an interval: a bound from above and a value no mechanism class can undercut.
Source: Kairouz, Oh and Viswanath 2015 (arXiv:1311.0776), Theorem 3.5; computing it exactly is
    #P-complete (Murtagh and Vadhan 2016, arXiv:1507.03113), hence the rounding.
Error: upper end: each outcome is split between two lattice points so that both of its masses are
    kept (the rounded pair dominates). Lower end: outcomes of one cell are merged (post-processing).
    Both are second order in the lattice step. Sums have positive terms; 1e-11 relative is added.
    More than LEVELS different levels are first moved up (down) to a geometric scale.
Vectors: kov_heterogeneous in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tightrope.guarantee.approx.binomial import LARGEST, log_pmf
from tightrope.guarantee.approx.optimal import response_delta, with_failures
from tightrope.guarantee.approx.search import smallest_epsilon
from tightrope.guarantee.approx.simple import Approx, basic, checked
from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray, check_delta, check_epsilon

__all__ = ["ENUMERATED", "LEVELS", "delta_of_different", "epsilon_of_different"]

ENUMERATED = 1 << 17
LEVELS = 512
_WORK = 6e8  # elementary products spent on a lattice
_CELL = 4  # cells of the lower end in steps of the upper end: merging costs more per point
_MARGIN = 1e-11
Groups = tuple[tuple[float, int], ...]  # (eps, count)


def delta_of_different(
    at_epsilon: float, guarantees: Sequence[Approx], counts: Sequence[int] | None = None
) -> Interval:
    """The smallest delta at the level `at_epsilon` of all the guarantees together."""
    x, parts = check_epsilon(at_epsilon, "at_epsilon"), checked(guarantees, counts)
    return with_failures(_response(x, _groups(parts)), [(d, c) for _, d, c in parts])


def epsilon_of_different(
    at_delta: float, guarantees: Sequence[Approx], counts: Sequence[int] | None = None
) -> Interval:
    """The smallest epsilon at `at_delta`; inf where the deltas alone exceed it."""
    target, parts = check_delta(at_delta, "at_delta"), checked(guarantees, counts)
    groups, failures = _groups(parts), [(d, c) for _, d, c in parts]
    nothing = with_failures(Interval.exact(0.0), failures)
    top = basic([(e, 0.0) for e, _ in groups], [c for _, c in groups])[0]
    return smallest_epsilon(
        lambda x: with_failures(_response(x, groups), failures), target, top, nothing
    )


def _groups(parts: Sequence[tuple[float, float, int]]) -> Groups:
    total: Counter[float] = Counter()
    for eps, _, count in parts:
        if eps > 0.0:
            total[eps] += count
    return tuple(sorted(total.items()))


def _response(x: float, groups: Groups) -> Interval:
    if not groups:
        return Interval.exact(0.0)
    if len(groups) == 1:
        return response_delta(x, groups[0][0], groups[0][1])
    lower, upper = _distributions(groups)
    return Interval(lower.delta(x, -1.0), min(upper.delta(x, 1.0), 1.0))


class _Losses:
    """Losses with their masses under P; `infinite` is mass of infinite loss (upper end only)."""

    def __init__(self, losses: FloatArray, masses: FloatArray, infinite: float) -> None:
        self.losses, self.masses, self.infinite = losses, masses, infinite
        self.largest = float(np.max(np.abs(losses)))

    def delta(self, x: float, side: float) -> float:
        noise = side * 1e-14 * (self.largest + x)
        gaps = np.maximum(self.losses + noise - x, 0.0)
        return float(np.dot(self.masses, -np.expm1(-gaps))) * (1.0 + side * _MARGIN) + self.infinite


@lru_cache(maxsize=8)
def _distributions(groups: Groups) -> tuple[_Losses, _Losses]:
    """Loss distributions below and above the true one (the same where it can be enumerated)."""
    outcomes = [_outcomes(eps, count) for eps, count in groups]
    left_out = math.fsum(missing for _, _, missing in outcomes)
    if math.prod(len(losses) for losses, _, _ in outcomes) <= ENUMERATED:
        losses, masses = np.zeros(1), np.ones(1)
        for more, weights, _ in outcomes:
            losses, masses = np.add.outer(losses, more).ravel(), np.outer(masses, weights).ravel()
        return _Losses(losses, masses, 0.0), _Losses(losses, masses, left_out)
    if len(groups) > LEVELS:
        return _distributions(_thinned(groups, up=False))[0], _distributions(
            _thinned(groups, up=True)
        )[1]
    lattice = _Lattice(groups, outcomes)
    losses, masses = lattice.merged()
    return _Losses(losses, masses, 0.0), lattice.split(left_out)


def _thinned(groups: Groups, *, up: bool) -> Groups:
    """At most LEVELS levels on a geometric scale, each level moved up (down) to the next one."""
    levels = np.array([eps for eps, _ in groups])
    scale = np.geomspace(levels[0], levels[-1], LEVELS)
    scale[0], scale[-1] = levels[0], levels[-1]
    index = np.searchsorted(scale, levels) if up else np.searchsorted(scale, levels, "right") - 1
    total: Counter[float] = Counter()
    for i, (_, count) in zip(index, groups, strict=True):
        total[float(scale[i])] += count
    return tuple(sorted(total.items()))


def _outcomes(eps: float, count: int) -> tuple[FloatArray, FloatArray, float]:
    """Losses and masses of `count` randomised responses, and a bound on what was left out."""
    if eps > LARGEST:
        # a flip has probability below e^-600: counted as a failure
        return np.array([count * eps]), np.array([1.0]), count * math.exp(-LARGEST)
    q = 1.0 / (1.0 + math.exp(eps))
    reach = math.ceil(39.0 * math.sqrt(count * q)) + 700  # Chernoff: outside, below 1e-320
    flips = np.arange(0, min(count, math.ceil(count * q) + reach) + 1, dtype=np.float64)
    log_p = log_pmf(flips, count, eps)
    keep = log_p > -740.0
    return (count - 2.0 * flips[keep]) * eps, np.exp(log_p[keep]), count * 1e-320


class _Lattice:
    """A lattice fine enough for the work allowed, wide enough for the probabilities of doubles."""

    def __init__(
        self, groups: Groups, outcomes: list[tuple[FloatArray, FloatArray, float]]
    ) -> None:
        self.outcomes = outcomes
        total = math.fsum(c * e for e, c in groups)
        mean = math.fsum(c * e * math.tanh(0.5 * e) for e, c in groups)
        # Hoeffding: P(L > mean + t) <= exp(-t^2 / (2 sum eps^2)) < 1e-300
        reach = mean + math.sqrt(1400.0 * math.fsum(c * e * e for e, c in groups))
        self.edge = min(total, reach)
        atoms = sum(len(losses) for losses, _, _ in outcomes)
        inner = int(min(max(_WORK / (8.0 * atoms), 1 << 10), 1 << 16))
        self.step = self.edge / inner
        self.half = inner + len(groups) + 1  # splitting moves mass up by less than a step each time

    def split(self, infinite: float) -> _Losses:
        """Upper end: connect the dots; mass above the last point becomes infinite loss."""
        size = 2 * self.half + 1
        masses = np.zeros(size)
        masses[self.half] = 1.0
        for losses, weights, _ in self.outcomes:
            moved = np.zeros(size)
            for shift, weight in zip(*_split(losses, weights, self.step), strict=True):
                infinite += weight * _shift_onto(moved, masses, int(shift), weight)
            masses = moved
        points = self.step * np.arange(-self.half, self.half + 1, dtype=np.float64)
        return _Losses(points, masses, infinite * (1.0 + _MARGIN))

    def merged(self) -> tuple[FloatArray, FloatArray]:
        """Lower end: outcomes of one cell become one; outcomes beyond the edge are dropped."""
        losses, p = np.zeros(1), np.ones(1)
        for more, weights, _ in self.outcomes:
            losses, p = self._merge(
                np.add.outer(losses, more).ravel(), np.outer(p, weights).ravel()
            )
        return losses, p

    def _merge(self, losses: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
        keep = (np.abs(losses) <= self.edge * (1.0 + 1e-12)) & (p > 0.0)
        losses, p = losses[keep], p[keep]
        width = _CELL * self.step
        cell = np.floor(losses / width)
        over = losses - cell * width
        index = (cell - cell.min()).astype(np.int64)
        mass, other = np.bincount(index, p), np.bincount(index, p * np.exp(-over))
        used = mass > 0.0
        # ln(sum p / sum p e^-L), relative to the left end of the cell
        left = (np.flatnonzero(used) + cell.min()) * width
        merged = left + np.log(mass[used] / other[used])
        return np.asarray(merged, np.float64), np.asarray(mass[used], np.float64)


def _shift_onto(target: FloatArray, masses: FloatArray, shift: int, weight: float) -> float:
    """Add weight * masses, moved by `shift` points; gives back the mass that fell off the top.

    What would fall off the bottom is kept at the first point: a larger loss, hence safe.
    """
    size = masses.size
    if shift >= 0:
        shift = min(shift, size)
        target[shift:] += weight * masses[: size - shift]
        return float(masses[size - shift :].sum())
    shift = min(-shift, size)
    target[: size - shift] += weight * masses[shift:]
    target[0] += weight * masses[:shift].sum()
    return 0.0


def _split(losses: FloatArray, weights: FloatArray, step: float) -> tuple[FloatArray, FloatArray]:
    """Lattice points and masses that keep both masses (under P and under Q) of every outcome."""
    below = np.floor(losses / step)
    # rounding may leave a loss a hair outside its cell; `_Losses.delta` adds that noise
    share = np.clip(np.expm1(-(losses - below * step)) / math.expm1(-step), 0.0, 1.0)
    points = np.concatenate([below, below + 1.0])
    masses = np.concatenate([weights * (1.0 - share), weights * share])
    distinct, index = np.unique(points, return_inverse=True)
    return distinct, np.asarray(np.bincount(index, masses), np.float64)
