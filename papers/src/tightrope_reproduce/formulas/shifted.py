"""Shifted Renyi divergences of laws on the whole numbers, and the distance that shifts them.

Statement: W_inf(p, p') is the least s with a coupling that moves no mass further than s: on a line
    the largest distance of equal quantiles. D_a^(z)(p||q) = inf D_a(p'||q) over W_inf(p, p') <= z.
    The cumulated p' lies between those of p moved by z to the right and to the left; of all such,
    the shortest path over the cumulated q (the taut string) has the least divergence of every
    order. R_a(noise, s) is the largest D_a of the noise moved by at most s against itself.
Conditions: masses at 0, 1, 2, ...; z and s are whole numbers.
Source: Feldman, Mironov, Talwar, Thakurta 2018, Definitions 6, 8 and 10, Lemma 7, Proposition 9,
    Lemmas 20 and 21 (survey: Definition A.5). The taut string is derived here.
Error: rounding of sums; what noise has beyond its listed masses is left out.
Vectors: tests/unit/reproduce/test_shifted.py, against minimisation and linear programmes.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.validate import FloatArray

__all__ = ["divergence", "farthest", "magnitude", "nearest", "shifted"]

_ROUNDING = 1e-14


def farthest(p: FloatArray, other: FloatArray) -> int:
    """W_inf."""
    first, second = np.cumsum(p), np.cumsum(other)
    # quantiles change only where one of the two cumulated laws does
    levels = np.concatenate([first, second])
    levels = levels[(levels > _ROUNDING) & (levels < 1.0 - _ROUNDING)] - _ROUNDING
    levels = np.concatenate([levels, levels + 2.0 * _ROUNDING, [_ROUNDING, 1.0 - _ROUNDING]])
    gaps = np.searchsorted(first, levels) - np.searchsorted(second, levels)
    return int(np.abs(gaps).max())


def divergence(p: FloatArray, q: FloatArray, order: float) -> float:
    """D_a(p||q)."""
    if np.any((q == 0.0) & (p > 0.0)):
        return math.inf
    kept = p > 0.0
    terms = order * np.log(p[kept]) + (1.0 - order) * np.log(q[kept])
    return float(np.logaddexp.reduce(terms)) / (order - 1.0)


def shifted(p: FloatArray, q: FloatArray, z: int, order: float) -> float:
    """D_a^(z)(p||q)."""
    found = nearest(p, q, z)
    return math.inf if found is None else divergence(found, q, order)


def nearest(p: FloatArray, q: FloatArray, z: int) -> FloatArray | None:
    """The law within z of p that diverges least from q; None where all diverge without bound."""
    whole = np.concatenate([[0.0] * z, np.minimum(np.cumsum(p), 1.0), [1.0] * z])
    low, high = whole[: len(p)], whole[2 * z :]  # moved to the right, and to the left
    at = np.flatnonzero(q > 0.0)
    begins, ends = at, np.append(at[1:], len(q))  # nothing may be added where q has no mass
    if low[: at[0]].max(initial=0.0) > _ROUNDING:
        return None
    least = np.array([low[a:b].max() for a, b in zip(begins, ends, strict=True)])
    most = np.array([high[a:b].min() for a, b in zip(begins, ends, strict=True)])
    if (least > most + _ROUNDING).any() or most[-1] < 1.0 - _ROUNDING:
        return None
    most = np.maximum(least, most)
    least[-1] = most[-1] = 1.0
    masses = np.zeros(len(q))
    masses[at] = _taut(q[at], least, most)
    return masses


def _taut(steps: FloatArray, least: FloatArray, most: FloatArray) -> FloatArray:
    """Rises, from gate to gate, of the shortest path that begins at (0, 0) and goes through all."""
    rises, start, height = np.zeros(len(steps)), 0, 0.0
    while start < len(steps):
        end, there = _next_bend(steps[start:], least[start:] - height, most[start:] - height)
        part = steps[start : start + end]
        rises[start : start + end] = there * part / part.sum()
        start, height = start + end, height + there
    return rises


def _next_bend(steps: FloatArray, least: FloatArray, most: FloatArray) -> tuple[int, float]:
    """After how many gates a string that is pulled tight bends first, and how high it is there."""
    low, high, low_at, high_at = -math.inf, math.inf, 0, 0
    for at, along in enumerate(np.cumsum(steps).tolist()):
        down, up = float(least[at]) / along, float(most[at]) / along
        if down > high:
            return high_at + 1, float(most[high_at])
        if up < low:
            return low_at + 1, float(least[low_at])
        if down >= low:
            low, low_at = down, at
        if up <= high:
            high, high_at = up, at
    return len(steps), float(least[-1])


def magnitude(noise: FloatArray, s: int, order: float) -> float:
    """R_a of noise whose masses stand for neighbouring whole numbers."""
    found = [0.0]
    for move in range(1, s + 1):
        for one, other in ((noise[:-move], noise[move:]), (noise[move:], noise[:-move])):
            found.append(divergence(one, other, order))
    return max(found)
