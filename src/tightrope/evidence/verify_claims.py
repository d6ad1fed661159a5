"""The numbers of a certificate: each recomputed, and each checked by a second method.

The second method shares no numerics with the first: the lattice for epsilons; for type II errors
the lattice at the delta of the supporting line 1 - delta(epsilon) - e^epsilon type_i; for Renyi
divergences a sum over cells of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tightrope.accounting import Account, find
from tightrope.errors import TightropeError
from tightrope.evidence.check import Check, yours
from tightrope.evidence.statement import main_claim
from tightrope.guarantee.base import Components, Guarantee
from tightrope.guarantee.check import Methods
from tightrope.guarantee.kinds.stopped import StoppedGuarantee
from tightrope.guarantee.loss.renyi import composed_renyi_by_cells
from tightrope.guarantee.tradeoff import supporting_epsilon
from tightrope.numerics.interval import Interval
from tightrope.validate import check_real

__all__ = ["claims_checks", "second_method", "claimed", "second_tradeoff", "second_renyi"]


# The same bound recomputed elsewhere may differ by this much (another machine's libm).
_SLACK = 1e-9


class _View(NamedTuple):
    """A kind of claim: by which argument, which end is promised, the largest value there is."""

    name: str
    argument: str
    of: Callable[[Guarantee, float], Interval]
    safe: str
    largest: float


_VIEWS = (
    _View("epsilon", "delta", lambda g, delta: g.epsilon(delta), "upper", math.inf),
    _View("type_ii_error", "type_i", lambda g, type_i: g.tradeoff(type_i), "lower", 1.0),
    _View("renyi", "order", lambda g, order: g.renyi(order), "upper", math.inf),
    _View("advantage", "", lambda g, _: g.advantage(), "upper", 1.0),
)


def claims_checks(certificate: dict[str, Any], result: Account, best: Guarantee) -> Iterator[Check]:
    """One line for each kind of claim."""
    claim = certificate["analysis"]
    named = [find(one, result.process) for one in result.analyses if one.key == claim["key"]]
    proofs = [best, *(f.outcome for f in named if f.is_certified and f.outcome != best)]
    for view in _VIEWS:
        claimed = certificate["claims"][view.name]
        rows = claimed if view.argument else [claimed]
        exact = claim["kind"] == "exact"
        false = next((row for row in rows if not _holds(row, view, proofs, exact)), None)
        if false is None:
            yield Check(view.name, True, f"all {len(rows)} hold" if view.argument else "holds")
        elif view.argument:
            yield Check(view.name, False, f"false at {view.argument} = {false[view.argument]}")
        else:
            yield Check(view.name, False, "false")


def _holds(row: dict[str, Any], view: _View, proofs: list[Any], exact: bool) -> bool:
    """Is the promised end proved by the best guarantee, or by that of the analysis it names?

    Of an exact analysis the other end must not contradict it, since a reader may take it for the
    truth's other side. A bound promises one end: later bounds may be closer.
    """
    lower, upper = (math.inf if row[end] is None else float(row[end]) for end in ("lower", "upper"))
    if not 0.0 <= lower <= upper <= view.largest:
        return False
    if lower == 0.0 and (view.safe == "lower" or upper == view.largest):
        return True  # nothing is claimed
    at = float(row[view.argument]) if view.argument else 0.0
    promised, other = (upper, lower) if view.safe == "upper" else (-lower, -upper)
    truth = _truth(proofs[0], view, at)
    if exact and other > truth.upper + _slack(truth):
        return False
    if promised >= truth.upper - _slack(truth):
        return True
    others = (_truth(guarantee, view, at) for guarantee in proofs[1:])
    return any(promised >= found.upper - _slack(found) for found in others)


def _truth(guarantee: Guarantee, view: _View, at: float) -> Interval:
    """What is recomputed, as a loss: its upper end is proved, where there is an answer at all."""
    try:
        found = view.of(guarantee, at)
    except (TightropeError, TypeError, ValueError, ArithmeticError):
        found = Interval(0.0, view.largest)
    return found if view.safe == "upper" else Interval(-found.upper, -found.lower)


def _slack(truth: Interval) -> float:
    """What another machine may make of the same number."""
    size = max(map(abs, (truth.lower, truth.upper)))
    return _SLACK * size + 1e-12 * (truth.upper <= 0.0) if math.isfinite(size) else 0.0


_NAME = "second method"


def second_method(claims: dict[str, Any], guarantee: Guarantee, delta: float) -> Check:
    """It contradicts no epsilon where it answers."""
    try:
        claim = main_claim(claims, delta)
        main = math.inf if claim is None else float(check_real(claim, "epsilon"))
    except (KeyError, TightropeError) as error:
        return Check(_NAME, False, str(error.args[0]))
    guarantee, share = whole_and_share(guarantee)
    directions = pairs_to_check(guarantee)
    if isinstance(directions, str):
        return yours(_NAME, directions)
    if math.isinf(main):
        return yours(_NAME, "no finite epsilon that the lattice method could check")
    methods = Methods(directions)
    rows = [row for row in claimed(claims, "epsilon", "delta", "upper") if row[1] >= 0.0]
    verdicts = {at: methods.agree(epsilon, share * at) for at, epsilon in rows if 0.0 < at < 1.0}
    wrong = [at for at, agrees in verdicts.items() if agrees is False]
    if wrong:
        return Check(_NAME, False, f"the lattice contradicts the claim at delta = {wrong[0]}")
    if verdicts.get(delta) is None:
        return yours(_NAME, f"the lattice has no answer at delta = {delta}")
    words = f"{sum(map(bool, verdicts.values()))} of {len(verdicts)} epsilons are proved twice"
    return Check(_NAME, True, words)


def whole_and_share(guarantee: Guarantee) -> tuple[Guarantee, float]:
    """The guarantee of a length, and its share of delta; 1 for a run whose length was fixed."""
    if isinstance(guarantee, StoppedGuarantee):
        return guarantee.inner, guarantee.share
    return guarantee, 1.0


def pairs_to_check(guarantee: Guarantee) -> tuple[Components, ...] | str:
    """The dominating pairs of a guarantee, or why there is nothing to compare."""
    directions = guarantee.directions()
    if directions is None:
        return "nothing to compare by another numerical method: the bound is a formula"
    if not any(directions):
        return "nothing was released"
    if not all(pair.on_lattice for order in directions for pair, _ in order):
        return "one method only: the law of an epoch of balls in bins is known by its density alone"
    if all(_elementary(order) for order in directions):
        return "one release of bounded loss: a closed formula gives it"
    return directions


def claimed(
    claims: dict[str, Any], name: str, argument: str, end: str
) -> list[tuple[float, float]]:
    """(argument, end) of the claims that say something; odd rows are refused elsewhere."""
    listed = claims.get(name)
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    pairs = [(row.get(argument), row.get(end)) for row in rows]
    return [
        (at, value) for at, value in pairs if isinstance(at, float) and isinstance(value, float)
    ]


def _elementary(order: Components) -> bool:
    """One release with a largest loss: a sum of a few terms, and no composition to check."""
    return sum(count for _, count in order) == 1 and all(p.support[1] < math.inf for p, _ in order)


_SLACK = 1e-9
_MOST_KINDS = 64


def second_tradeoff(claims: dict[str, Any], guarantee: Guarantee) -> Check:
    """The delta behind each claimed type II error, by lattice and contour."""
    whole, share = whole_and_share(guarantee)
    name, directions = "second method, type II errors", pairs_to_check(whole)
    if isinstance(directions, str):
        return yours(name, directions)
    rows = claimed(claims, "type_ii_error", "type_i", "lower")
    rows = [(a, lower) for a, lower in rows if 0.0 < a < 1.0 and 0.0 < lower < 1.0 - a]
    methods, twice = Methods(directions), 0
    for type_i, lower in rows:
        epsilon = supporting_epsilon(guarantee, type_i)
        verdict = methods.agree(abs(epsilon), share * _delta_behind(epsilon, type_i, lower))
        if verdict is False:
            return Check(name, False, f"the lattice contradicts the claim at type_i = {type_i}")
        twice += verdict is True
    words = f"{twice} of {len(rows)} claims are proved by two methods"
    return Check(name, True, words) if twice else yours(name, words)


def _delta_behind(epsilon: float, type_i: float, lower: float) -> float:
    """The delta(|epsilon|) that puts the line through (type_i, lower); flat for epsilon < 0."""
    if epsilon >= 0.0:
        return 1.0 - lower - math.exp(epsilon) * type_i
    return 1.0 - type_i - math.exp(-epsilon) * lower


def second_renyi(claims: dict[str, Any], guarantee: Guarantee) -> Check:
    """Each claimed Renyi divergence against the sum over cells of the loss."""
    name, directions = "second method, Renyi", pairs_to_check(guarantee)
    rows = [row for row in claimed(claims, "renyi", "order", "upper") if row[0] > 1.0]
    if isinstance(directions, str):
        return yours(name, directions)
    if max(map(len, directions)) > _MOST_KINDS:
        return yours(name, "one method only: too many kinds of steps for sums over cells")
    if not all(pair.on_lattice for order in directions for pair, _ in order):
        return yours(name, "one method only: the law is known by its density, not by masses")
    if not rows:
        return yours(name, "nothing finite is claimed")
    worst = 0.0
    for order, upper in rows:
        found = Interval.worst([composed_renyi_by_cells(part, order) for part in directions])
        if found.lower > upper * (1 + _SLACK):
            return Check(name, False, f"cells of the loss contradict the claim at order {order}")
        worst = max(worst, found.upper / upper - 1.0 if upper > 0.0 else found.upper)
    return Check(name, True, f"cells of the loss prove {len(rows)} claims again within {worst:.1e}")
