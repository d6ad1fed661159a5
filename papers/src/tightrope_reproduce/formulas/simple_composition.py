"""Basic composition of (epsilon, delta) guarantees, and the shortcut of the advanced one.

Statement: basic (sum eps_i, 1 - prod(1 - delta_i)), never above (sum eps_i, sum delta_i); shortcut
    eps' <= 2 eps sqrt(2 k ln(1/slack)), which holds iff e^eps - 1 <= sqrt(2 ln(1/slack)/k): "eps <
    1" is not enough (k = 1000, eps = 0.9, slack = 1e-5: 273 against 1450).
Source: Dwork and Roth 2014, Theorems 3.16 and 3.20; Kairouz, Oh and Viswanath 2015
    (arXiv:1311.0776) for the product of deltas.
Error: a few roundings, rounded up.
Vectors: advanced_composition in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tightrope.errors import DoesNotApply
from tightrope.guarantee.approx import ROUNDED_UP, Approx, checked, checked_slack
from tightrope.numerics.rounding import ULP
from tightrope.validate import check_count, check_epsilon


def delta_of_all(parts: Sequence[tuple[float, float, int]]) -> float:
    """1 - prod(1 - delta_i)^count_i, rounded up."""
    if any(d >= 1.0 for _, d, _ in parts):
        return 1.0
    return min(-math.expm1(math.fsum(c * math.log1p(-d) for _, d, c in parts)) * ROUNDED_UP, 1.0)


def basic(guarantees: Sequence[Approx], counts: Sequence[int] | None = None) -> Approx:
    """Basic composition of (epsilon_i, delta_i), part i being run counts[i] times."""
    parts = checked(guarantees, counts)
    total = math.fsum(e * c for e, _, c in parts)
    return (
        total if len(parts) == 1 and parts[0][2] == 1 else total * ROUNDED_UP,
        delta_of_all(parts),
    )


def shortcut(epsilon: float, slack: float, count: int) -> float:
    """2 eps sqrt(2 k ln(1/slack)), refused where it is not a bound."""
    eps, k = check_epsilon(epsilon), check_count(count, "count", low=1)
    log_slack = -math.log(checked_slack(slack))
    limit = math.sqrt(2.0 * log_slack / k)
    if math.expm1(eps) > limit:
        raise DoesNotApply(
            "The shortcut of advanced composition needs e^epsilon - 1 <= sqrt(2 ln(1/slack)/"
            f"count), here {limit:.4g}; got {math.expm1(eps):.4g}. Use `advanced`, or the optimal "
            "composition, which is smaller."
        )
    return float(2.0 * eps * math.sqrt(2.0 * k * log_slack) * (1.0 + 8.0 * ULP))
