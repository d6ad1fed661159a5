"""Advanced composition of (epsilon, delta) guarantees.

Statement: k runs of (eps, delta)-DP are (eps', k delta + slack)-DP for every slack > 0,
    eps' = eps sqrt(2 k ln(1/slack)) + k eps (e^eps - 1); for different eps_i,
    eps' = sqrt(2 ln(1/slack) sum eps_i^2) + sum eps_i (e^eps_i - 1).
    Shortcut: eps' <= 2 eps sqrt(2 k ln(1/slack)).
Conditions: adaptive composition; 0 < slack <= 1. The shortcut holds iff e^eps - 1 <=
    sqrt(2 ln(1/slack)/k); "eps < 1" is not enough (k = 1000, eps = 0.9, slack = 1e-5: 273 against
    1450).
Validity: bound; `optimal` is never larger.
Source: Dwork, Rothblum and Vadhan 2010, Theorem III.3; Dwork and Roth 2014, Theorem 3.20.
Error: a few roundings, rounded up.
Vectors: advanced_composition in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tightrope.errors import DoesNotApply
from tightrope.guarantee.approx.simple import Approx, checked
from tightrope.numerics.rounding import ULP
from tightrope.validate import check_count, check_epsilon, check_real

__all__ = ["advanced", "shortcut"]

_UP = 1.0 + 8.0 * ULP


def advanced(
    guarantees: Sequence[Approx], slack: float, counts: Sequence[int] | None = None
) -> Approx:
    """(eps', sum delta_i + slack) of (eps_i, delta_i), part i being run counts[i] times."""
    parts = checked(guarantees, counts)
    log_slack = -math.log(_slack(slack))
    largest = max((e for e, _, _ in parts), default=0.0) or 1.0
    squares = math.fsum(c * (e / largest) ** 2 for e, _, c in parts)
    drift = math.fsum(c * e * _expm1(e) for e, _, c in parts)
    total = (largest * math.sqrt(2.0 * log_slack * squares) + drift) * _UP
    return (total, min((math.fsum(c * d for _, d, c in parts) + slack) * _UP, 1.0))


def shortcut(epsilon: float, slack: float, count: int) -> float:
    """2 eps sqrt(2 k ln(1/slack)), refused where it is not a bound."""
    eps, k = check_epsilon(epsilon), check_count(count, "count", low=1)
    log_slack = -math.log(_slack(slack))
    limit = math.sqrt(2.0 * log_slack / k)
    if math.expm1(eps) > limit:
        raise DoesNotApply(
            "The shortcut of advanced composition needs e^epsilon - 1 <= sqrt(2 ln(1/slack)/"
            f"count), here {limit:.4g}; got {math.expm1(eps):.4g}. Use `advanced`, or the optimal "
            "composition, which is smaller."
        )
    return float(2.0 * eps * math.sqrt(2.0 * k * log_slack) * _UP)


def _slack(value: float) -> float:
    return float(check_real(value, "slack", low=0.0, high=1.0, open_low=True))


def _expm1(eps: float) -> float:
    return math.expm1(eps) if eps < 700.0 else math.inf
