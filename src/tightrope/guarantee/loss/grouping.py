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

import numpy as np

from tightrope.guarantee.gaussian import compose_mu
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components, Group, Side
from tightrope.guarantee.loss.pairs.gaussian import GaussianPair

_MARGIN = 1e-14  # rounding of a sum of squares


def grouped(order: Components, most: int, side: Side) -> Components:
    """About `most` kinds of steps that together lose at least ("upper") or at most as much.

    Unchanged where there are no more kinds; more than `most` where they cannot be compared.
    """
    held = tuple((pair, n) for pair, n in order if n > 0)
    if len(held) <= most:
        return held
    total: Counter[AbstractLossPair] = Counter()
    families: dict[object, list[tuple[AbstractLossPair, int]]] = {}
    for pair, n in held:
        family = pair.family
        if family is None:
            total[pair] += n
        else:
            families.setdefault(family, []).append((pair, n))
    plain = families.pop(GaussianPair, None)
    if plain is not None:
        mu = compose_mu([pair.strength[0] for pair, _ in plain], [n for _, n in plain])
        total[GaussianPair(mu if side == "upper" else mu * (1.0 - _MARGIN))] += 1
    room = max((most - len(total)) // max(len(families), 1), 1)
    for members in families.values():
        for group in _groups(members, room):
            total[group[0][0].dominating(group, side)] += sum(n for _, n in group)
    return tuple(total.items())


def _groups(members: Group, room: int) -> list[Group]:
    """Into at most so many; sampled Gaussians by mu, and then by rate."""
    if len(members[0][0].strength) == 1:
        return _cut(members, room, 0)
    mus, rates = (len({pair.strength[i] for pair, _ in members}) for i in (0, 1))
    by_mu = min(mus, room if rates == 1 else max(math.isqrt(room), room // rates, 1))
    return [part for group in _cut(members, by_mu, 0) for part in _cut(group, room // by_mu, 1)]


def _cut(members: Group, parts: int, by: int) -> list[Group]:
    """Parts by a strength x, narrow where there is much: rounding costs the same in every part.

    Moving n losses of size x by d costs about n x d; with parts of width w(x) the whole is least
    where w is proportional to 1/sqrt(x) at equal density, that is, in equal shares of sqrt(n x d).
    """
    members = sorted(members, key=lambda member: member[0].strength[by])
    sizes = np.array([pair.strength[by] for pair, _ in members])
    counts = np.array([n for _, n in members], dtype=np.float64)
    gaps = np.sqrt(counts[:-1] * sizes[1:] * np.diff(sizes))
    along = np.append(0.0, np.cumsum(gaps))
    shares = along / along[-1] if along[-1] > 0.0 else along  # the place of each, from 0 to 1
    place = np.minimum((parts * shares).astype(int), parts - 1)
    return [
        [member for member, at in zip(members, place, strict=True) if at == part]
        for part in sorted(set(place.tolist()))
    ]
