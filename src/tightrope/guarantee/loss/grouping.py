"""Many kinds of steps as few: each counts as the worst, or the best, of its group.

Statement: where every pair is replaced by one that dominates it, the composition is dominated too
    (Zhu, Dong, Wang 2022, Theorem 10). Within one family pairs are ordered:
    Poisson-sampled Gaussians, by rate and by mu: a smaller mu is more noise on both laws, and
        (1-q) Q + q P' is a mixture of Q and (1-q') Q + q' P' for q < q' (joint convexity);
        of several records, or of a replaced one, a larger rate moves P up and Q down, and the best
        tests are half-lines, since their likelihood ratio rises; of batches of fixed size the
        trade-off function C_q(G_mu) falls with both;
    balls in bins of as many batches, by mu: more noise on both laws;
    Laplace noise, by its scale: Laplace noise of a larger scale is that of a smaller one plus
        independent noise (its transform 1/(1 + b^2 t^2) divides so);
    two losses -e and e beside a failure, by e: binary randomised response of the larger e, flipped
        now and then, is that of the smaller; failures of n steps together are 1 - prod (1 - d_i),
        so that all of them may have one mean failure.
    Plain Gaussians are one Gaussian. Every other kind stays as it is.
Validity: exact order of the pairs; how close the two sides are depends on the groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np

from tightrope.guarantee.gaussian.profile import compose_mu
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.guarantee.loss.allocation import AllocationPair
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.guarantee.loss.gaussian import (
    FixedSizeGaussianPair,
    GaussianPair,
    SampledGaussianPair,
)
from tightrope.guarantee.loss.laplace import LaplacePair
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.validate import FloatArray

__all__ = ["grouped"]

Side = Literal["upper", "lower"]
_MARGIN = 1e-14  # rounding of a sum of squares, or of a mean failure
_Members = list[tuple[Any, int]]
_Rated = SampledGaussianPair | GaussianMixturePair | FixedSizeGaussianPair


def grouped(order: Components, most: int, side: Side) -> Components:
    """About `most` kinds of steps that together lose at least ("upper") or at most as much.

    Unchanged where there are no more kinds; more than `most` where they cannot be compared.
    """
    held = tuple((pair, n) for pair, n in order if n > 0)
    if len(held) <= most:
        return held
    total: Counter[AbstractLossPair] = Counter()
    families: dict[object, _Members] = {}
    for pair, n in held:
        family = _family(pair)
        if family is None:
            total[pair] += n
        else:
            families.setdefault(family, []).append((pair, n))
    plain = families.pop(GaussianPair, None)
    if plain is not None:
        mu = compose_mu([pair.mu for pair, _ in plain], [n for _, n in plain])
        total[GaussianPair(mu if side == "upper" else mu * (1.0 - _MARGIN))] += 1
    room = max((most - len(total)) // max(len(families), 1), 1)
    for members in families.values():
        for group in _groups(members, room):
            total[_worst(group, side)] += sum(n for _, n in group)
    return tuple(total.items())


def _family(pair: AbstractLossPair) -> object:
    """What it can be compared with; None where nothing is known."""
    if isinstance(pair, SampledGaussianPair):
        return pair.direction
    if isinstance(pair, GaussianMixturePair):
        return (pair.plus, pair.minus)
    if isinstance(pair, AllocationPair):
        return (pair.batches, pair.direction)
    if isinstance(pair, GaussianPair | LaplacePair | FixedSizeGaussianPair):
        return type(pair)
    return DiscretePair if isinstance(pair, DiscretePair) and _response(pair) is not None else None


@final
@dataclass(frozen=True)
class _Response:
    level: float
    failure: float


def _response(pair: DiscretePair) -> _Response | None:
    """e and d of the pair with losses -e and e, and a failure d."""
    losses = pair.losses
    if len(losses) != 2 or losses[0] != -losses[1] or pair.is_cut:
        return None
    odds = pair.masses[1] * math.exp(-losses[1]) / pair.masses[0] if pair.masses[0] > 0 else 0.0
    if abs(odds - 1.0) > 1e-12 or pair.only_under_q != pair.infinite_mass:
        return None
    return _Response(losses[1], pair.infinite_mass)


def _groups(members: _Members, room: int) -> list[_Members]:
    """Into at most so many; sampled Gaussians by mu, and then by rate."""
    first = members[0][0]
    if not isinstance(first, _Rated):
        return _cut(members, room, _size)
    mus = len({pair.mu for pair, _ in members})
    rates = len({pair.rate for pair, _ in members})
    by_mu = min(mus, room if rates == 1 else max(math.isqrt(room), room // rates, 1))
    found = _cut(members, by_mu, lambda pair: pair.mu)
    return [part for group in found for part in _cut(group, room // by_mu, lambda pair: pair.rate)]


def _size(pair: Any) -> float:
    if isinstance(pair, AllocationPair):
        return pair.mu
    return float(1.0 / pair.scale if isinstance(pair, LaplacePair) else pair.losses[1])


def _cut(members: _Members, parts: int, size: Callable[[Any], float]) -> list[_Members]:
    """By size, narrow where there is much: rounding then costs the same in every part.

    Moving n losses of size x by d costs about n x d; with parts of width w(x) the whole is least
    where w is proportional to 1/sqrt(x) at equal density, that is, in equal shares of sqrt(n x d).
    """
    members = sorted(members, key=lambda member: size(member[0]))
    sizes = np.array([size(pair) for pair, _ in members])
    counts = np.array([n for _, n in members], dtype=np.float64)
    shares = _shares(sizes, counts)
    place = np.minimum((parts * shares).astype(int), parts - 1)
    return [
        [member for member, at in zip(members, place, strict=True) if at == part]
        for part in sorted(set(place.tolist()))
    ]


def _shares(sizes: FloatArray, counts: FloatArray) -> FloatArray:
    """Where each stands between 0 and 1."""
    gaps = np.sqrt(counts[:-1] * sizes[1:] * np.diff(sizes))
    along = np.append(0.0, np.cumsum(gaps))
    return np.asarray(along / along[-1] if along[-1] > 0.0 else along)


def _worst(group: Sequence[tuple[Any, int]], side: Side) -> AbstractLossPair:
    """One pair that dominates all of them, or that all of them dominate."""
    pick = max if side == "upper" else min
    pairs = [pair for pair, _ in group]
    first = pairs[0]
    if isinstance(first, AllocationPair):
        return replace(first, mu=pick(pair.mu for pair in pairs))
    if isinstance(first, _Rated):
        rate, mu = pick(pair.rate for pair in pairs), pick(pair.mu for pair in pairs)
        return replace(first, rate=rate, mu=mu)
    if isinstance(first, LaplacePair):
        return LaplacePair((min if side == "upper" else max)(pair.scale for pair in pairs))
    return _mean_failure(pick(pairs, key=_size), group, side)


def _mean_failure(
    chosen: DiscretePair, group: Sequence[tuple[DiscretePair, int]], side: Side
) -> DiscretePair:
    """Two losses with the failure that, so many times, is that of all of the group."""
    level, steps = chosen.losses[1], sum(n for _, n in group)
    kept = math.fsum(n * math.log1p(-pair.infinite_mass) for pair, n in group)
    failure = -math.expm1(kept / steps) * (1.0 + (_MARGIN if side == "upper" else -_MARGIN))
    failure = min(max(failure, 0.0), 1.0)
    high = (1.0 - failure) / (1.0 + math.exp(-level))
    masses = (high * math.exp(-level), high)
    return DiscretePair((-level, level), masses, failure, failure)
