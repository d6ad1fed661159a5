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
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.check import Methods
from tightrope.guarantee.kinds.stopped import StoppedGuarantee
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.renyi import composed_renyi_by_cells
from tightrope.guarantee.tradeoff import supporting_epsilon
from tightrope.numerics.interval import Interval
from tightrope.validate import check_real

_SLACK = 1e-9  # the same bound may differ by this much on another machine (its libm)
_MOST_KINDS = 64


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
            words = f"all {len(rows)} hold" if view.argument else "holds"
        else:
            at = f" at {view.argument} = {false[view.argument]}" if view.argument else ""
            words = f"false{at}"
        yield Check(view.name, false is None, words)


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


# ---- second methods
def second_checks(claims: dict[str, Any], guarantee: Guarantee, delta: float) -> Iterator[Check]:
    """No second method contradicts an epsilon, a type II error or a Renyi divergence."""
    whole, share = guarantee, 1.0
    if isinstance(guarantee, StoppedGuarantee):  # that of a length, with its share of delta
        whole, share = guarantee.inner, guarantee.share
    name, pairs = "second method", _pairs_of(whole)
    try:
        claim = main_claim(claims, delta)
        main = math.inf if claim is None else float(check_real(claim, "epsilon"))
    except (KeyError, TightropeError) as error:
        yield Check(name, False, str(error.args[0]))
    else:
        if isinstance(pairs, str):
            yield yours(name, pairs)
        elif math.isinf(main):
            yield yours(name, "no finite epsilon that the lattice method could check")
        else:
            yield _second_epsilon(name, claims, Methods(pairs), share, delta)
    name = "second method, type II errors"
    yield (
        yours(name, pairs)
        if isinstance(pairs, str)
        else _second_tradeoff(name, claims, guarantee, Methods(pairs), share)
    )
    name, pairs = "second method, Renyi", _pairs_of(guarantee)
    yield yours(name, pairs) if isinstance(pairs, str) else _second_renyi(name, claims, pairs)


def _pairs_of(guarantee: Guarantee) -> tuple[Components, ...] | str:
    """The dominating pairs of a guarantee, or why there is nothing to compare."""
    directions = guarantee.directions()
    if directions is None:
        return "nothing to compare by another numerical method: the bound is a formula"
    if not any(directions):
        return "nothing was released"
    if not all(pair.on_lattice for order in directions for pair, _ in order):
        return "one method only: the law of an epoch of balls in bins is known by its density alone"
    if all(  # a sum of a few terms, and no composition to check
        sum(count for _, count in order) == 1 and all(p.support[1] < math.inf for p, _ in order)
        for order in directions
    ):
        return "one release of bounded loss: a closed formula gives it"
    return directions


def _claimed(
    claims: dict[str, Any], name: str, argument: str, end: str
) -> list[tuple[float, float]]:
    """(argument, end) of the claims that say something; odd rows are refused elsewhere."""
    pairs = [(row.get(argument), row.get(end)) for row in claims[name]]
    return [
        (at, value) for at, value in pairs if isinstance(at, float) and isinstance(value, float)
    ]


def _second_epsilon(
    name: str, claims: dict[str, Any], methods: Methods, share: float, delta: float
) -> Check:
    rows = [row for row in _claimed(claims, "epsilon", "delta", "upper") if row[1] >= 0.0]
    verdicts = {at: methods.agree(epsilon, share * at) for at, epsilon in rows if 0.0 < at < 1.0}
    wrong = [at for at, agrees in verdicts.items() if agrees is False]
    if wrong:
        return Check(name, False, f"the lattice contradicts the claim at delta = {wrong[0]}")
    if verdicts.get(delta) is None:
        return yours(name, f"the lattice has no answer at delta = {delta}")
    words = f"{sum(map(bool, verdicts.values()))} of {len(verdicts)} epsilons are proved twice"
    return Check(name, True, words)


def _second_tradeoff(
    name: str, claims: dict[str, Any], guarantee: Guarantee, methods: Methods, share: float
) -> Check:
    """The delta behind each claimed type II error, by lattice and contour."""
    rows = _claimed(claims, "type_ii_error", "type_i", "lower")
    rows = [(a, lower) for a, lower in rows if 0.0 < a < 1.0 and 0.0 < lower < 1.0 - a]
    twice = 0
    for type_i, lower in rows:
        epsilon = supporting_epsilon(guarantee, type_i)
        # The delta(|epsilon|) that puts the line through (type_i, lower); flat for epsilon < 0.
        steep, flat = (type_i, lower) if epsilon >= 0.0 else (lower, type_i)
        behind = 1.0 - flat - math.exp(abs(epsilon)) * steep
        verdict = methods.agree(abs(epsilon), share * behind)
        if verdict is False:
            return Check(name, False, f"the lattice contradicts the claim at type_i = {type_i}")
        twice += verdict is True
    words = f"{twice} of {len(rows)} claims are proved by two methods"
    return Check(name, True, words) if twice else yours(name, words)


def _second_renyi(name: str, claims: dict[str, Any], pairs: tuple[Components, ...]) -> Check:
    """Each claimed divergence against the sum over cells of the loss."""
    if max(map(len, pairs)) > _MOST_KINDS:
        return yours(name, "one method only: too many kinds of steps for sums over cells")
    rows = [row for row in _claimed(claims, "renyi", "order", "upper") if row[0] > 1.0]
    if not rows:
        return yours(name, "nothing finite is claimed")
    worst = 0.0
    for order, upper in rows:
        found = Interval.worst([composed_renyi_by_cells(part, order) for part in pairs])
        if found.lower > upper * (1 + _SLACK):
            return Check(name, False, f"cells of the loss contradict the claim at order {order}")
        worst = max(worst, found.upper / upper - 1.0 if upper > 0.0 else found.upper)
    return Check(name, True, f"cells of the loss prove {len(rows)} claims again within {worst:.1e}")
