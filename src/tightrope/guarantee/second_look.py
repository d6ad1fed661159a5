"""Is an answer proved by a second, independent method too, and how closely?

Contour and lattice are each asked to prove delta(epsilon) <= delta again, for every order of the
neighbours. What they prove is stated as a factor: delta(epsilon) <= factor * delta. Where only one
of them answers, that is said with the reason.

Many kinds of steps are grouped upwards for the lattice: a larger mu, or a larger rate, only adds
information (mixing with fresh noise undoes it), so each group counts as its worst member.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import final

from tightrope.errors import DoesNotApply, NotCertified, TightropeError
from tightrope.guarantee.base import Components
from tightrope.guarantee.gaussian.composition import compose_mu
from tightrope.guarantee.loss import contour, lattice
from tightrope.guarantee.loss.lattice_law import infinite_log_mass, one_side
from tightrope.guarantee.loss.lattice_plan import Plan, best_plan, has_jumps, plain_plan
from tightrope.guarantee.loss.pair import AbstractLossPair, GaussianPair, SampledGaussianPair

__all__ = ["Verdict", "SecondLook", "second_look", "grouped_upwards"]

_MOST_KINDS, _MOST_WORK = 16, 2e5  # of a quick look: kinds of steps, points of windows
_QUICK, _THOROUGH = 0.1, 1e-3  # widths of ln delta asked for
_COARSE = 1e-3  # of the contour
_VACUOUS = 0.5  # a law further off than this is not the last one tried
_LARGEST_FACTOR = 20.0  # beyond, a bound says too little to count as a second proof


class Verdict(Enum):
    """How an answer was checked."""

    CONFIRMED = "confirmed"
    ONE_METHOD = "one method"
    CLOSED_FORM = "closed form"
    NOT_ASKED = "not asked"

    def __str__(self) -> str:
        return self.value


@final
@dataclass(frozen=True)
class SecondLook:
    """What a second method says about an answer; `factor` is None where there is none."""

    verdict: Verdict
    method: str | None
    factor: float | None
    words: str


@final
@dataclass(frozen=True)
class _Opinion:
    """ln of the smallest delta that one method proves; inf, and why, where it gives none."""

    log_delta: float
    reason: str = ""


def second_look(
    orders: tuple[Components, ...], epsilon: float, delta: float, thorough: bool = False
) -> SecondLook:
    """Both methods' proofs of delta(epsilon) <= delta, the claim behind an answer."""
    if delta >= 1.0 or math.isinf(epsilon):
        return _closed("Nothing finite is claimed.")
    if all(_is_elementary(order, epsilon) for order in orders):
        return _closed("A closed form decides; there is no numerical method to hold against it.")
    if delta == 0.0:
        return _closed("Losses are bounded; the largest one decides.")
    opinions = {
        "contour": [_by_contour(order, epsilon) for order in orders],
        "lattice": [_by_lattice(order, epsilon, delta, thorough) for order in orders],
    }
    factors = {name: _factor(parts, delta) for name, parts in opinions.items()}
    weaker, stronger = sorted(factors, key=lambda name: factors[name], reverse=True)
    if factors[weaker] <= _LARGEST_FACTOR:
        said = f"Proved twice: the {weaker} proves it too{_up_to(factors[weaker])}."
        return SecondLook(Verdict.CONFIRMED, weaker, factors[weaker], said)
    reasons = [part.reason for part in opinions[weaker] if part.reason]
    why = reasons[0] if reasons else f"its bound is more than {_LARGEST_FACTOR:g} times as large."
    said = f"One method only, the {stronger}. The {weaker} did not confirm it: {why}"
    return SecondLook(Verdict.ONE_METHOD, None, None, said)


def _closed(words: str) -> SecondLook:
    return SecondLook(Verdict.CLOSED_FORM, None, None, words)


def _up_to(factor: float) -> str:
    if factor < 1.0 + 1e-9:
        return ""
    if factor < 2.0:
        return f", for a delta {100.0 * (factor - 1.0):.2g} % larger"
    return f", for a delta {factor:.2g} times as large"


def _factor(parts: list[_Opinion], delta: float) -> float:
    """The largest of the orders, over the delta claimed; at least 1."""
    excess = max(part.log_delta for part in parts) - math.log(delta)
    return math.exp(min(max(excess, 0.0), 700.0))


