"""Composition and repetition: the one place where guarantees add up.

Rules, tightest first:

1. Gaussian guarantees: mu^2 adds (exact). Steps known by participations alone: one run of them.
2. Guarantees with dominating pairs: the pairs of the same ordered neighbours are composed, and
   the two orders are compared only afterwards (symmetrising step by step is looser).
3. Otherwise Renyi divergences add, order by order; releases that are (epsilon, delta)-DP only are
   epsilon-DP unless they fail, and the chance of a failure is kept apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.gaussian import compose_mu
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.participation import ParticipationGuarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee, renyi_guarantee_of
from tightrope.guarantee.kinds.stopped import FailingGuarantee
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.guarantee.loss.pairs import DiscretePair, GaussianPair
from tightrope.process import Adjacency, same_adjacency
from tightrope.validate import check_count

_NEGLIGIBLE, _ROUNDING = 1e-30, 1e-14


def compose(guarantees: Sequence[Guarantee], times: Sequence[int] | None = None) -> Guarantee:
    """The guarantee of releasing everything, part i being run `times[i]` times.

    >>> from tightrope import GaussianMechanism, account, compose
    >>> once = account(GaussianMechanism(noise_multiplier=4.0)).guarantee()
    >>> print(compose([once, once]).epsilon(delta=1e-5))
    [1.356467364, 1.356467365]
    """
    parts = _counted(guarantees, times)
    adjacency = same_adjacency(part.adjacency for part in guarantees)
    records = max(part.records for part in guarantees)
    parts = _joined([(_of_users(part, records), count) for part, count in parts if count > 0])
    if not parts:
        return GaussianGuarantee(0.0, adjacency, Validity.EXACT)
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    validity = _weakest(part.validity for part, _ in parts)
    void = any(isinstance(part, ApproxGuarantee) and part.failure == 1.0 for part, _ in parts)
    if void or any(isinstance(p, GaussianGuarantee) and p.mu == math.inf for p, _ in parts):
        return GaussianGuarantee(math.inf, adjacency, validity, records)
    if all(isinstance(part, GaussianGuarantee) for part, _ in parts):
        return _gaussian(parts, adjacency, validity)
    if all(isinstance(part, GroupGuarantee) for part, _ in parts):
        # chains of equally many neighbours: one chain of what is composed for its links
        links = [(part, n) for part, n in parts if isinstance(part, GroupGuarantee)]
        inner = compose([part.inner for part, _ in links], [n for _, n in links])
        chained = replace(links[0][0], inner=inner)
        if all(replace(part, inner=inner) == chained for part, _ in links):
            return chained
    if not any(isinstance(part, RenyiGuarantee) for part, _ in parts):
        if any(_least_pair(part) for part, _ in parts):
            validity = Validity.BOUND
        composed = _by_pairs(parts, adjacency, validity)
        if composed is not None:
            return composed
    return _by_renyi(parts, adjacency)


def _counted(
    guarantees: Sequence[Guarantee], times: Sequence[int] | None
) -> list[tuple[Guarantee, int]]:
    if not guarantees:
        raise InvalidInput("compose() needs at least one guarantee; got none.")
    for part in guarantees:
        if not isinstance(part, Guarantee):
            raise InvalidInput(
                f"compose() takes certified guarantees; got {type(part).__name__}. An Estimate is "
                "asymptotic and cannot be part of a guarantee; use the exact analysis instead."
            )
    counts = [1] * len(guarantees) if times is None else [check_count(t, "times") for t in times]
    if len(counts) != len(guarantees):
        raise InvalidInput(
            f"compose() needs one number of times for each guarantee; got {len(counts)} for "
            f"{len(guarantees)}."
        )
    return list(zip(guarantees, counts, strict=True))


def _joined(parts: list[tuple[Guarantee, int]]) -> list[tuple[Guarantee, int]]:
    """Steps known by how often a record takes part, all of a kind as one run of them."""
    steps: Counter[ParticipationGuarantee] = Counter()
    others = []
    for part, count in parts:
        if isinstance(part, ParticipationGuarantee):
            steps[replace(part, steps=1)] += part.steps * count
        else:
            others.append((part, count))
    runs: list[Guarantee] = [replace(part, steps=n) for part, n in steps.items()]
    return [*((run, 1) for run in runs), *others]


def _of_users(part: Guarantee, records: int) -> Guarantee:
    """A part that protects fewer records, for the users of the part that protects most."""
    return part if part.records >= records else part.group(-(-records // part.records))


def _is_by_record(part: Guarantee) -> bool:
    return isinstance(part, GaussianGuarantee) or (
        isinstance(part, LossGuarantee) and part.by_record
    )


def _weakest(validities: Iterable[Validity]) -> Validity:
    return Validity.EXACT if set(validities) == {Validity.EXACT} else Validity.BOUND


def _gaussian(
    parts: list[tuple[Guarantee, int]], adjacency: Adjacency, validity: Validity
) -> GaussianGuarantee:
    mus = [part.mu for part, _ in parts if isinstance(part, GaussianGuarantee)]
    records = max(part.records for part, _ in parts)
    counts = [count for _, count in parts]
    mu, least = compose_mu(mus, counts), None
    if any(_least_pair(part) for part, _ in parts) and all(part.two_sided for part, _ in parts):
        least = min(mu, compose_mu([part.gaussian_mu().lower for part, _ in parts], counts))
    return GaussianGuarantee(mu, adjacency, validity, records, least)


def _least_pair(part: Guarantee) -> tuple[Components, ...]:
    """The attained pair of a Gaussian part, where it is not its mu to the last digit."""
    if not isinstance(part, GaussianGuarantee) or part.least_mu is None:
        return ()
    return (((GaussianPair(part.least_mu), 1),) if part.least_mu > 0.0 else (),)


def _by_pairs(
    parts: list[tuple[Guarantee, int]], adjacency: Adjacency, validity: Validity
) -> LossGuarantee | None:
    known = [(part.directions(), count) for part, count in parts]
    if any(directions is None for directions, _ in known):
        return None
    width = max(len(directions) for directions, _ in known if directions is not None)
    orders = _together([(directions or (), count) for directions, count in known], width)
    by_record = all(_is_by_record(part) for part, _ in parts)
    records = max(part.records for part, _ in parts)
    attained: tuple[Components, ...] = ()
    exact = validity is Validity.EXACT
    if not exact or any(isinstance(part, LossGuarantee) and part.attained for part, _ in parts):
        least = [(_attained(part, exact), count) for part, count in parts]
        if all(directions for directions, _ in least):
            attained = _together(least, max(len(directions) for directions, _ in least))
    return LossGuarantee(orders, adjacency, validity, by_record, records, attained=attained)


def _attained(part: Guarantee, exact: bool) -> tuple[Components, ...]:
    """The pairs that two data sets attain in this part; none where only a bound is known.

    exact: all parts are, so that these serve only where the exact pairs are hard to compose.
    """
    if _least_pair(part):
        return _least_pair(part)
    if part.validity is Validity.EXACT and not exact:
        return part.directions() or ()
    if isinstance(part, LossGuarantee):
        return part.least_pairs()
    return (part.directions() or ()) if part.validity is Validity.EXACT else ()


def _together(
    known: list[tuple[tuple[Components, ...], int]], width: int
) -> tuple[Components, ...]:
    """All parts, so often each, for each order of the neighbours."""
    orders = []
    for order in range(width):
        total: Counter[AbstractLossPair] = Counter()
        for directions, count in known:
            for pair, times in directions[order if len(directions) > 1 else 0]:
                total[pair] += times * count
        orders.append(tuple(total.items()))
    return tuple(orders)


def _by_renyi(parts: list[tuple[Guarantee, int]], adjacency: Adjacency) -> Guarantee:
    log_kept = 0.0  # ln P(nothing fails)
    curves = []
    for part, count in parts:
        unfailing, failure = _apart(part)
        log_kept += count * (math.log1p(-failure) if failure < 1.0 else -math.inf)
        curves.append((renyi_guarantee_of(unfailing), count))
    routes = {curve.route for curve, _ in curves}
    total = sum(
        (curve.curve * count for curve, count in curves[1:]), curves[0][0].curve * curves[0][1]
    )
    route = routes.pop() if len(routes) == 1 else "optimal"
    records = max(part.records for part, _ in parts)
    composed = RenyiGuarantee(total, adjacency, Validity.BOUND, route, records)
    if log_kept == 0.0:
        return composed
    return FailingGuarantee(composed, min(1.0, -math.expm1(log_kept) * (1 + 1e-14)))


def _apart(part: Guarantee) -> tuple[Guarantee, float]:
    """The epsilon that holds unless a part fails, and the probability of failing."""
    if isinstance(part, FailingGuarantee):
        return part.inner, part.failure
    if isinstance(part, ApproxGuarantee):
        return replace(part, failure=0.0), part.failure
    if isinstance(part, LossGuarantee):
        orders = tuple(tuple((_finite(pair), n) for pair, n in order) for order in part.orders)
        cut = []  # ln of the probability that none of them fails, for each order
        for order in part.orders:
            logs = [n * math.log1p(-pair.infinite_mass) for pair, n in order if _fails(pair)]
            cut.append(math.fsum(logs))
        return replace(part, orders=orders), min(1.0, -math.expm1(min(cut)) * (1.0 + 1e-14))
    return part, 0.0


def _fails(pair: AbstractLossPair) -> bool:
    """Does it give everything away with one probability under both laws, and nothing otherwise?

    So do the worst pair of an (epsilon, delta)-DP release, and laws of numbers cut so far out that
    their infinite loss is far below every rounding error.
    """
    if not isinstance(pair, DiscretePair) or pair.infinite_mass == 0.0:
        return False
    same = abs(pair.only_under_q - pair.infinite_mass) <= _ROUNDING
    return pair.infinite_mass <= _NEGLIGIBLE or (same and pair.infinite_mass < 1.0)


def _finite(pair: Any) -> Any:
    """The pair unless it fails; what is negligible may stay on its other values."""
    if not _fails(pair):
        return pair
    if pair.infinite_mass <= _NEGLIGIBLE:
        return replace(pair, infinite_mass=0.0)
    kept = 1.0 - pair.infinite_mass
    masses = tuple(m / kept for m in pair.masses)
    return replace(pair, masses=masses, infinite_mass=0.0, only_under_q=0.0)
