"""Rare large losses ("jumps") summed directly, beside the lattice of the small ones.

Where T * rate << 1, or near the phase transition, the loss of one step is a narrow spike with a
heavy tail: no exponential tilt balances the two, and a lattice that resolves the spike cannot reach
the tail. So (small + jump)^T = sum_k C(T, k) jump^k small^(T-k): jumps are atoms on a grid of their
own, uniform in s, and every term is a sum of positive terms
    C(T, k) sum over k jumps of mass * E[(1 - e^{eps - jumps - small sum})_+],
whose last factor comes from the tables of the small part. Nothing is subtracted, so the result is
relatively accurate however small it is. More than K jumps have probability at most
C(T, K+1) p^{K+1}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import gammaln, logsumexp

from tightrope.guarantee.loss.gaussian import log_ratio
from tightrope.guarantee.loss.lattice_step import Side
from tightrope.numerics.lattice_cells import shared_mass
from tightrope.validate import FloatArray

__all__ = ["JumpLaw", "jump_law", "log_choose", "log_jump_sum"]

_EPS = 2.0**-52
_CHUNK = 1 << 18  # pairs of jumps looked up at a time


@final
@dataclass(frozen=True)
class JumpLaw:
    """Atoms of L under P: losses in increasing order and ln masses."""

    losses: FloatArray
    log_masses: FloatArray
    relative_error: float


def jump_law(rate: float, mu: float, begin: float, end: float, cells: int, side: Side) -> JumpLaw:
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
        base = np.logaddexp(log_left, log_right)
        under_p = np.logaddexp(log_left + ends[:-1], log_right + ends[1:])
        law = (under_p - base, under_p)
    largest = float(np.abs(s).max())
    error = 16.0 * _EPS * (largest * largest + mu * largest - math.log(rate) + 20.0)
    return JumpLaw(law[0], law[1], error)


def rebinned(law: JumpLaw, cells: int, side: Side) -> JumpLaw:
    """Fewer atoms, above or below in the convex order of e^L under Q."""
    order = np.argsort(law.losses)
    losses, logs = law.losses[order], law.log_masses[order]
    low, high = float(losses[0]), float(losses[-1])
    # finer near the low end, where most of the mass is
    edges = low + (high - low) * np.linspace(0.0, 1.0, cells + 1) ** 2
    edges[-1] = high
    cell = np.clip(np.searchsorted(edges, losses, side="right") - 1, 0, cells - 1)
    top = float(logs.max())
    mass = np.exp(logs - top)
    if side == "lower":
        under_p = np.bincount(cell, mass, cells)
        under_q = np.bincount(cell, mass * np.exp(edges[cell] - losses), cells)
        keep = under_p > 0.0
        means = edges[:-1][keep] + np.log(under_p[keep] / under_q[keep])
        result = (means, np.log(under_p[keep]) + top)
    else:
        width = np.diff(edges)[cell]
        to_right = -np.expm1(edges[cell] - losses) / -np.expm1(-width)
        total = np.bincount(cell, mass * (1.0 - to_right), cells + 1)
        total += np.bincount(cell + 1, mass * to_right, cells + 1)
        keep = total > 0.0
        result = (edges[keep], np.log(total[keep]) + top)
    error = law.relative_error + 8.0 * _EPS * (len(losses) + 10.0)
    return JumpLaw(result[0], result[1], error)


def pairwise(first: JumpLaw, second: JumpLaw) -> JumpLaw:
    """The sum of two independent jumps."""
    losses = np.add.outer(first.losses, second.losses).ravel()
    logs = np.add.outer(first.log_masses, second.log_masses).ravel()
    return JumpLaw(losses, logs, first.relative_error + second.relative_error)


def log_choose(n: int, k: int) -> float:
    return float(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0))


def log_jump_sum(
    law: JumpLaw, call: Callable[[FloatArray], tuple[FloatArray, FloatArray]], epsilon: float
) -> tuple[float, float]:
    """ln of sum of mass * E[(1 - e^{eps - loss - rest})_+], and ln of the bound on its error."""
    values, errors = [], []
    for start in range(0, len(law.losses), _CHUNK):
        part = slice(start, start + _CHUNK)
        value, error = call(epsilon - law.losses[part])
        values.append(float(logsumexp(law.log_masses[part] + value)))
        errors.append(float(logsumexp(law.log_masses[part] + error)))
    total = float(np.logaddexp.reduce(values))
    rounding = law.relative_error + 8.0 * _EPS * (len(law.losses) ** 0.5 * 4.0 + 800.0)
    return total, float(np.logaddexp(np.logaddexp.reduce(errors), total + math.log(rounding)))
