"""The profile of composed pairs: by closed forms, then the contour, then the lattice.

Contour and lattice are independent certified methods, and either answers alone; guarantee/check.py
holds an answer of the one against the other.
Of several orders of the neighbours one that is proved not to be the worst is not computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from tightrope.errors import NotCertified
from tightrope.guarantee import gaussian
from tightrope.guarantee.gaussian import compose_mu
from tightrope.guarantee.loss import contour, lattice
from tightrope.guarantee.loss.abstract import (
    AbstractLossPair,
    Components,
    infinite_log_mass,
    is_single,
    largest_loss,
)
from tightrope.guarantee.loss.contour import are_reversed, log_chernoff
from tightrope.guarantee.loss.grouping import grouped
from tightrope.guarantee.loss.lattice.answers import MAX_KINDS
from tightrope.guarantee.loss.pairs import (
    GaussianPair,
)
from tightrope.numerics.interval import Interval
from tightrope.numerics.roots import crossing
from tightrope.numerics.rounding import down, log_down, up

_HUGE, _UNSEEN = 1e5, -750.0  # an epsilon, and ln of a delta that no float shows
_MUCH = 0.1  # of delta
_MANY_KINDS = 64  # of steps: more are grouped where they cannot be followed one by one
_MANY_COSTLY = 128
_MANY, _CLOSE = 10**6, 5e-6  # steps, and the relative width of an epsilon


def delta(components: Components, epsilon: float) -> Interval:
    """delta(eps) of the composition, eps >= 0."""
    return _delta_and_reverse(components, epsilon, False)[0]


def worst_delta(orders: tuple[Components, ...], epsilon: float) -> Interval:
    """delta(eps) of the worst of several orders of the neighbours."""
    first, *rest = orders
    found, log_reverse = _delta_and_reverse(first, epsilon, bool(rest))
    log_found, parts = log_down(found.lower), [found]
    for order in rest:
        if log_reverse <= log_found and are_reversed(first, order):
            continue
        if log_chernoff(_few_above(order), epsilon, log_found) > log_found:
            parts.append(delta(order, epsilon))
    return Interval.worst(parts)


def _delta_and_reverse(
    components: Components, epsilon: float, reverse: bool
) -> tuple[Interval, float]:
    """delta(eps), and a bound on ln delta(eps) of the reverse (0: none) where that is wanted."""
    mu = _gaussian_mu(components)
    if mu is not None:
        return Interval(*gaussian.delta_bounds(epsilon, mu)), 0.0
    log_delta, log_reverse = _log_delta(components, epsilon, reverse)
    found = Interval(down(math.exp(log_delta.lower)), up(math.exp(log_delta.upper)))
    return found.clamp(0.0, 1.0), log_reverse


def _log_delta(components: Components, epsilon: float, reverse: bool) -> tuple[Interval, float]:
    if is_single(components):
        return components[0][0].log_delta_single(epsilon), 0.0
    if epsilon > _HUGE:  # tilts of a line there are too small to be worth the work
        bound = log_chernoff(components, epsilon, _UNSEEN)
        if bound <= _UNSEEN:
            return Interval(-math.inf, bound), 0.0
    few = _groups(components) if _is_costly(components) else None
    if few is not None:
        return _between(few, lambda group: _log_delta(group, epsilon, False)[0], -math.inf), 0.0
    try:
        return contour.log_delta_and_reverse(components, epsilon, reverse=reverse)
    except NotCertified as problem:
        groups = _groups(components)
        if groups is None and len(components) > MAX_KINDS:
            return _with_reached(lambda: _log_delta_of_sum(components, epsilon), problem), 0.0
        if groups is None:
            return _with_reached(lambda: lattice.log_delta(components, epsilon), problem), 0.0
    return _between(groups, lambda group: _log_delta(group, epsilon, False)[0], -math.inf), 0.0


def _parts_of_sum(components: Components) -> tuple[float, float, float]:
    """Largest losses and slopes of Renyi divergences, added up, and P(some loss is infinite).

    For more kinds than a lattice follows. With losses of at most e in all beside an (e', d')-DP
    release the whole is (e + e', d')-DP; a release with D_order <= r order for every order is
    (r + 2 sqrt(r ln(1/d)), d)-DP (Bun, Steinke 2016, Proposition 1.3).
    """
    slopes, tops, by_top = list[float](), list[float](), list[tuple[AbstractLossPair, int]]()
    for pair, n in components:
        slope = pair.zero_concentrated
        if pair.least_infinite_mass < pair.infinite_mass and slope < math.inf:
            slopes.append(n * slope)
        else:
            tops.append(n * max(pair.support[1], 0.0))
            by_top.append((pair, n))  # what it has beyond its largest loss counts as infinite
    if not math.isfinite(math.fsum(tops)):
        raise NotCertified(
            f"{len(components)} kinds of releases are too many to follow, and some of them have "
            "unbounded losses. State several of them as one release."
        )
    given = math.exp(infinite_log_mass(tuple(by_top)).upper) if by_top else 0.0
    return math.fsum(tops) * (1.0 + 1e-12), math.fsum(slopes) * (1.0 + 1e-12), given


def _epsilon_of_sum(components: Components, delta: float) -> Interval:
    top, slope, given = _parts_of_sum(components)
    left = (delta - given) * (1.0 - 1e-12)
    if left < 0.0 or (left == 0.0 and slope > 0.0):
        return Interval(0.0, math.inf)
    beside = slope + 2.0 * math.sqrt(slope * -math.log(left)) if slope > 0.0 else 0.0
    return Interval(0.0, (top + beside) * (1.0 + 1e-12))


def _log_delta_of_sum(components: Components, epsilon: float) -> Interval:
    top, slope, given = _parts_of_sum(components)
    beyond = epsilon - top - slope
    if beyond < 0.0:
        return Interval(-math.inf, 0.0)
    beside = math.exp(-(beyond**2) / (4.0 * slope) * (1.0 - 1e-12)) if slope > 0.0 else 0.0
    total = min((given + beside) * (1.0 + 1e-12) + 1e-320, 1.0)
    return Interval(-math.inf, math.log(total))


def _is_costly(components: Components) -> bool:
    """Does following each kind by itself take minutes?"""
    return sum(pair.is_costly for pair, _ in components) > _MANY_COSTLY


def _few_above(components: Components) -> Components:
    """Few kinds that lose at least as much, where following each takes long."""
    return grouped(components, _MANY_KINDS, "upper") if _is_costly(components) else components


def _groups(components: Components) -> tuple[Components, Components] | None:
    """Fewer kinds that lose at most and at least as much; None where that is not to be had."""
    if len(components) <= _MANY_KINDS:
        return None
    above = grouped(components, _MANY_KINDS, "upper")
    if len(above) >= len(components):
        return None
    return grouped(components, _MANY_KINDS, "lower"), above


def _between(
    groups: tuple[Components, Components], ask: Callable[[Components], Interval], least: float
) -> Interval:
    """The lower end of what loses less and the upper end of what loses more."""
    below, above = groups
    upper = ask(above).upper
    with suppress(NotCertified):
        least = ask(below).lower
    return Interval(min(least, upper), upper)


def _with_reached(other: Callable[[], Interval], problem: NotCertified) -> Interval:
    """The intersection of what the other method proves and what the first had proved."""
    if problem.reached is None:
        return other()
    try:
        return other().intersect(Interval(*problem.reached))
    except NotCertified:
        if math.isinf(problem.reached[1] - problem.reached[0]):
            raise
        return Interval(*problem.reached)


def epsilon(components: Components, delta: float) -> Interval:
    """The smallest eps >= 0 with delta(eps) <= delta."""
    return _epsilon_and_reverse(components, delta, False)[0]


def worst_epsilon(orders: tuple[Components, ...], delta: float) -> Interval:
    """The smallest eps >= 0 that all orders of the neighbours permit."""
    first, *rest = sorted(orders, key=_largest_loss, reverse=True)
    found, log_reverse = _epsilon_and_reverse(first, delta, bool(rest))
    log_delta, parts = log_down(delta), [found]
    for order in rest:
        # an order with delta(lower end) <= delta asks for no larger eps than that end; and delta(0)
        # is the same in both orders
        turned = log_reverse <= log_delta or found.upper == 0.0
        if _largest_loss(order) <= found.lower or (turned and are_reversed(first, order)):
            continue
        if log_chernoff(_few_above(order), found.lower, log_delta) > log_delta:
            parts.append(epsilon(order, delta))
    return Interval.worst(parts)


def _epsilon_and_reverse(
    components: Components, delta: float, reverse: bool
) -> tuple[Interval, float]:
    """The smallest eps, and a bound on ln delta of the reverse at its lower end (0: none)."""
    mu = _gaussian_mu(components)
    if mu is not None:
        return Interval(*gaussian.epsilon_bounds(delta, mu)), 0.0
    if is_single(components):
        return _single_epsilon(components[0][0], delta), 0.0
    if delta > _MUCH:  # a search would be slow near epsilon 0
        zero = contour.trivially_zero(components, log_down(delta))
        if zero or _delta_and_reverse(components, 0.0, False)[0].upper <= delta:
            return Interval.exact(0.0), 0.0
    few = _groups(components) if _is_costly(components) else None
    if few is not None:
        return _between(few, lambda group: epsilon(group, delta), 0.0), 0.0
    try:
        return contour.epsilon_and_reverse(components, delta, reverse=reverse)
    except NotCertified as problem:
        if problem.reached is not None and sum(count for _, count in components) > _MANY:
            reached = Interval(*problem.reached)
            if reached.relative_width < _CLOSE:  # a lattice of so many steps takes seconds
                return reached, 0.0
        groups = _groups(components)
        if groups is None and len(components) > MAX_KINDS:
            return _with_reached(lambda: _epsilon_of_sum(components, delta), problem), 0.0
        if groups is None:
            return _with_reached(lambda: lattice.epsilon(components, delta), problem), 0.0
    return _between(groups, lambda group: epsilon(group, delta), 0.0), 0.0


def _largest_loss(components: Components) -> float:
    """An upper bound on every loss of a composition; inf where a loss may be infinite."""
    if any(pair.infinite_mass > 0.0 for pair, _ in components):
        return math.inf
    return math.fsum(count * pair.support[1] for pair, count in components) * (1 + 1e-12)


_SHARES = (1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-5, 1e-3, 0.03, 0.3)


def _single_epsilon(pair: AbstractLossPair, delta: float) -> Interval:
    """One release: its closed form, bisected on both sides."""
    largest = largest_loss(((pair, 1),))
    top = largest.upper
    if pair.least_infinite_mass > delta:
        return Interval.exact(math.inf)
    if pair.least_infinite_mass < pair.infinite_mass and delta <= pair.infinite_mass:
        least = _single_epsilon(pair, 1e3 * pair.infinite_mass).lower  # a delta at least as large
        return Interval(least, top if delta == pair.infinite_mass else math.inf)
    if delta == 0.0 or pair.infinite_mass == delta:
        return Interval(0.0 if top == math.inf else max(0.0, largest.lower), max(top, 0.0))
    target = math.log(delta)
    if pair.log_delta_single(0.0).upper <= target:
        return Interval.exact(0.0)
    seen: dict[float, Interval] = {}

    def excess(epsilon: float) -> float:
        if epsilon >= top:  # above every finite loss, whatever rounding makes of the closed form
            return -1.0
        seen[epsilon] = pair.log_delta_single(epsilon)
        return max(seen[epsilon].upper, -1e300) - target

    reach = top * (1.0 + 1e-12) if top < 1e307 else 1e8
    found = crossing(excess, min(1.0, top), smallest=1e-300, largest=reach, tolerance=1e-12)
    upper = min(found.below, top)
    below = max((e for e, value in seen.items() if value.lower > target), default=0.0)
    for share in _SHARES:  # the search came from above, and may have stayed there
        near = upper * (1.0 - share)
        if near <= below or pair.log_delta_single(near).lower > target:
            below = max(below, near)
            break
    return Interval(min(below, upper), upper)


def _gaussian_mu(components: Components) -> float | None:
    """Composed Gaussian pairs are one Gaussian pair."""
    if any(pair.family is not GaussianPair for pair, _ in components):
        return None
    mus = [pair.strength[0] for pair, _ in components]
    return compose_mu(mus, [count for _, count in components]) if mus else 0.0
