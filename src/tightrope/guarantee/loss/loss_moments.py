"""Mean and variance of a privacy loss under both laws of a pair: what central limit theorems need.

Error: integrals of tail masses on panels (Gauss-Legendre, 16 nodes), relative 1e-8 or better where
one loss stays below 1,000; for estimates only, so no bound is proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.pairs import DiscretePair
from tightrope.numerics.quadrature import gauss_legendre
from tightrope.validate import FloatArray

__all__ = ["LossMoments", "moments"]

_NODES, _WEIGHTS = gauss_legendre(16)
_EQUAL, _HALVINGS = 128, 34  # panels: equal ones from 1/64 of the largest loss on, halves below
_NEGLIGIBLE = -80.0  # ln of a tail mass


@final
@dataclass(frozen=True)
class LossMoments:
    """Of L = ln dP/dQ; infinite where a law puts mass at an infinite loss."""

    mean_p: float
    mean_q: float
    variance_p: float
    variance_q: float


@lru_cache(maxsize=2048)
def moments(pair: AbstractLossPair) -> LossMoments:
    with np.errstate(over="ignore", invalid="ignore"):  # squares of losses of 1e300
        first, second = _of_atoms(pair) if isinstance(pair, DiscretePair) else _of_tails(pair)
        variance = np.maximum(second - np.where(np.isinf(first), 0.0, first) ** 2, 0.0)
    return LossMoments(float(first[0]), float(first[1]), float(variance[0]), float(variance[1]))


def _of_atoms(pair: DiscretePair) -> tuple[FloatArray, FloatArray]:
    losses, under_p = np.array(pair.losses), np.array(pair.masses)
    masses = np.stack([under_p, np.exp(pair.log_masses - losses)])
    if max(pair.infinite_mass, pair.only_under_q) > 1e-12:  # +inf under P or -inf under Q
        endless = np.array([math.inf, -math.inf])
        return endless, np.full(2, math.inf)
    return masses @ losses, masses @ losses**2


def _of_tails(pair: AbstractLossPair) -> tuple[FloatArray, FloatArray]:
    """E[g(L)] = int_0^inf g'(l) P(L > l) - int_-inf^0 g'(l) P(L <= l) for g(0) = 0.

    The mean under P is that of L + e^-L - 1, under Q of L - e^L + 1: of one sign, so that nothing
    cancels where the losses are small.
    """
    first, second = np.zeros(2), np.zeros(2)
    for sign, tail in ((1.0, pair.log_survival), (-1.0, pair.log_cdf)):
        end = pair.support[1] if sign > 0 else -pair.support[0]
        if end == math.inf:
            end = 1e-9
            while max(float(log) for log in tail(sign * end)) > _NEGLIGIBLE:
                end *= 2.0
        if end <= 0.0:
            continue
        near = end / 64.0 * 0.5 ** np.arange(_HALVINGS, 0, -1)
        edges = np.concatenate([near, np.linspace(end / 64.0, end, _EQUAL + 1)])
        half = 0.5 * np.diff(edges)
        loss = (half[:, None] * (_NODES + 1.0) + edges[:-1, None]).ravel()
        weight = (half[:, None] * _WEIGHTS).ravel()
        logs = np.stack(tail(sign * loss))
        mass = np.exp(logs)
        power = sign * np.stack([-loss, loss])  # of e in g'
        small = -np.expm1(np.clip(power, -1.0, 1.0)) * mass
        first += sign * (np.where(loss < 1.0, small, mass - np.exp(logs + power)) @ weight)
        second += mass @ (2.0 * loss * weight)
    return first, second
