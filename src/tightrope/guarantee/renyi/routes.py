"""Every conversion of this package with its name, its side and its source: one table for people.

`ROUTES` is keyed by a short name. A route from Renyi DP has `epsilon(order, gamma, delta)` and
`delta(order, gamma, epsilon)`, both upper bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput
from tightrope.guarantee.renyi import balle, classical, closed_epsilon, optimal

__all__ = ["Route", "ROUTES", "route_named"]


@final
@dataclass(frozen=True)
class Route:
    """A way from (order, gamma)-Renyi DP to (epsilon, delta)-DP."""

    name: str
    side: str
    source: str
    epsilon: Callable[[Any, Any, Any], Any]
    delta: Callable[[Any, Any, Any], Any]


def _optimal_epsilon(order: ArrayLike, gamma: ArrayLike, delta: ArrayLike) -> Any:
    return optimal.epsilon(order, gamma, delta).upper


def _optimal_delta(order: ArrayLike, gamma: ArrayLike, epsilon: ArrayLike) -> Any:
    return optimal.delta(order, gamma, epsilon).upper


def _one_sided_epsilon(order: ArrayLike, gamma: ArrayLike, delta: ArrayLike) -> Any:
    return optimal.epsilon(order, gamma, delta, sides=1).upper


def _one_sided_delta(order: ArrayLike, gamma: ArrayLike, epsilon: ArrayLike) -> Any:
    return optimal.delta(order, gamma, epsilon, sides=1).upper


_ASOODEH = "Asoodeh et al. 2021, arXiv:2008.06529"

ROUTES: dict[str, Route] = {
    "optimal": Route(
        "optimal, both directions",
        "exact",
        f"{_ASOODEH}, Theorem 3, made two-sided (docs/theorems/renyi_two_sided.md)",
        _optimal_epsilon,
        _optimal_delta,
    ),
    "one_sided": Route(
        "optimal, one direction (Theorem 3)",
        "upper bound",
        f"{_ASOODEH}, Theorem 3",
        _one_sided_epsilon,
        _one_sided_delta,
    ),
    "lemma1": Route(
        "closed form (Lemma 1)",
        "upper bound",
        f"{_ASOODEH}, Lemma 1",
        closed_epsilon.epsilon,
        closed_epsilon.delta,
    ),
    "balle": Route(
        "best constant (Balle et al.)",
        "upper bound",
        "Balle et al. 2020, arXiv:1905.09982, Theorem 21",
        balle.epsilon,
        balle.delta,
    ),
    "classical": Route(
        "classical (Theorem 1)",
        "upper bound",
        "Mironov 2017, arXiv:1702.07476, Proposition 3",
        classical.epsilon,
        classical.delta,
    ),
}


def route_named(name: str) -> Route:
    """The route of that key."""
    if name not in ROUTES:
        raise InvalidInput(f"No conversion is named {name!r}; the table has {', '.join(ROUTES)}.")
    return ROUTES[name]
