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
from tightrope.guarantee.loss.cumulant import law_of, sum_law
from tightrope.guarantee.loss.cumulant_mixture import MixtureCumulant
from tightrope.guarantee.loss.cumulant_part import PartCumulant, log_tail
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicCumulant, PublicMixturePair
from tightrope.numerics.inversion_law import AbstractFamily, SumLaw
from tightrope.numerics.quadrature import FloatArray

__all__ = ["without_rare"]

_FEWEST_NATS = 8.0


def without_rare(held: Components, log_level: float, relative_width: float) -> tuple[SumLaw, float]:
    """The law, and ln of a bound on the probability of what it leaves out.

    log_level: ln delta, roughly, of which a small share of `relative_width` may be left out.
    """
    jumping = [(p, n) for p, n in held if p.has_rare_losses]
    if not jumping:
        raise NotCertified("There are no rare losses to leave out; use the lattice method.")
    rest = sum_law(tuple((p, n) for p, n in held if not p.has_rare_losses))
    steps = sum(n for _, n in jumping)
    nats = math.log(steps) - (log_level + math.log(relative_width) - 4.0)
    kept, logs = zip(*_cut(jumping, nats), strict=True)
    dropped = float(np.logaddexp.reduce(logs)) + 1e-12
    return SumLaw((*kept, *rest.parts), rest.mean, rest.variance), dropped


def _cut(
    jumping: list[tuple[AbstractLossPair, int]], nats: float
) -> list[tuple[AbstractFamily, float]]:
    """The laws up to points that a step passes with probability about e^-nats.

    Each with ln of a bound on the probability that any of its steps passes them.
    """
    kept: list[tuple[AbstractFamily, float]] = []
    sampled = []
    for pair, count in jumping:
        if isinstance(pair, SampledGaussianPair):
            sampled.append((pair, count))
        elif isinstance(pair, PublicMixturePair):
            kept.append(_cut_public(pair, count, nats))
        elif isinstance(pair, GaussianMixturePair):
            law = MixtureCumulant(pair, count, pair.arms[0].quantile(-nats))
            kept.append((law, law.log_dropped()))
    if sampled:
        pairs, counts = [p for p, _ in sampled], [n for _, n in sampled]
        part = PartCumulant(pairs, counts, _points(pairs, nats))
        kept.append((part, part.log_dropped()))
    return kept


def _cut_public(pair: PublicMixturePair, count: int, nats: float) -> tuple[AbstractFamily, float]:
    """Each part is cut where what it is passed by weighs e^-nats in the mixture."""
    weights, laws, logs = [], [], []
    for weight, part in pair.parts:
        law, dropped = law_of(part), -math.inf
        if part.has_rare_losses:
            law, dropped = _cut([(part, 1)], max(nats + math.log(weight), _FEWEST_NATS))[0]
        weights.append(weight)
        laws.append(law)
        logs.append(math.log(weight) + dropped)
    total = float(np.logaddexp.reduce(logs)) + math.log(count) + 1e-9
    return PublicCumulant(weights, laws, count), total


def _points(pairs: list[SampledGaussianPair], nats: float) -> FloatArray:
    """The s that a step exceeds with probability about e^-nats."""
    rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
    low, high = 0.0 * mu, mu + math.sqrt(2.0 * nats) + 1.0
    for _ in range(20):
        s = 0.5 * (low + high)
        rare = log_tail(s, np.log(rate), mu) < -nats
        low, high = np.where(rare, low, s), np.where(rare, s, high)
    return np.asarray(high)
