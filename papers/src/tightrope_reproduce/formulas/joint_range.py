"""The joint range of the hockey stick and chi^a, by pairs of laws with two outcomes.

Statement: the pairs (E_x(P||Q), chi^a(P||Q)) of all laws fill the convex hull of those of laws with
    two outcomes. So the least chi^a at a given E_x is the lower boundary of that hull.
Conditions: order > 1, x = e^eps >= 1. chi^a = (E_Q (dP/dQ)^a - 1)/(a - 1).
Source: Harremoes and Vajda 2011, Theorem 8, as Theorem 2 of arXiv:2001.05990 and (19) of
    arXiv:2008.06529.
Error: the laws with two outcomes lie on a grid, so the boundary lies above the true one, by less
    for a finer grid.
Vectors: tests/unit/reproduce/test_joint_range.py, against random laws and Theorem 3.
"""

from __future__ import annotations

import numpy as np

from tightrope.validate import FloatArray

__all__ = ["lower_boundary", "pair_of"]

_SLICES = 4000  # of E_x; of each, the point with the least chi^a is kept


def pair_of(p: FloatArray, q: FloatArray, epsilon: float, order: float) -> FloatArray:
    """(E_x, chi^a) of laws along the last dimension; q has no zeros."""
    stick = np.maximum(p - np.exp(epsilon) * q, 0.0).sum(-1)
    chi = ((q * (p / q) ** order).sum(-1) - 1.0) / (order - 1.0)
    return np.stack([stick, chi], -1)


def lower_boundary(epsilon: float, order: float, cells: int = 500) -> FloatArray:
    """Corners (E_x, chi^a) of the lower boundary of the hull, by rising E_x."""
    low = np.concatenate([np.geomspace(1e-8, 1e-2, cells), np.linspace(1e-2, 0.5, cells)[1:]])
    ends = np.concatenate([low, 1.0 - low[-2::-1]])
    first, second = (part.ravel() for part in np.meshgrid(ends, ends))
    p, q = (np.stack([each, 1.0 - each], -1) for each in (first, second))
    points = pair_of(p, q, epsilon, order)
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    place = np.minimum((points[:, 0] * _SLICES).astype(int), _SLICES - 1)
    least = np.minimum.reduceat(points[:, 1], np.unique(place, return_index=True)[1])
    return _lower_hull(points[points[:, 1] <= least[np.unique(place, return_inverse=True)[1]]])


def _lower_hull(points: FloatArray) -> FloatArray:
    kept: list[FloatArray] = []
    for point in points:
        while len(kept) > 1:
            (ax, ay), (bx, by) = kept[-1] - kept[-2], point - kept[-2]
            if ax * by - ay * bx > 0.0:
                break
            kept.pop()
        if not kept or point[0] > kept[-1][0]:
            kept.append(point)
    return np.array(kept)
