"""Skip-PNSGD: one pass whose first records are skipped by a secret random number, last iterate.

Statement: n records, t0 uniform on {0 .. floor(n/2)}, record t is used iff t0 < t, that is with
    probability p = min(t, m)/m, m = floor(n/2) + 1. With mu_t the parameter of the plain pass at
    index t (2 L / (noise_std sqrt(n + 1 - t)) for c = 1),
        delta(eps) <= p delta(eps; mu_t),     D_a <= ln(1 - p + p e^{a (a-1) mu_t^2/2}) / (a-1).
    The dataset's guarantee is that of the last record: mu_n-GDP.
Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
    gradient is that of such a loss), replace-one neighbours, last iterate only, t0 secret.
Validity: upper bound.
Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 24, which prints the bound without p. The
    profile form follows from joint convexity of the hockey stick and is sharper.
Error: delta is raised by 1e-12 relative beyond the profile's own bound.
Vectors: skip_pnsgd_index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.process import Process
from tightrope.process.convex import SkipSGD
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_cyclic import squared_mu
from tightrope.theorems.hidden_mixture import profile_of_mixture, renyi_of_mixture
from tightrope.theorems.hidden_steps import contraction, convexity_refusal, refusal, step_mu
from tightrope.validate import FloatArray

NAME = "Last iterate of a pass with a secret start (Skip-PNSGD)"
SOURCE = Source("Feldman et al. 2018", "Theorem 24", "fmtt18")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


def used_probability(records: int, index: int) -> float:
    """P(t0 < index)."""
    starts = records // 2 + 1
    return min(index, starts) / starts


def renyi(order: float, records: int, index: int, step: float, factor: float = 1.0) -> float:
    """The Renyi form at one order; `step` is the mu of one step that uses the record."""
    square = np.array([step**2 * squared_mu(factor, records, 1, index)])
    weight = np.array([used_probability(records, index)])
    return float(renyi_of_mixture(np.array([order]), square, weight)[0])


@dataclass(frozen=True)
class SkipProfile:
    """delta(eps) = p delta(eps; mu)."""

    mu: float
    probability: float

    def __call__(self, epsilon: float) -> float:
        return profile_of_mixture(epsilon, np.array([self.mu]), np.array([self.probability]))


def applies(process: Process) -> Refusal | None:
    return refusal(NAME, process, (SkipSGD,)) or convexity_refusal(NAME, process)


def mu_curve(process: SkipSGD) -> FloatArray:
    """mu_t of the plain pass for every index; the record is used with `used_probability`."""
    require(applies(process))
    factor = contraction(process.loss, process.step_size)
    squares = squared_mu(factor, process.records, 1, np.arange(1, process.records + 1))
    return np.asarray(step_mu(process) * np.sqrt(squares) * (1.0 + 1e-14))


def guarantee(process: SkipSGD) -> Guarantee:
    require(applies(process))
    index = process.index or process.records
    factor = contraction(process.loss, process.step_size)
    square = float(squared_mu(factor, process.records, 1, index))
    mu = step_mu(process) * math.sqrt(square) * (1.0 + 1e-14)
    probability = used_probability(process.records, index)
    if probability == 1.0:
        return GaussianGuarantee(mu, process.adjacency, VALIDITY)
    return ProfileGuarantee(SkipProfile(mu, probability), process.adjacency, VALIDITY)
