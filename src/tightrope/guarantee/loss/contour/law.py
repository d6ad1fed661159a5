"""The loss of a composition as a law of the inversion integral, whole or without rare losses.

K(z) = ln E_P[e^{zL}; L < inf] adds up over releases. Error: quadrature bounded on a strip or an
ellipse, truncation by Gaussian tails, rounding summed term by term with elementary functions taken
to be right to 4 units in the last place.

Rare large losses ("jumps") give the tilted law a second mode, and a line between the two needs very
many frequencies. Steps beyond a point that is passed too rarely to matter are left out; they add at
most their probability to delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.numerics.inversion_law import AbstractFamily, SumLaw

__all__ = ["law_of", "sum_law", "without_rare"]

_FAMILY = 32  # sampled Gaussians treated in one go


@lru_cache(maxsize=64)
def law_of(pair: AbstractLossPair, count: int = 1) -> AbstractFamily:
    """The loss of a pair that is not an unsampled Gaussian, as a law of the numerics."""
    return pair.cumulant(count)


def sum_law(components: tuple[tuple[AbstractLossPair, int], ...]) -> SumLaw:
    """The loss of a composition. An unsampled Gaussian has K(z) = mu^2 z (z + 1)/2."""
    variance = 0.0
    parts: dict[AbstractLossPair, int] = {}
    for pair, count in components:
        mu = pair.plain_mu
        if mu is not None:
            variance += count * mu * mu
        elif count > 0:
            parts[pair] = parts.get(pair, 0) + count
    return SumLaw(_families(parts), 0.5 * variance, variance)


def _families(parts: dict[AbstractLossPair, int]) -> tuple[AbstractFamily, ...]:
    """One law for each pair, or for several that are `joint`, those of like strength together."""
    families = [law_of(pair, n) for pair, n in parts.items() if pair.joint is None]
    for members in _joint(parts.items()):
        members.sort(key=lambda member: member[0].strength[0])
        for first in range(0, len(members), _FAMILY):
            pairs, counts = zip(*members[first : first + _FAMILY], strict=True)
            if len(pairs) == 1:
                families.append(law_of(pairs[0], counts[0]))
            else:
                families.append(type(pairs[0]).joint_cumulant(pairs, counts))
    return tuple(families)


def _joint(
    held: Iterable[tuple[AbstractLossPair, int]],
) -> list[list[tuple[AbstractLossPair, int]]]:
    """The pairs of each word, always in the same order of the words."""
    words: dict[str, list[tuple[AbstractLossPair, int]]] = {}
    for pair, n in held:
        if pair.joint is not None:
            words.setdefault(pair.joint, []).append((pair, n))
    return [words[word] for word in sorted(words, reverse=True)]


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
    alone = [[(pair, n)] for pair, n in jumping if pair.joint is None]
    kept = []
    for members in (*alone, *_joint(jumping)):
        pairs, counts = zip(*members, strict=True)
        kept.append(type(pairs[0]).cut_cumulant(pairs, counts, nats))
    return kept
