"""Rare large losses ("jumps") summed directly, beside the lattice of the small ones.

Where T * rate << 1, or near the phase transition, the loss of one step is a narrow spike with a
heavy tail: no exponential tilt balances the two, and a lattice that resolves the spike cannot reach
the tail. So (small + jump)^T = sum_k C(T, k) jump^k small^(T-k): jumps live on grids of their own,
and every term is a sum of positive terms
    C(T, k) sum over the sum of k jumps of mass * E[(1 - e^{eps - jumps - small sum})_+],
whose last factor comes from the tables of the small part. Nothing is subtracted, so the result is
relatively accurate however small it is. More than K jumps have probability at most
C(T, K+1) p^{K+1} (docs/certificate_argument.md, 6.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.gaussian import FixedSizeGaussianPair, log_ratio
from tightrope.guarantee.loss.lattice_branch import loss_at, lower_branch, upper_branch
from tightrope.guarantee.loss.lattice_step import Side, jump_measure
from tightrope.guarantee.loss.public_mixture import PublicMixturePair
from tightrope.numerics.lattice import LatticeMeasure, compound
from tightrope.numerics.lattice_tail import shared_mass
from tightrope.numerics.quadrature import log_sum_exp
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

__all__ = [
    "JumpLaw",
    "one_jump",
    "several_jumps",
    "compound_jumps",
    "log_jump_sum",
    "log_step_moment",
]

_MOMENT_CELLS, _FAR = 4000, 12.0
_STEEPEST = 30.0  # nats of tilt on one step of the lattice for several jumps
_CHUNK = 8192  # losses at a time: keeps the work space small


@final
@dataclass(frozen=True)
class JumpLaw:
    """Atoms of the sum of some jumps under P: losses in increasing order and ln masses."""

    losses: FloatArray
    log_masses: FloatArray
    relative_error: float
    fft: LatticeMeasure | None = None  # where they come from an FFT: tilt, scale, and its errors


def one_jump(rate: float, mu: float, begin: float, end: float, cells: int, side: Side) -> JumpLaw:
    """Losses of s in (begin, end), above (ends of cells) or below (means of cells)."""
    s = np.linspace(begin, end, cells + 1)
    ends = log_ratio(s, rate, mu)
    scale = -0.5 * s[:-1] ** 2  # keeps the shares far from underflow
    left, right = shared_mass(s, mu, -scale)
    with np.errstate(divide="ignore"):
        log_left, log_right = np.log(left) + scale, np.log(right) + scale
    if side == "upper":
        base = np.full(cells + 1, -np.inf)
        base[:-1] = log_left
        base[1:] = np.logaddexp(base[1:], log_right)
        law = (ends, base + ends)
    else:
        # ln of the mean of r: a difference of logarithms of masses would lose small losses
        share = right / np.maximum(left + right, 1e-300)
        means = ends[:-1] + np.log1p(share * np.expm1(np.diff(ends)))
        law = (means, np.logaddexp(log_left, log_right) + means)
    largest = float(np.abs(s).max())
    error = 16.0 * ULP * (largest * largest + mu * largest - math.log(rate) + 20.0)
    return JumpLaw(law[0], law[1], error)


def log_step_moment(pair: AbstractLossPair, rate: float, end: float) -> float:
    """ln of an upper bound on E[e^{rate L}] of one step of a pair with jumps, losses up to s = end.

    Both branches above, in the convex order; what lies far out, where L < 0, counts as L = 0.
    """
    if isinstance(pair, PublicMixturePair):
        raise NotCertified("The law of a public mixture is followed, not bounded by its moment.")
    q, mu = float(getattr(pair, "rate", 1.0)), float(getattr(pair, "mu", 1.0))
    two_sided = isinstance(pair, FixedSizeGaussianPair)
    begin = 0.5 * mu if two_sided else -_FAR
    law = one_jump(q, mu, begin, max(end, begin + 1e-3), _MOMENT_CELLS, "upper")
    logs = [law.log_masses + rate * law.losses, np.array([float(log_ndtr(-_FAR))])]
    if two_sided:  # mirrored: P has the mass of the base there
        other = one_jump(q, mu, begin, begin + _FAR, _MOMENT_CELLS, "upper")
        atom = sum(mass for _, mass in pair.atoms)
        logs.append(other.log_masses - (1.0 + rate) * other.losses)
        logs.append(np.array([math.log(max(atom, 1e-300))]))
    found = float(log_sum_exp(np.concatenate(logs)))
    largest = float(np.abs(law.losses).max()) + _FAR * mu
    return found + 2.0 * law.relative_error + 8.0 * ULP * (1.0 + rate) * largest


def several_jumps(
    rate: float, mu: float, begin: float, end: float, cells: int, most: int, tilt: float, side: Side
) -> list[JumpLaw]:
    """The sums of 2, ..., `most` jumps, on a lattice, by direct convolution of positive masses.

    The masses are tilted by e^{tilt * loss}, which keeps them within the range of doubles; what
    underflows nevertheless is below 1e-300 of the largest.
    """
    low, high = loss_at(begin, rate, mu), loss_at(end, rate, mu)
    step = (high - low) / cells
    tilt = min(tilt, _STEEPEST / step)
    build = upper_branch if side == "upper" else lower_branch
    branch = build(rate, mu, 1.0 + tilt, step, low, begin, end)
    if branch.absolute_error > 0.0:  # too coarse for a bound from below: 0 is one
        return []
    top = float(branch.masses.max())
    one = branch.masses / top
    log_scale, first = branch.log_scale + math.log(top), branch.origin + branch.start * step
    size = abs(begin) + abs(end)
    error = 4.0 * ULP * (size * size + (abs(tilt) + 2.0) * (high + mu * size + 4.0) + 40.0)
    hidden = 1e-300 if side == "upper" else 0.0
    laws, total = [], one
    for k in range(2, most + 1):
        total = np.convolve(total, one)
        losses: FloatArray = k * first + step * np.arange(len(total), dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(total + hidden) + k * log_scale - tilt * losses
        rounding = ULP * (4.0 * len(one) * k + 8.0 * abs(tilt) * float(np.abs(losses).max()))
        laws.append(JumpLaw(losses, logs, k * error + rounding))
    return laws


def log_jump_sum(
    law: JumpLaw,
    call: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    epsilon: float,
    side: Side,
) -> tuple[float, float]:
    """ln of sum of mass * E[(1 - e^{eps - loss - rest})_+], and ln of the bound on its error.

    Losses are off by a few ulp; the call function decreases, so moving them the safe way bounds
    what that does.
    """
    total = slack = rounding = -math.inf
    for start in range(0, len(law.losses), _CHUNK):
        losses, logs = (x[start : start + _CHUNK] for x in (law.losses, law.log_masses))
        slip = 8.0 * ULP * (abs(epsilon) + np.abs(losses))
        value, error = call(epsilon - losses + (-slip if side == "upper" else slip))
        total = float(np.logaddexp(total, log_sum_exp(logs + value)))
        slack = float(np.logaddexp(slack, log_sum_exp(logs + error)))
        if law.fft is not None:
            wrong = _log_fft_error(law.fft, losses, np.logaddexp(value, error))
            rounding = np.logaddexp(rounding, wrong)
    relative = total + math.log(law.relative_error + 8000.0 * ULP)
    return total, float(np.logaddexp.reduce([slack, rounding, relative]))


def _log_fft_error(fft: LatticeMeasure, losses: FloatArray, value: FloatArray) -> float:
    """ln of what errors of the weights do: each at most u, the sum of squares v^2, the sum e."""
    each = fft.log_scale - fft.rate * losses + value
    top = float(each.max())
    terms = np.exp(each - top)
    rounding = min(
        fft.uniform_error * float(terms.sum()), fft.square_error * float(np.linalg.norm(terms))
    )
    return top + math.log(1.01 * (rounding + fft.error) + 1e-300)


def compound_jumps(
    pair: AbstractLossPair,
    count: int,
    begin: float,
    end: float,
    step: float,
    size: int,
    tilt: float,
    side: Side,
) -> JumpLaw:
    """The sum of any number of jumps but none, out of `count` steps."""
    one = jump_measure(pair, side, step, tilt, (begin, end), 0.0)
    law = compound(one, count, size)
    weights = law.weights.copy()
    if one.first > 0.5 * step or side == "lower":
        weights[0] = 0.0  # no jump at all
    losses = step * np.arange(len(weights), dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(weights) + law.log_scale - tilt * losses
    slack = 8.0 * ULP * (abs(law.log_scale) + tilt * float(losses[-1]) + 20.0)
    return JumpLaw(losses, logs, slack, replace(law, weights=np.empty(0)))
