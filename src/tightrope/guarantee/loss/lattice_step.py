"""One release on the lattice, above and below, for every kind of pair.

Above: mass is spread so that P and Q keep theirs (connect-the-dots). Below: the chords
are lowered (numerics.lattice_convex). Both are of second order in the step, and both survive
composition because delta is the expectation of a convex function.
docs/certificate_argument.md, 6.1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.special import log_ndtr

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.guarantee.loss.gaussian import (
    FixedSizeGaussianPair,
    GaussianPair,
    SampledGaussianPair,
    log_ratio,
)
from tightrope.guarantee.loss.laplace import (
    BoundedRangePair,
    LaplaceMixturePair,
    LaplacePair,
    laplace_atoms,
    sampled_laplace_atoms,
)
from tightrope.guarantee.loss.lattice_branch import (
    Branch,
    infimum,
    loss_at,
    lower_branch,
    upper_branch,
)
from tightrope.guarantee.loss.lattice_mixture import mixture_measure
from tightrope.guarantee.loss.lattice_public import public_measure
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicMixturePair
from tightrope.numerics.lattice import LatticeMeasure, check_size, normalised
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray

__all__ = ["Side", "step_measure", "jump_measure", "spacing", "on_one_lattice"]

Side = Literal["upper", "lower"]
_BRANCH = {"upper": upper_branch, "lower": lower_branch}


def spacing(pair: AbstractLossPair) -> float | None:
    """The distance that the lattice step must divide, for pairs with several atoms."""
    if isinstance(pair, LaplacePair | BoundedRangePair | LaplaceMixturePair):
        low, high = pair.support
        return 0.5 * (high - low)
    if isinstance(pair, DiscretePair) and len(pair.losses) > 1:
        low, high = pair.support
        return _closest(pair) if on_one_lattice(pair) else high - low
    return None


def _closest(pair: DiscretePair) -> float:
    return float(np.diff(np.array(pair.losses)).min())


def on_one_lattice(pair: AbstractLossPair) -> bool:
    """Are all losses whole multiples of the smallest distance apart, as nearly as `_atoms` asks?"""
    if not isinstance(pair, DiscretePair) or len(pair.losses) < 2:
        return False
    grid = _closest(pair)
    if grid <= 1e-12 * (pair.losses[-1] - pair.losses[0]):
        return False
    place = (np.array(pair.losses) - pair.losses[0]) / grid
    return bool(np.all(np.abs(place - np.round(place)) <= 1e-10))


def step_measure(
    pair: AbstractLossPair, side: Side, step: float, rate: float, cut: float
) -> LatticeMeasure:
    """The tilted measure of L under P, for pairs that are cut up to the point s = cut."""
    if isinstance(pair, GaussianPair):
        return _gaussian(pair.mu, side, step, rate)
    if isinstance(pair, SampledGaussianPair):
        if pair.rate == 1.0:
            return _gaussian(pair.mu, side, step, rate)
        return _sampled(pair, side, step, rate, cut)
    if isinstance(pair, FixedSizeGaussianPair):
        return _fixed_size(pair, side, step, rate, cut)
    if isinstance(pair, GaussianMixturePair):
        return mixture_measure(pair, side, step, rate, cut)
    if isinstance(pair, LaplacePair | BoundedRangePair):
        return _atoms(*laplace_atoms(pair, side, step), side, step, rate, 16.0 * ULP)
    if isinstance(pair, LaplaceMixturePair):
        off = 64.0 * ULP, pair.loss_units
        return _atoms(*sampled_laplace_atoms(pair, side, step), side, step, rate, *off)
    if isinstance(pair, DiscretePair):
        losses, masses = np.array(pair.losses), np.array(pair.masses)
        relative = float(np.max(pair.log_errors[masses > 0.0]))
        return _atoms(losses, masses, side, step, rate, relative, pair.loss_units)
    if isinstance(pair, PublicMixturePair):
        return public_measure(
            pair, side == "upper", cut, lambda part, end: step_measure(part, side, step, rate, end)
        )
    raise NotCertified(f"The lattice method has no rule for {type(pair).__name__}.")


def jump_measure(
    pair: AbstractLossPair,
    side: Side,
    step: float,
    rate: float,
    ends: tuple[float, float],
    anchor: float,
) -> LatticeMeasure:
    """The tilted measure of the losses between two points s of a pair with jumps.

    `anchor` is a point of its lattice.
    """
    q, mu = float(getattr(pair, "rate", 1.0)), float(getattr(pair, "mu", 1.0))
    base = infimum(q)
    lowest = base + loss_at(ends[0], q, mu)
    origin = anchor + step * math.floor((lowest - anchor) / step)
    branch = _BRANCH[side](q, mu, rate + 1.0, step, origin - base, *ends)
    return _measure(branch, step, rate, 0.0)


def _gaussian(mu: float, side: Side, step: float, rate: float) -> LatticeMeasure:
    # tilted, L is the log ratio at s ~ N((rate + 1) mu, 1); 10 deviations leave 2e-23
    centre = (rate + 1.0) * mu
    low = step * math.floor((mu * (centre - 10.0) - 0.5 * mu * mu) / step)
    begin = low / mu + 0.5 * mu
    branch = _BRANCH[side](1.0, mu, rate + 1.0, step, 0.0, begin, centre + 10.0)
    lost = 4e-23 * float(branch.masses.sum())
    return _measure(branch, step, rate, lost, closed=False)


def _measure(
    branch: Branch, step: float, rate: float, lost: float, *, closed: bool = True
) -> LatticeMeasure:
    return normalised(
        branch.origin + branch.start * step,
        step,
        branch.masses,
        branch.log_scale,
        rate,
        branch.absolute_error + lost,
        branch.relative_error,
        closed=closed,
    )


def _sampled(
    pair: SampledGaussianPair, side: Side, step: float, rate: float, cut: float
) -> LatticeMeasure:
    if pair.direction == "remove":
        branch = _BRANCH[side](pair.rate, pair.mu, rate + 1.0, step, 0.0, -math.inf, cut)
        return _measure(branch, step, rate, 0.0)
    far = _far_point(pair.rate, pair.mu, rate, -39.0)
    branch = _BRANCH[side](pair.rate, pair.mu, -rate, step, 0.0, -math.inf, far)
    top = branch.origin + step * (branch.start + len(branch.masses) - 1)
    beyond = _beyond(branch, pair.rate, pair.mu, rate, branch.log_scale)
    mirrored = replace(branch, origin=-top, start=0, masses=branch.masses[::-1].copy())
    return _measure(mirrored, step, rate, beyond)


def _far_point(q: float, mu: float, rate: float, low: float, log_other: float = -math.inf) -> float:
    """The smallest s > low where N(0,1) above s, tilted by r^-rate, is below e^-55 of all.

    log_other: what lies elsewhere. A branch that is rare beside it would be laid out far too wide.
    """
    s = np.linspace(low, 0.5 * mu + 11.0, 400)
    tilted = log_ndtr(-s) - rate * log_ratio(s, q, mu)  # decreasing
    largest = max(float((-0.5 * s * s - rate * log_ratio(s, q, mu)).max()), log_other)
    place = int(np.searchsorted(-tilted, 55.0 - largest))
    return float(s[min(place, len(s) - 1)])


def _beyond(branch: Branch, q: float, mu: float, rate: float, log_scale: float) -> float:
    """What N(0,1) above the end of a branch weighs, tilted by r^-rate."""
    log_r = infimum(q) + loss_at(branch.end, q, mu)
    return 1.01 * math.exp(float(log_ndtr(-branch.end)) - rate * log_r - log_scale)


def _fixed_size(
    pair: FixedSizeGaussianPair, side: Side, step: float, rate: float, cut: float
) -> LatticeMeasure:
    """The positive branch (P = base times r), its mirror image (P = base), and the atom at 0."""
    q, mu = pair.rate, pair.mu
    lift = -math.log1p(-q) if q < 1.0 else 0.0  # a lattice point on L = 0
    atom = pair.atoms[0][1] if pair.atoms else 0.0
    far = _far_point(q, mu, rate, 0.5 * mu, math.log(atom) if atom > 0.0 else -math.inf)
    up = _BRANCH[side](q, mu, rate + 1.0, step, lift, 0.5 * mu, cut)
    down = _BRANCH[side](q, mu, -rate, step, lift, 0.5 * mu, far)
    scale = max(up.log_scale, down.log_scale, 0.0)
    weight_up, weight_down = math.exp(up.log_scale - scale), math.exp(down.log_scale - scale)
    below = len(down.masses) - 1 + down.start  # steps from the lowest point to 0
    masses = np.zeros(below + up.start + len(up.masses))
    masses[: len(down.masses)] += weight_down * down.masses[::-1]
    masses[below + up.start :] += weight_up * up.masses
    masses[below] += math.exp(-scale) * atom
    lost = _beyond(down, q, mu, rate, scale)
    error = weight_up * up.absolute_error + weight_down * down.absolute_error + lost
    relative = up.relative_error + down.relative_error
    return normalised(-below * step, step, masses, scale, rate, error, relative)


def _atoms(
    losses: FloatArray,
    masses: FloatArray,
    side: Side,
    step: float,
    rate: float,
    relative: float,
    loss_units: float = 8.0,
) -> LatticeMeasure:
    """Atoms anywhere: on the lattice they stay, others are split above or moved down below."""
    keep = masses > 0.0
    losses, masses = losses[keep], masses[keep]
    origin = float(losses[0])
    place = (losses - origin) / step
    check_size(float(place[-1]))
    index = np.floor(place + 1e-9).astype(np.int64)
    offset = np.maximum(losses - (origin + index * step), 0.0)
    off = np.abs(losses - (origin + np.round(place) * step))
    aligned = off <= 1e-9 * step
    offset[aligned] = 0.0
    index[aligned] = np.round(place[aligned]).astype(np.int64)
    tilted = np.log(masses) + rate * (origin + index * step)
    top = float(tilted.max())
    weights = np.exp(tilted - top)
    total = np.zeros(int(index.max()) + 2)
    if side == "lower":
        np.add.at(total, index, weights)
    else:
        to_right = -np.expm1(-offset) / -math.expm1(-step)
        np.add.at(total, index, weights * (1.0 - to_right))
        np.add.at(total, index + 1, weights * to_right * math.exp(rate * step))
    relative += 8.0 * ULP * (3.0 + float(np.abs(tilted).max()))
    slip = float(off[aligned].max(initial=0.0)) + loss_units * UNIT * float(np.abs(losses).max())
    return normalised(origin, step, np.trim_zeros(total, "b"), top, rate, 0.0, relative, slip)
