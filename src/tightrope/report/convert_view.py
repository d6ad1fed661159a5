"""Conversions between the notions as plain data: every route with its name, side and source.

Schema `tightrope.convert/1`.
"""

from __future__ import annotations

from typing import Any

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.renyi import closed_gamma, one_sided, two_sided
from tightrope.guarantee.renyi.best import ROUTES
from tightrope.report.account_view import interval_view, number

__all__ = ["renyi_view", "guarantee_view", "to_renyi_view"]

SCHEMA = "tightrope.convert/1"


def renyi_view(
    order: float, gamma: float, delta: float | None, epsilon: float | None
) -> dict[str, Any]:
    """(order, gamma)-Renyi DP to epsilon at delta, or to delta at epsilon, by every route."""
    if (delta is None) == (epsilon is None):
        raise InvalidInput("Give either --delta (to get epsilon) or --epsilon (to get delta).")
    rows = []
    for key, route in ROUTES.items():
        value = (
            route.epsilon(order, gamma, delta)
            if delta is not None
            else route.delta(order, gamma, epsilon)
        )
        row = {"key": key, "name": route.name, "side": route.side, "source": route.source}
        rows.append({**row, "epsilon" if delta is not None else "delta": number(float(value))})
    asked = {"delta": delta} if delta is not None else {"epsilon": epsilon}
    return {
        "schema": SCHEMA,
        "from": {"notion": "renyi", "order": order, "gamma": gamma, **asked},
        "routes": rows,
    }


def to_renyi_view(epsilon: float, delta: float, order: float) -> dict[str, Any]:
    """The largest Renyi level that still forces (epsilon, delta)-DP: the budget of a filter."""
    two, one = two_sided.gamma(order, epsilon, delta), one_sided.gamma(order, epsilon, delta)
    paper = "Asoodeh et al. 2021"
    rows = [
        (
            "two_sided",
            "optimum, both directions",
            "exact",
            f"{paper}, Theorem 3 made two-sided",
            two,
        ),
        ("one_sided", "optimum, one direction", "lower bound", f"{paper}, Theorem 3", one),
    ]
    routes: list[dict[str, Any]] = [
        {"key": key, "name": name, "side": side, "source": source, "gamma": float(value[0])}
        for key, name, side, source, value in rows
    ]
    closed = float(closed_gamma.gamma(order, epsilon, delta))
    routes.append(
        {
            "key": "theorem4",
            "name": "closed form",
            "side": "lower bound",
            "source": f"{paper}, Theorem 4",
            "gamma": closed,
        }
    )
    asked = {"notion": "approx", "epsilon": epsilon, "delta": delta, "order": order}
    return {"schema": SCHEMA, "from": asked, "routes": routes}


def guarantee_view(
    guarantee: Guarantee, deltas: list[float], type_i_errors: list[float], orders: list[float]
) -> dict[str, Any]:
    """All views of one guarantee."""
    level = (
        {"notion": "gaussian", "mu": guarantee.mu}
        if isinstance(guarantee, GaussianGuarantee)
        else {"notion": "approx", "epsilon": guarantee.level, "delta": guarantee.failure}
        if isinstance(guarantee, ApproxGuarantee)
        else {"notion": type(guarantee).__name__}
    )
    return {
        "schema": SCHEMA,
        "from": level,
        "epsilon": [{"delta": d, **interval_view(guarantee.epsilon(d))} for d in deltas],
        "type_ii_error": [
            {"type_i": a, **interval_view(guarantee.tradeoff(a))} for a in type_i_errors
        ],
        "renyi": [{"order": a, **interval_view(guarantee.renyi(a))} for a in orders],
        "advantage": interval_view(guarantee.advantage()),
    }
