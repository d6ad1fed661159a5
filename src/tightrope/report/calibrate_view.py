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
from tightrope.numerics.rounding import rounded_up
from tightrope.process import Process
from tightrope.process.codec import to_json
from tightrope.report.account_view import certified_view
from tightrope.theorems.catalog import ANALYSES, Analysis

__all__ = ["calibrate_view"]

SCHEMA = "tightrope.calibrate/1"
_OLDER = ("improved-moments", "moments", "clt")

Search = Callable[..., Calibrated]


def calibrate_view(search: Search, run: Process, target: Target, delta: float) -> dict[str, Any]:
    """The safe answer with its epsilon at delta, then what the moments accountants and CLT find."""
    best = search(run, target)
    found = best.account()
    older = [a for a in ANALYSES if a.key in _OLDER]
    return {
        "schema": SCHEMA,
        "target": _target_view(target, delta),
        "answer": {
            best.quantity: best.value,
            "quantity": best.quantity,
            "analysis": best.analysis,
            "epsilon": _epsilon_view(found, delta),
            "delta": delta,
            "words": _words(target, found, delta),
        },
        "process": to_json(best.process),
        "alternatives": [_older(search, run, target, best, a, delta) for a in older],
    }


def _epsilon_view(found: Account, delta: float) -> dict[str, float | str]:
    return certified_view(found.epsilon(delta), found.guarantee(delta).two_sided)


def _words(target: Target, found: Account, delta: float) -> str:
    """What was asked for, as it is certified."""
    guarantee = found.guarantee(delta)
    if target.true_positive_rate is not None:
        alarms = target.false_positive_rate
        hits = rounded_up(guarantee.true_positive_rate(alarms).upper, 6)
        return f"no attack with a false alarm rate of {alarms:g} finds more than {hits}"
    if _by_advantage(target, delta):
        lead = rounded_up(guarantee.advantage().upper, 6)
        return f"no attack has a hit rate more than {lead} above its false alarm rate"
    return f"certified for epsilon = {target.epsilon:g} at delta = {target.delta:g}"


def _by_advantage(target: Target, delta: float) -> bool:
    """An advantage is a delta at epsilon 0, other than the one at which epsilon is stated."""
    return target.true_positive_rate is None and target.epsilon == 0.0 and target.delta != delta


def _target_view(target: Target, delta: float) -> dict[str, Any]:
    if target.true_positive_rate is None:
        more = {"advantage": target.delta} if _by_advantage(target, delta) else {}
        return {"epsilon": target.epsilon, "delta": target.delta, **more}
    return {
        "true_positive_rate": target.true_positive_rate,
        "false_positive_rate": target.false_positive_rate,
    }


def _older(
    search: Search, run: Process, target: Target, best: Calibrated, analysis: Analysis, delta: float
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
        row["true_epsilon"] = _epsilon_view(account(found.process), delta)
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
