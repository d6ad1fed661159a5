"""A secret public-coin mixture of runs: how its divergence follows from those of the runs.

Shared by the theorems about secretly skipped or stopped passes; not a theorem about a process.

With weights p_i and pairs (mu_i, nu_i), revealing i only helps the observer, so
    hockey stick:  E_g(mixture) <= sum_i p_i E_g(mu_i || nu_i)                  (used for profiles)
    Renyi:         D_a(mixture) <= ln( sum_i p_i e^{(a-1) D_i} ) / (a-1)        (used for RDP)
The second needs no condition; Lemma 25 of Feldman et al. 2018, (1 + c) sum_i p_i D_i for D_i <=
c/(a-1) with c <= 1, follows from it (e^x <= 1 + (1 + c) x on [0, c]) and is never smaller.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from tightrope.errors import InvalidInput
from tightrope.guarantee.gaussian import profile
from tightrope.validate import FloatArray

__all__ = ["blocks", "profile_of_mixture", "renyi_of_mixture", "renyi_by_lemma_25"]

_FAR = 20.0


def profile_of_mixture(epsilon: float, mus: FloatArray, weights: FloatArray) -> float:
    """sum_i p_i delta(epsilon; mu_i), rounded up; weight missing from 1 belongs to mu = 0.

    delta grows with mu, so all mu below epsilon/20, where it is less than e^-199, count as that.
    """
    far = mus < epsilon / _FAR
    near = np.append(mus[~far], epsilon / _FAR)
    upper = np.asarray(profile.delta_bounds(epsilon, near)[1])
    shares = np.append(weights[~far], weights[far].sum())
    return min(1.0, float(upper @ shares) * (1.0 + 1e-12))


def renyi_of_mixture(
    orders: FloatArray, squared_mus: FloatArray, weights: FloatArray
) -> FloatArray:
    """ln(1 + sum_i p_i (e^{(a-1) a mu_i^2/2} - 1)) / (a-1), for weights that sum to at most 1."""
    return np.array([_renyi_at(float(a), squared_mus, weights) for a in orders])


def _renyi_at(order: float, squared_mus: FloatArray, weights: FloatArray) -> float:
    exponents = 0.5 * order * (order - 1.0) * squared_mus
    if exponents.max() < 700.0:  # accurate for small divergences
        return math.log1p(float(np.expm1(exponents) @ weights)) / (order - 1.0)
    rest = max(0.0, 1.0 - float(weights.sum()))
    terms = np.append(exponents, 0.0)
    return float(logsumexp(terms, b=np.append(weights, rest))) / (order - 1.0)


def renyi_by_lemma_25(order: float, divergences: ArrayLike, weights: ArrayLike) -> float:
    """(1 + c) sum_i p_i D_i with c = (order - 1) max D_i, which must not exceed 1."""
    values, shares = np.asarray(divergences, float), np.asarray(weights, float)
    c = (order - 1.0) * float(values.max())
    if c > 1.0:
        raise InvalidInput(
            f"Lemma 25 needs (order - 1) * divergence <= 1 for each part; got {c:g}. Use "
            "renyi_of_mixture, which needs no condition."
        )
    return (1.0 + c) * float(values @ shares)


def blocks(count: int, exact: int) -> tuple[FloatArray, FloatArray]:
    """1 .. count as (first of block, size): single numbers up to `exact`, then growing blocks.

    A quantity that decreases with the number is bounded above by its value at the first of a block.
    """
    if count <= exact:
        return np.arange(1.0, count + 1.0), np.ones(count)
    tail = np.unique(np.floor(exact * np.exp(np.arange(0.0, math.log(count / exact), 0.002))))
    firsts = np.concatenate([np.arange(1.0, exact), tail])
    return firsts, np.diff(np.append(firsts, count + 1.0))
