"""The law without losses too rare to matter.

Rare large losses ("jumps") give the tilted law a second mode, and a line between the two needs very
many frequencies. Steps beyond a point that is passed too rarely to matter are left out; they add at
most their probability to delta.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.cumulant import plain_mu, sum_law
from tightrope.guarantee.loss.cumulant_part import PartCumulant, log_tail
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.quadrature import FloatArray

__all__ = ["has_jumps", "without_rare"]


def has_jumps(held: Components) -> bool:
    return any(_jumps(pair) for pair, _ in held)


def _jumps(pair: object) -> bool:
    sampled = isinstance(pair, SampledGaussianPair) and pair.direction == "remove"
    return sampled and plain_mu(pair) is None  # type: ignore[arg-type]


def without_rare(held: Components, log_level: float, relative_width: float) -> tuple[SumLaw, float]:
    """The law, and ln of a bound on the probability of what it leaves out.

    log_level: ln delta, roughly, of which a small share of `relative_width` may be left out.
    """
    jumping = [(p, n) for p, n in held if isinstance(p, SampledGaussianPair) and _jumps(p)]
    if not jumping:
        raise NotCertified("There are no rare losses to leave out; use the lattice method.")
    pairs, counts = [p for p, _ in jumping], [n for _, n in jumping]
    rest = sum_law(tuple((p, n) for p, n in held if not _jumps(p)))
    nats = math.log(sum(counts)) - (log_level + math.log(relative_width) - 4.0)
    kept = PartCumulant(pairs, counts, _points(pairs, nats))
    return SumLaw((kept, *rest.parts), rest.mean, rest.variance), kept.log_dropped()


def _points(pairs: list[SampledGaussianPair], nats: float) -> FloatArray:
    """The s that a step exceeds with probability about e^-nats."""
    rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
    low, high = 0.0 * mu, mu + math.sqrt(2.0 * nats) + 1.0
    for _ in range(20):
        s = 0.5 * (low + high)
        rare = log_tail(s, np.log(rate), mu) < -nats
        low, high = np.where(rare, low, s), np.where(rare, s, high)
    return np.asarray(high)
