"""A calibration as plain data, with what the older analyses would have answered.

Schema `tightrope.calibrate/1`: the answer carries the value under the name of what was sought
(`noise_multiplier`, `steps` or `rate`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tightrope.accounting import Account, account
from tightrope.calibrate import Calibrated, Target
from tightrope.errors import TightropeError
from tightrope.guarantee.base import Validity
from tightrope.process.codec import to_json
from tightrope.report.account_view import certified_view
from tightrope.theorems.catalog import ANALYSES, Analysis

__all__ = ["calibrate_view"]

SCHEMA = "tightrope.calibrate/1"
_OLDER = ("improved-moments", "moments", "clt")

Search = Callable[..., Calibrated]


def calibrate_view(search: Search, run: Any, target: Target) -> dict[str, Any]:
    """The safe answer, then the same search by the moments accountants and the CLT."""
    best = search(run, target)
    return {
        "schema": SCHEMA,
        "target": _target_view(target),
        "answer": {
            best.quantity: best.value,
            "quantity": best.quantity,
            "analysis": best.analysis,
            "epsilon": _epsilon_view(best.account(), _level(target)),
            "delta": _level(target),
        },
        "process": to_json(best.process),
        "alternatives": [_older(search, run, target, best, a) for a in ANALYSES if a.key in _OLDER],
    }


def _epsilon_view(found: Account, delta: float) -> dict[str, float | str]:
    answering = found.best(lambda guarantee: guarantee.epsilon(delta).upper)
    return certified_view(found.epsilon(delta), answering.kind)


def _level(target: Target) -> float:
    """The delta at which epsilons are stated; a target without one gets the usual 1e-5."""
    return target.delta if target.true_positive_rate is None else 1e-5


def _target_view(target: Target) -> dict[str, Any]:
    if target.true_positive_rate is None:
        return {"epsilon": target.epsilon, "delta": target.delta}
    return {
        "true_positive_rate": target.true_positive_rate,
        "false_positive_rate": target.false_positive_rate,
    }


def _older(
    search: Search, run: Any, target: Target, best: Calibrated, analysis: Analysis
) -> dict[str, Any]:
    row: dict[str, Any] = {"analysis": analysis.name, "kind": str(analysis.lead.VALIDITY)}
    covers = account(run, (analysis,)).findings[0]
    if not covers.applies:
        return {**row, best.quantity: None, "reason": covers.reason}
    try:
        found = search(run, target, (analysis,))
    except TightropeError as refusal:
        return {**row, best.quantity: None, "reason": str(refusal)}
    row |= {best.quantity: found.value, "compared": _compared(best, found)}
    if analysis.lead.VALIDITY is Validity.ESTIMATE:
        row["true_epsilon"] = _epsilon_view(account(found.process), _level(target))
    return row


def _compared(best: Calibrated, other: Calibrated) -> str:
    """What the other answer costs, in words."""
    if best.quantity == "steps":
        gap = int(best.value - other.value)
        return f"{abs(gap)} rounds {'fewer' if gap >= 0 else 'more'}"
    if other.value == 0 or best.value == 0:
        return "the same"
    change = 100.0 * (other.value / best.value - 1.0)
    what = "noise" if best.quantity == "noise_multiplier" else best.quantity
    return f"{change:+.2f}% {what}"
