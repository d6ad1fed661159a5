"""A plan for a private table, and a fit, as plain data.

Schemas `tightrope.convex.plan/1` and `tightrope.convex.fit/1`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightrope.process.codec import to_json
from tightrope.report.account_view import certified_view, number

if TYPE_CHECKING:
    from pathlib import Path

    from tightrope.convex.learn import Plan

__all__ = ["plan_view", "fit_view"]


def plan_view(plan: Plan) -> dict[str, Any]:
    """The algorithm that was chosen, what it promises, and what it was compared with."""
    found = plan.guarantee.epsilon(plan.budget.delta)
    compared = [
        {"algorithm": one.name, "excess_loss": number(one.excess), "words": one.why}
        for one in plan.compared
    ]
    return {
        "schema": "tightrope.convex.plan/1",
        "algorithm": plan.name,
        "epsilon": certified_view(found, plan.guarantee.two_sided),
        "delta": plan.budget.delta,
        "adjacency": str(plan.guarantee.adjacency),
        "compared": compared,
        "process": to_json(plan.process),
    }


def fit_view(fitted: Any, model: Path, certificate: Path) -> dict[str, Any]:
    """What a fitted estimator spent, and where model and certificate were written."""
    guarantee = fitted.guarantee_
    return {
        "schema": "tightrope.convex.fit/1",
        "epsilon": certified_view(guarantee.epsilon(fitted.delta_), guarantee.two_sided),
        "delta": fitted.delta_,
        "adjacency": str(guarantee.adjacency),
        "words": fitted.reason_,
        "model": str(model),
        "certificate": str(certificate),
    }
