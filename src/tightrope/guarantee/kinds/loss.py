"""A guarantee known through dominating pairs of distributions: the exact accountant."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from tightrope.errors import NotCertified
from tightrope.guarantee import tradeoff
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.gaussian import group_mu
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.abstract import (
    AbstractLossPair,
    Components,
    infinite_log_mass,
    largest_loss,
)
from tightrope.guarantee.loss.curve import LossCurve
from tightrope.guarantee.loss.pairs import (
    GaussianMixturePair,
    GaussianPair,
    PublicMixturePair,
    SampledGaussianPair,
)
from tightrope.guarantee.loss.pairs.mixture import MOST_MEMBERS
from tightrope.guarantee.loss.renyi import renyi
from tightrope.numerics.interval import Interval, IntervalArray
from tightrope.numerics.rounding import rest_down, rest_up
from tightrope.process import Adjacency
from tightrope.validate import FloatArray, check_delta, check_order, check_real

_WIDE = 1e-3


@final
@dataclass(frozen=True)
class LossGuarantee(Guarantee):
    """Composed dominating pairs, one multiset for each order of the neighbours.

    The answer is the worse of the two orders: symmetrise after composing.
    """

    orders: tuple[Components, ...]
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.EXACT
    # each pair is one record's in a sum of clipped terms plus Gaussian noise, plain or
    # Poisson-sampled, for neighbours that add or remove it: then groups are mixtures
    by_record: bool = False
    records: int = 1
    # a bound that answers where the pairs cannot be composed closely
    otherwise: Guarantee | None = None
    # pairs that two datasets attain: lower ends are theirs where `orders` are a bound, and where
    # the exact pairs of `orders` cannot be composed closely
    attained: tuple[Components, ...] = ()

    @property
    def two_sided(self) -> bool:
        return self.validity is Validity.EXACT or bool(self.attained)

    def least_pairs(self) -> tuple[Components, ...]:
        """Pairs that two data sets attain, those that are easy to compose first; () if unknown."""
        return self.attained or (self.orders if self.validity is Validity.EXACT else ())

    def as_bound(self) -> LossGuarantee:
        return replace(self, validity=Validity.BOUND, attained=())

    def mixed(self, size: int, otherwise: Guarantee) -> LossGuarantee | None:
        """For groups of `size` times as many records; None where that is no mixture."""
        members = self.records * size
        if not self.by_record or members > MOST_MEMBERS:
            return None
        orders = _each_pair(self.orders, lambda pair: _of_group(pair, size))
        alone = self.least_pairs()  # one of the group changes, the others do not
        return replace(self, orders=orders, records=members, otherwise=otherwise, attained=alone)

    def of_each_link(self) -> LossGuarantee:
        """The guarantee of all links of a chain of removals, whose data sets become smaller."""
        if self.adjacency is not Adjacency.ADD_OR_REMOVE:
            return self
        return replace(self, orders=_each_pair(self.orders, _of_fewer_records))

    def replaced(self, otherwise: Guarantee) -> LossGuarantee | None:
        """For a replaced record (theorems/poisson_replace_one_exact); None where not known."""
        if not self.by_record or self.records > 1:
            return None
        orders = _each_pair(self.orders[:1], _of_replaced)
        return LossGuarantee(
            orders,
            Adjacency.REPLACE_ONE,
            self.validity,
            otherwise=otherwise,
            attained=self.least_pairs(),  # the other record has a gradient of 0
        )

    def _one_epsilon(self, delta: float) -> Interval:
        """Kept: the choice of the best, its reader and the second look ask for the same answer."""
        d = check_delta(delta)
        if d not in self._epsilons:
            found = self._closest(
                lambda: profile.worst_epsilon(self.orders, d),
                lambda other: other.epsilon(d),
                lambda other, most: other.proves(most, d),
            )
            shown = self._shown(found, lambda orders: profile.worst_epsilon(orders, d))
            self._epsilons[d] = shown
        return self._epsilons[d]

    @cached_property
    def _epsilons(self) -> dict[float, Interval]:
        return {}

    def _one_delta(self, epsilon: float) -> Interval:
        found = self._of_orders(epsilon)
        return self._shown(found, lambda orders: profile.worst_delta(orders, epsilon))

    def _shown(self, found: Interval, of: Callable[[tuple[Components, ...]], Interval]) -> Interval:
        """The answer with the lower end that two data sets attain, where known or better."""
        exact = self.validity is Validity.EXACT
        if not self.attained or (exact and found.relative_width <= _WIDE):
            return found
        least = _proved_below(self.attained, of)
        least = max(least, found.lower) if exact else least
        return Interval(min(least, found.upper), found.upper)

    def _of_orders(self, epsilon: float) -> Interval:
        """delta(epsilon) of the pairs themselves, whether two data sets attain it or not."""
        eps = check_real(epsilon, "epsilon")
        found = self._closest(
            lambda: profile.worst_delta(self.orders, eps),
            lambda other: other.delta(eps),
            lambda other, most: other.proves(eps, most),
        )
        most = max(_most(order, eps) for order in self.orders)
        return Interval(min(found.lower, most), min(found.upper, most))

    def _closest(
        self,
        own: Callable[[], Interval],
        of: Callable[[Guarantee], Interval],
        is_better: Callable[[Guarantee, float], bool],
    ) -> Interval:
        """The answer of the pairs, with the upper end of `otherwise` where theirs is far off.

        is_better: whether `otherwise` proves an upper end too, which takes less than its answer.
        """
        try:
            found = own()
        except NotCertified:
            if self.otherwise is None:
                raise
            return Interval(0.0, of(self.otherwise).upper)
        other = self.otherwise
        if other is None or found.upper - found.lower <= _WIDE * found.upper:
            return found
        if found.upper < math.inf and not is_better(other, found.upper):
            return found
        return Interval(found.lower, max(found.lower, min(found.upper, of(other).upper)))

    def _one_renyi(self, order: float) -> Interval:
        """Renyi divergences of independent parts add up."""
        order, found = check_order(order), []
        for components in self.orders:
            parts = [(renyi(pair, order), count) for pair, count in components]
            lower, upper = (sum(n * float(ends[i]) for ends, n in parts) for i in (0, 1))
            found.append(Interval(lower * (1 - 1e-14), upper * (1 + 1e-14)))
        return Interval.worst(found)

    def _one_tradeoff(self, type_i: float) -> Interval:
        """The curve by lattice laws kept from one question to the next, sharpened where needed."""
        if type_i == 0.0:  # without false alarms, only what rules a neighbour out is a hit
            worst = Interval.worst([_ruled_out(order) for order in self.orders])
            return Interval(rest_down(worst.upper), rest_up(worst.lower))
        try:
            return tradeoff.tradeoff(self, type_i)
        except NotCertified:
            if self.otherwise is None:
                raise
            return Interval(self.otherwise.tradeoff(type_i).lower, 1.0 - type_i)

    def _curve(self, type_i: FloatArray) -> IntervalArray | None:
        with suppress(NotCertified):
            return tradeoff.tradeoff_curve(self, type_i)
        return None

    def profile(self) -> LossCurve:
        return LossCurve(self.orders, self._of_orders)

    def directions(self) -> tuple[Components, ...]:
        return self.orders


def _each_pair(
    orders: tuple[Components, ...], change: Callable[[AbstractLossPair], AbstractLossPair]
) -> tuple[Components, ...]:
    return tuple(tuple((change(pair), n) for pair, n in order) for order in orders)


def _of_group(pair: AbstractLossPair, size: int) -> AbstractLossPair:
    """One record's pair, or a group's, for a group of `size` times as many."""
    if isinstance(pair, GaussianMixturePair):
        return GaussianMixturePair(pair.rate, pair.mu, pair.plus * size, pair.minus * size)
    if isinstance(pair, SampledGaussianPair) and pair.rate < 1.0:
        plus, minus = (size, 0) if pair.direction == "remove" else (0, size)
        return GaussianMixturePair(pair.rate, pair.mu, plus, minus)
    assert isinstance(pair, GaussianPair | SampledGaussianPair)
    return GaussianPair(group_mu(pair.mu, size))


def _of_fewer_records(pair: AbstractLossPair) -> AbstractLossPair:
    """Of cut batches (theorems/truncated_poisson): whatever is kept of a full one, at most q is."""
    if not isinstance(pair, PublicMixturePair):
        return pair
    assert isinstance(pair.usual, SampledGaussianPair)
    assert isinstance(pair.rare, SampledGaussianPair)
    if pair.usual.rate > 1.0 - 1e-9:  # drawn for certain, and then perhaps kept for certain
        return GaussianPair(pair.rare.mu)
    return replace(pair, rare=replace(pair.rare, rate=pair.usual.rate))


def _of_replaced(pair: AbstractLossPair) -> AbstractLossPair:
    if isinstance(pair, SampledGaussianPair) and pair.rate < 1.0:
        return GaussianMixturePair(pair.rate, pair.mu, 1, 1)
    return _of_group(pair, 2)


def _ruled_out(components: Components) -> Interval:
    """P(L = inf) of the whole."""
    log = infinite_log_mass(components)
    least, most = math.exp(log.lower) * (1.0 - 4e-13), math.exp(log.upper) * (1.0 + 4e-13)
    return Interval(least, min(1.0, most))


def _most(components: Components, epsilon: float) -> float:
    """delta(eps) <= P(L = inf) + 1 - e^(eps - largest finite loss): decides next to that loss."""
    largest = largest_loss(components).upper
    if math.isinf(largest) or any(pair.infinite_mass == 1.0 for pair, _ in components):
        return 1.0
    gap = max(largest - epsilon, 0.0)
    finite = math.fsum(count * math.log1p(-pair.infinite_mass) for pair, count in components)
    return min(1.0, max(0.0, -(math.expm1(finite) + math.expm1(-gap)) * (1 + 1e-14)))


def _proved_below(
    attained: tuple[Components, ...], of: Callable[[tuple[Components, ...]], Interval]
) -> float:
    """The lower end that attained pairs prove, each order alone if need be; 0 out of reach."""
    try:
        return of(attained).lower
    except NotCertified:
        alone = [(order,) for order in attained] if len(attained) > 1 else []
        return max((_proved_below(order, of) for order in alone), default=0.0)
