"""The law without losses too rare to matter.

Rare large losses ("jumps") give the tilted law a second mode, and a line between the two needs very
many frequencies. Steps beyond a point that is passed too rarely to matter are left out; they add at
most their probability to delta.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.guarantee.loss.cumulant import plain_mu, sum_law
from tightrope.guarantee.loss.cumulant_mixture import MixtureCumulant
from tightrope.guarantee.loss.cumulant_part import PartCumulant, log_tail
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.quadrature import FloatArray

__all__ = ["has_jumps", "without_rare"]


def has_jumps(held: Components) -> bool:
    return any(_jumps(pair) for pair, _ in held)


def _jumps(pair: AbstractLossPair) -> bool:
    if isinstance(pair, GaussianMixturePair):
        return pair.plus > 0
    sampled = isinstance(pair, SampledGaussianPair) and pair.direction == "remove"
    return sampled and plain_mu(pair) is None


def without_rare(held: Components, log_level: float, relative_width: float) -> tuple[SumLaw, float]:
    """The law, and ln of a bound on the probability of what it leaves out.

    log_level: ln delta, roughly, of which a small share of `relative_width` may be left out.
    """
    jumping = [(p, n) for p, n in held if _jumps(p)]
    if not jumping:
        raise NotCertified("There are no rare losses to leave out; use the lattice method.")
    rest = sum_law(tuple((p, n) for p, n in held if not _jumps(p)))
    steps = sum(n for _, n in jumping)
    nats = math.log(steps) - (log_level + math.log(relative_width) - 4.0)
    kept = _cut(jumping, nats)
    dropped = np.logaddexp.reduce([part.log_dropped() for part in kept])
    return SumLaw((*kept, *rest.parts), rest.mean, rest.variance), float(dropped) + 1e-12


def _cut(
    jumping: list[tuple[AbstractLossPair, int]], nats: float
) -> list[PartCumulant | MixtureCumulant]:
    """The laws up to points that a step passes with probability about e^-nats."""
    mixed = [(p, n) for p, n in jumping if isinstance(p, GaussianMixturePair)]
    kept: list[PartCumulant | MixtureCumulant] = [
        MixtureCumulant(p, n, p.arms[0].quantile(-nats)) for p, n in mixed
    ]
    sampled = [(p, n) for p, n in jumping if isinstance(p, SampledGaussianPair)]
    if sampled:
        pairs, counts = [p for p, _ in sampled], [n for _, n in sampled]
        kept.append(PartCumulant(pairs, counts, _points(pairs, nats)))
    return kept


def _points(pairs: list[SampledGaussianPair], nats: float) -> FloatArray:
    """The s that a step exceeds with probability about e^-nats."""
    rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
    low, high = 0.0 * mu, mu + math.sqrt(2.0 * nats) + 1.0
    for _ in range(20):
        s = 0.5 * (low + high)
        rare = log_tail(s, np.log(rate), mu) < -nats
        low, high = np.where(rare, low, s), np.where(rare, s, high)
    return np.asarray(high)
