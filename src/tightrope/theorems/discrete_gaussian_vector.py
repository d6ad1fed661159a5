"""Discrete Gaussian noise on several whole numbers.

Statement: let a vector of d whole numbers move by at most D in Euclidean length. With the discrete
    Gaussian of parameter s on each coordinate the release is
    - that of one number of sensitivity 1, exactly, if D < sqrt 2: only one coordinate can move;
    - Gaussian noise of multiplier sqrt(s^2 - 4)/D except with probability d k, k = 4.1 e^(-8
      pi^2), if s >= 8 (docs/theorems/discrete_gaussian.md with t = 2: eta(t) + eta(s) <= 4.1 e^(-2
      pi^2 t^2));
    - D^2/(2 s^2)-zCDP otherwise.
Conditions: whole numbers; noise drawn independently for each.
Validity: exact for D < sqrt 2, otherwise an upper bound.
Source: docs/theorems/discrete_gaussian.md; Canonne, Kamath, Steinke 2020 (arXiv:2004.00010),
    Theorem 7 and Proposition 5.
Error: rounding, on the safe side.
Vectors: none; held against products of one-dimensional laws in the tests.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.guarantee.loss.pairs import GaussianPair, approx_pair, discrete_gaussian_pair
from tightrope.process import DiscreteGaussianVector, Process
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require
from tightrope.theorems.discrete_gaussian import close_gaussians, is_wide

NAME = "Discrete Gaussian on several numbers"
SOURCE = Source("Canonne, Kamath, Steinke 2020", "Theorem 7; smoothing of the own page", "cks20")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD

_SMOOTHING, _SMALL = 2.0, 8.0  # t, and the sigma from which it costs less than zCDP
_UP = 1.0 + 1e-14


def applies(process: Process) -> Refusal | None:
    if isinstance(process, DiscreteGaussianVector):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "DiscreteGaussianVector", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, DiscreteGaussianVector)
    sigma, moved = process.sigma, process.sensitivity
    if moved < 1.0:  # whole numbers that do not move
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    if sigma == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, VALIDITY)
    if moved * moved < 2.0 * (1.0 - 1e-15):
        if is_wide(sigma, 1):
            below, above = close_gaussians(sigma, 1)
            return LossGuarantee((above,), process.adjacency, VALIDITY, attained=(below,))
        alone = (((discrete_gaussian_pair(sigma, 1), 1),),)
        return LossGuarantee(alone, process.adjacency, Validity.EXACT)
    if sigma < _SMALL:
        rho = 0.5 * (moved / sigma) ** 2 * _UP
        return RenyiGuarantee(RenyiCurve.of(LinearTerm(rho)), process.adjacency)
    mu = moved / math.sqrt(sigma * sigma - _SMOOTHING**2) * _UP
    share = process.dimension * 4.1 * math.exp(-2.0 * (math.pi * _SMOOTHING) ** 2)
    orders = (((GaussianPair(mu), 1), (approx_pair(0.0, min(share, 1.0)), 1)),)
    return LossGuarantee(orders, process.adjacency, VALIDITY)
