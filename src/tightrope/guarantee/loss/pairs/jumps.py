"""Jumps of normals: losses beyond a point s, where the record was drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.guarantee.loss.abstract import JumpLaw, Side
from tightrope.guarantee.loss.pairs.normals import BRANCH, branch_measure, infimum, loss_at
from tightrope.guarantee.loss.pairs.sampling import log_ratio
from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.lattice_tail import shared_mass
from tightrope.numerics.quadrature import log_sum_exp
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

_MOMENT_CELLS, _FAR = 4000, 12.0
_STEEPEST = 30.0  # nats of tilt on one step of the lattice for several jumps


@final
@dataclass(frozen=True)
class NormalJumps:
    """The losses of a sampled Gaussian between two points s."""

    rate: float
    mu: float
    atom: float | None = None  # mass at L = 0 where L < 0 is the mirror image of L > 0

    def measure(
        self, side: Side, step: float, rate: float, ends: tuple[float, float], anchor: float
    ) -> LatticeMeasure:
        q, mu = self.rate, self.mu
        base = infimum(q)
        lowest = base + loss_at(ends[0], q, mu)
        origin = anchor + step * math.floor((lowest - anchor) / step)
        branch = BRANCH[side](q, mu, rate + 1.0, step, origin - base, *ends)
        return branch_measure(branch, step, rate, 0.0)

    def one(self, begin: float, end: float, cells: int, side: Side) -> JumpLaw:
        """Losses of s in (begin, end), above (ends of cells) or below (means of cells)."""
        s = np.linspace(begin, end, cells + 1)
        rate, mu = self.rate, self.mu
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

    def several(
        self, ends: tuple[float, float], cells: int, most: int, tilt: float, side: Side
    ) -> list[JumpLaw]:
        """The sums of 2, ..., `most` jumps, on a lattice, by direct convolution of positive masses.

        The masses are tilted by e^{tilt * loss}, which keeps them within the range of doubles; what
        underflows nevertheless is below 1e-300 of the largest.
        """
        (begin, end), rate, mu = ends, self.rate, self.mu
        low, high = loss_at(begin, rate, mu), loss_at(end, rate, mu)
        step = (high - low) / cells
        tilt = min(tilt, _STEEPEST / step)
        branch = BRANCH[side](rate, mu, 1.0 + tilt, step, low, begin, end)
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

    def log_moment(self, rate: float, end: float) -> float:
        """ln of an upper bound on E[e^{rate L}] of one step, losses up to s = end.

        Both branches above, in the convex order; what lies far out, where L < 0, counts as L = 0.
        """
        begin = -_FAR if self.atom is None else 0.5 * self.mu
        law = self.one(begin, max(end, begin + 1e-3), _MOMENT_CELLS, "upper")
        logs = [law.log_masses + rate * law.losses, np.array([float(log_ndtr(-_FAR))])]
        if self.atom is not None:  # mirrored: P has the mass of the base there
            other = self.one(begin, begin + _FAR, _MOMENT_CELLS, "upper")
            logs.append(other.log_masses - (1.0 + rate) * other.losses)
            logs.append(np.array([math.log(max(self.atom, 1e-300))]))
        found = float(log_sum_exp(np.concatenate(logs)))
        largest = float(np.abs(law.losses).max()) + _FAR * self.mu
        return found + 2.0 * law.relative_error + 8.0 * ULP * (1.0 + rate) * largest