def _is_elementary(order: Components, epsilon: float) -> bool:
    """One release, Gaussians only, or an epsilon above every loss."""
    held = [(pair, n) for pair, n in order if n > 0]
    if sum(n for _, n in held) <= 1 or all(isinstance(pair, GaussianPair) for pair, _ in held):
        return True
    return epsilon >= math.fsum(n * pair.support[1] for pair, n in held) * (1.0 + 1e-15)


def _by_contour(order: Components, epsilon: float) -> _Opinion:
    try:
        return _Opinion(contour.log_delta(order, epsilon, _COARSE).upper)
    except NotCertified as problem:
        if problem.reached is not None:  # wider than it is given alone, and a proof
            return _Opinion(problem.reached[1], _first_sentence(problem))
        return _Opinion(math.inf, _first_sentence(problem))
    except DoesNotApply as problem:
        return _Opinion(math.inf, _first_sentence(problem))


def _by_lattice(order: Components, epsilon: float, delta: float, thorough: bool) -> _Opinion:
    """An upper bound on ln delta(epsilon) from a lattice planned for the claim."""
    held = grouped_upwards(order, _MOST_KINDS)
    if epsilon >= math.fsum(n * pair.support[1] for pair, n in held):
        return _Opinion(infinite_log_mass(held).upper)
    if len(held) > _MOST_KINDS:
        return _Opinion(math.inf, f"{len(held)} kinds of steps are too many for it.")
    try:
        if thorough:
            return _Opinion(lattice.log_delta(held, epsilon, _THOROUGH).upper)
        return _quick(held, epsilon, math.log(delta))
    except TightropeError as problem:
        return _Opinion(math.inf, _first_sentence(problem))


def _quick(order: Components, epsilon: float, log_delta: float) -> _Opinion:
    """One law: a plain one or, where rare large losses decide, one with jumps."""
    found = _read(plain_plan(order, epsilon, log_delta, _QUICK))
    if found > log_delta + _VACUOUS and len(order) == 1 and has_jumps(order[0][0]):
        found = min(found, _read(best_plan(order, epsilon, log_delta, _QUICK)))
    if found == math.inf:
        return _Opinion(found, 'it would take too long; check="full" waits for it.')
    return _Opinion(found)


def _read(plan: Plan) -> float:
    """ln of the upper bound on delta; inf where it would take too long."""
    return one_side(plan, "upper").log_upper(plan.epsilon) if plan.work <= _MOST_WORK else math.inf


def _first_sentence(problem: Exception) -> str:
    return str(problem).split(". ")[0].rstrip(".") + "."


def grouped_upwards(order: Components, most: int) -> Components:
    """At most about `most` kinds of steps that together lose at least as much.

    Gaussian steps are one Gaussian step; sampled ones of neighbouring mu count as the worst of
    their group. Unchanged where there are few kinds.
    """
    held = tuple((pair, n) for pair, n in order if n > 0)
    if len(held) <= most:
        return held
    plain = [(pair.mu, n) for pair, n in held if isinstance(pair, GaussianPair)]
    sampled = [(pair, n) for pair, n in held if isinstance(pair, SampledGaussianPair)]
    total: Counter[AbstractLossPair] = Counter()
    for pair, n in held:
        if not isinstance(pair, GaussianPair | SampledGaussianPair):
            total[pair] += n
    if plain:
        total[GaussianPair(compose_mu([mu for mu, _ in plain], [n for _, n in plain]))] += 1
    room = max(most - len(total), 1)
    for direction in ("remove", "add"):
        group = [(pair, n) for pair, n in sampled if pair.direction == direction]
        for members in _split(sorted(group, key=lambda member: member[0].mu), room):
            rate = max(pair.rate for pair, _ in members)
            mu = max(pair.mu for pair, _ in members)
            total[SampledGaussianPair(rate, mu, direction)] += sum(n for _, n in members)
    return tuple(total.items())


def _split(
    members: list[tuple[SampledGaussianPair, int]], parts: int
) -> list[list[tuple[SampledGaussianPair, int]]]:
    """Into so many groups, of equal ratio of the largest to the smallest mu."""
    if not members:
        return []
    low, high = math.log(members[0][0].mu), math.log(members[-1][0].mu)
    groups: dict[int, list[tuple[SampledGaussianPair, int]]] = {}
    for pair, n in members:
        at = (math.log(pair.mu) - low) / max(high - low, 1e-300)
        groups.setdefault(min(int(parts * at), parts - 1), []).append((pair, n))
    return list(groups.values())
