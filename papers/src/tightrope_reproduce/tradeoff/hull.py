"""Convex minorants of trade-off functions, and intersections of privacy regions.

Statement: `symmetrise(f)` = min{f, f^-1}**, the largest symmetric trade-off function below f: the
    guarantee for both orders of the neighbours when f = T(M(D), M(D')) is known for one. For a
    piecewise linear f it is the lower convex hull of the corners of f and f^-1.
    `intersection` of (eps_i, delta_i) guarantees: the pointwise maximum of f_{eps_i, delta_i}; as a
    symmetric curve it is given by its lines of slope <= -1, mirrored at the diagonal.
Conditions: composing comes first, symmetrising last (symmetrising each step is valid but looser).
Validity: exact.
Source: Dong, Roth and Su 2019 (arXiv:1905.02383), Section 2; Bu et al. 2019 (arXiv:1911.11607),
    Theorem 3; Kairouz, Oh and Viswanath 2015 (arXiv:1311.0776), (4).
Error: hull corners are input corners. Crossings of lines add a relative 1e-13 to `rounding`.
Vectors: tests/unit/reproduce/test_tradeoff_operations.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray, check_delta, check_real
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.gaussian import SampledGaussianTradeoff
from tightrope_reproduce.tradeoff.subsampled import SubsampledGaussianTradeoff

__all__ = ["symmetrise", "intersection"]

_CROSSING = 1e-13


def symmetrise(curve: AbstractTradeoff) -> AbstractTradeoff:
    """min{f, f^-1}**."""
    if isinstance(curve, SampledGaussianTradeoff):
        return SubsampledGaussianTradeoff(curve.rate, curve.mu)
    if isinstance(curve, DiscreteTradeoff):
        return _hull(curve)
    if curve.symmetric:
        return curve
    raise InvalidInput(
        f"No symmetric form is known for {type(curve).__name__}; use `bracket` to enclose it "
        "between piecewise linear curves and symmetrise those."
    )


def _hull(curve: DiscreteTradeoff) -> DiscreteTradeoff:
    """Lower convex hull of the corners (x, y) and (y, x)."""
    points = np.concatenate(
        [
            np.stack([curve.x, curve.co_x, curve.y, curve.power]),
            np.stack([curve.y, curve.power, curve.x, curve.co_x]),
        ],
        axis=1,
    )
    kept: list[FloatArray] = []
    for point in _sorted(points).T:
        while len(kept) > 1 and _right_turn(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    corners = np.array(kept)
    p = np.array([_gap(a, b) for a, b in zip(corners[:, :2], corners[1:, :2], strict=False)])
    q = np.array([_gap(b, a) for a, b in zip(corners[:, 2:], corners[1:, 2:], strict=False)])
    start, end = corners[0], corners[-1]
    p = np.concatenate([[start[0]], p, [end[1]]])
    q = np.concatenate([[start[3]], q, [end[2]]])
    rounding = 4.0 * curve.rounding + curve.p.size * UNIT
    return DiscreteTradeoff(np.maximum(p, 0.0), np.maximum(q, 0.0), rounding)


def _sorted(points: FloatArray) -> FloatArray:
    """Columns by rising x (by falling 1 - x above 1/2), only the lowest point of each x."""
    left, right = points[:, points[0] < 0.5], points[:, points[0] >= 0.5]
    left = left[:, np.lexsort((left[2], left[0]))]
    right = right[:, np.lexsort((right[2], -right[1]))]
    first = [np.diff(left[0], prepend=-1.0) > 0.0, np.diff(-right[1], prepend=-2.0) > 0.0]
    return np.concatenate([left[:, first[0]], right[:, first[1]]], axis=1)


def _gap(a: FloatArray, b: FloatArray) -> float:
    """b - a for numbers given as (value, 1 - value), from the accurate ends."""
    return float(b[0] - a[0] if b[0] < 0.5 else a[1] - b[1])


def _right_turn(a: FloatArray, b: FloatArray, c: FloatArray) -> bool:
    """Does b lie on or above the segment from a to c?"""
    run1, run2 = _gap(a[:2], b[:2]), _gap(b[:2], c[:2])
    drop1, drop2 = _gap(b[2:], a[2:]), _gap(c[2:], b[2:])
    return drop1 * run2 <= drop2 * run1


def intersection(guarantees: Sequence[tuple[float, float]]) -> DiscreteTradeoff:
    """The trade-off function that several (epsilon, delta) guarantees of one mechanism prove."""
    if not guarantees:
        raise InvalidInput("Give at least one (epsilon, delta) pair; got none.")
    eps = np.array([check_real(e, "epsilon", low=0.0, high=700.0) for e, _ in guarantees])
    deltas = np.array([check_delta(d) for _, d in guarantees])
    order = np.lexsort((deltas, eps))
    slopes, deltas = np.exp(eps[order]), np.minimum.accumulate(deltas[order])
    lines = _upper_lines(slopes, deltas)
    slopes, deltas = slopes[lines], deltas[lines]
    # corners on the left of the diagonal: crossings of neighbouring lines, steepest first
    x = (deltas[:-1] - deltas[1:]) / (slopes[1:] - slopes[:-1])
    last = (1.0 - deltas[0]) / (1.0 + slopes[0])
    left = np.concatenate([[0.0], x[::-1], [last]])
    widths = np.maximum(np.diff(left), 0.0)
    drops = slopes[::-1] * widths
    p = np.concatenate([[0.0], widths, drops[::-1], [deltas[-1]]])
    return DiscreteTradeoff(p, p[::-1].copy(), _CROSSING)


def _upper_lines(slopes: FloatArray, deltas: FloatArray) -> list[int]:
    """Indices, by rising slope, of the lines 1 - delta - slope x that form the maximum."""
    kept: list[int] = []
    for i in range(slopes.size):
        if kept and deltas[i] >= deltas[kept[-1]]:
            continue  # steeper and lower: never above
        while kept and _meeting(slopes, deltas, kept[-1], i) >= _end(slopes, deltas, kept):
            kept.pop()
        kept.append(i)
    return kept


def _meeting(slopes: FloatArray, deltas: FloatArray, i: int, j: int) -> float:
    gap = slopes[j] - slopes[i]
    return float((deltas[i] - deltas[j]) / gap) if gap > 0.0 else np.inf


def _end(slopes: FloatArray, deltas: FloatArray, kept: list[int]) -> float:
    """Where the last kept line meets the one before it, or the diagonal."""
    if len(kept) > 1:
        return _meeting(slopes, deltas, kept[-2], kept[-1])
    return float((1.0 - deltas[kept[0]]) / (1.0 + slopes[kept[0]]))
