"""Laplace noise, the exponential mechanism and sampled Laplace noise on a lattice of their own.

The lattice ends at both atoms. Above, the mass of each cell goes to its ends so that P and Q keep
theirs; below, the chords are lowered (numerics.lattice_convex).
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.guarantee.loss.laplace import BoundedRangePair, LaplaceMixturePair, LaplacePair
from tightrope.numerics.lattice import check_size, gap_bound, gathered, lowered
from tightrope.numerics.quadrature import gauss_legendre
from tightrope.validate import FloatArray

__all__ = ["laplace_atoms", "sampled_laplace_atoms"]

_FEWEST, _MOST = 4, 200_000
_PANEL = 0.25  # of b: 8 points have an error below 1e-15 there
_NODES = 8


def laplace_atoms(
    pair: LaplacePair | BoundedRangePair, side: str, step: float
) -> tuple[FloatArray, FloatArray]:
    """Losses and masses under P, above or below; the density is inner * e^{(l - top)/2}."""
    top = pair.top
    check_size(2.0 * top / step)
    cells = max(3, round(2.0 * top / step))
    own = 2.0 * top / cells
    loss = -top + own * np.arange(cells + 1, dtype=np.float64)
    density = pair.inner * np.exp(0.5 * (loss[:-1] - top))
    right = density * 8.0 * math.sinh(0.25 * own) ** 2 / -math.expm1(-own)
    whole = density * 2.0 * math.expm1(0.5 * own)
    # in units of Q times e^{l_i}: the right end holds its P mass times e^-own
    left, right = whole - right, right * math.exp(-own)
    masses = _masses(left, right, density * math.expm1(own), side, own)
    return loss, _with_atoms(masses, pair.atoms)


def sampled_laplace_atoms(
    pair: LaplaceMixturePair, side: str, step: float
) -> tuple[FloatArray, FloatArray]:
    """The same; where both sides of 0 count, 0 is on the lattice, for L' jumps there."""
    low, high = pair.support
    cells = 2 * max(_FEWEST, round(0.5 * (high - low) / step))
    while cells > _MOST:  # every other point, or about so many; what is off the lattice is moved
        cells = 2 * (cells // 4)
    own = (high - low) / cells
    loss = low + own * np.arange(cells + 1, dtype=np.float64)
    x = pair.point(loss)[0]
    x[0], x[-1] = pair.ends
    left, right = _shares(pair, x, loss, own)
    # the density of e^L under Q is largest at an end of each cell: its logarithm is convex in x
    at = np.exp(pair.log_plus(x) - np.abs(x) / pair.scale - pair.log_share(x)) / 4.0
    peak = np.maximum(at[:-1], at[1:] * math.exp(-2.0 * own)) * math.expm1(own) * (1.0 + 1e-9)
    masses = _masses(left, right * math.exp(-own), peak, side, own)
    return loss, _with_atoms(masses, pair.atoms)


def _shares(
    pair: LaplaceMixturePair, x: FloatArray, loss: FloatArray, own: float
) -> tuple[FloatArray, FloatArray]:
    """P given to the left and to the right end of each cell, on panels short against b."""
    widest = float(np.max(np.diff(x)))
    panels = math.ceil(widest / (_PANEL * pair.scale)) or 1
    at, weights = gauss_legendre(_NODES)
    width = np.diff(x)[:, None, None] / panels
    s = x[:-1, None, None] + width * (np.arange(panels)[:, None] + 0.5 * (at + 1.0))
    density = np.exp(pair.log_plus(s) - np.abs(s) / pair.scale) / (2.0 * pair.scale)
    mass = density * (0.5 * weights) * width
    within = np.clip(pair.loss(s) - loss[:-1, None, None], 0.0, own)
    to_right = -np.expm1(-within) / -math.expm1(-own)
    to_left = np.exp(-within) * -np.expm1(within - own) / -math.expm1(-own)
    return (mass * to_left).sum(axis=(1, 2)), (mass * to_right).sum(axis=(1, 2))


def _masses(
    left: FloatArray, right: FloatArray, peak: FloatArray, side: str, own: float
) -> FloatArray:
    """At the ends of the cells, from shares in units of Q times e^{l_i}."""
    if side == "upper":
        return gathered(left, right, own)
    low, clipped = lowered(left, right, gap_bound(left, right, peak), own, own, 0.0)
    if clipped > 0.0 or low[0] > 0.0:  # too coarse for chords: every loss falls to its cell's left
        return np.append(left + right * math.exp(own), 0.0)
    return low[1:]


def _with_atoms(masses: FloatArray, atoms: tuple[tuple[float, float], ...]) -> FloatArray:
    if atoms:
        masses[0] += atoms[0][1]
        masses[-1] += atoms[1][1]
    return masses
