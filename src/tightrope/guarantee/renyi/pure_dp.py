"""epsilon-DP to Renyi DP, exactly; and why delta > 0 gives nothing.

Statement: an epsilon-DP mechanism is (order, r(order, epsilon))-Renyi DP with r the divergence of
    randomised response, and some epsilon-DP mechanism attains it.
    Looser and simpler: r <= min(epsilon, order epsilon^2/2).
    With delta > 0 the answer is infinity: P may put mass delta where Q has none, which satisfies
    (epsilon, delta)-DP and has D_order(P||Q) = inf for every order > 1.
    The gamma of Theorem 3 (one_sided.py), which the paper calls the conversion from DP to Renyi DP,
    answers another question: it is the largest Renyi level that FORCES (epsilon, delta)-DP. An
    (epsilon, delta)-DP mechanism need not have it.
Conditions: order > 1, epsilon >= 0, neighbours in both orders.
Validity: exact (`renyi_of_pure`), bound (`simple_renyi_of_pure`).
Source: Mironov 2017 (arXiv:1702.07476), Proposition 5 with an extremal argument; the
    simple bound is Bun and Steinke 2016 (arXiv:1605.02065), Proposition 3.3.
Error: upper end of an enclosure of relative width below 1e-12; rounded upwards.
Vectors: pure_renyi in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi._arrays import (
    TINY,
    Enclosure,
    checked_delta,
    checked_epsilon,
    checked_order,
    flat,
    rounded_up,
    shaped,
)
from tightrope.guarantee.renyi.randomized_response import divergence_bounds

__all__ = ["renyi_of_pure", "renyi_of_pure_bounds", "simple_renyi_of_pure", "renyi_of_approx"]


def renyi_of_pure_bounds(order: ArrayLike, epsilon: ArrayLike) -> Enclosure:
    """Enclosure of the smallest gamma that every epsilon-DP mechanism satisfies at `order`."""
    (a, eps), shape = flat(checked_order(order), checked_epsilon(epsilon))
    lower, upper = divergence_bounds(eps, a - 1.0)
    return Enclosure(shaped(lower, shape), shaped(upper, shape))


def renyi_of_pure(order: ArrayLike, epsilon: ArrayLike) -> Any:
    """Upper end of the exact conversion."""
    return renyi_of_pure_bounds(order, epsilon).upper


def simple_renyi_of_pure(order: ArrayLike, epsilon: ArrayLike) -> Any:
    """min(epsilon, order epsilon^2/2), for comparison."""
    (a, eps), shape = flat(checked_order(order), checked_epsilon(epsilon))
    with np.errstate(over="ignore", under="ignore"):
        square = np.maximum(rounded_up(0.5 * a * eps * eps), TINY)
        return shaped(np.minimum(eps, square), shape)


def renyi_of_approx(order: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest gamma that (epsilon, delta)-DP alone implies: infinite as soon as delta > 0."""
    (gamma, failure), shape = flat(renyi_of_pure(order, epsilon), checked_delta(delta))
    return shaped(np.where(failure > 0.0, np.inf, gamma), shape)
