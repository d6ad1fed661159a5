"""Tensor products and group privacy of trade-off functions.

Statement: T(P, Q) x T(P', Q') = T(P x P', Q x Q'): the trade-off function of releasing both. G_a x
    G_b = G_{sqrt(a^2 + b^2)}; for discrete laws the atoms multiply. Group of k records: 1 - (1 -
    f)^{o k}.
Conditions: product: the curves are for the same order of the same neighbours; adaptive composition
    is covered. Group: f symmetric (it is symmetrised first), since a group may mix orders.
Validity: exact for Gaussians and while the atoms number at most EXACT; else a bracket from
    lattices of log ratios. Group privacy is a bound (attained by the Gaussian mechanism).
Source: Dong, Roth and Su 2019 (arXiv:1905.02383), Definition 3.1, Theorems 3.2 and 2.14, Lemma A.5.
Error: the width of the bracket; rounding adds up in `rounding`.
Vectors: tests/unit/reproduce/test_tradeoff_operations.py.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.guarantee.gaussian import compose_mu, group_mu
from tightrope.validate import FloatArray, check_count
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff
from tightrope_reproduce.tradeoff.bracket import TradeoffBracket, bracket, coarsened
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff
from tightrope_reproduce.tradeoff.hull import symmetrise

__all__ = ["EXACT", "tensor", "group"]

EXACT = 1 << 16
_OVERLAP = 1e-13  # both ends claim a cut this close to the middle, so that none is lost


def tensor(*curves: AbstractTradeoff, resolution: int = 1024) -> TradeoffBracket:
    """The trade-off function of all releases together, between two curves."""
    if not curves:
        raise InvalidInput("tensor() needs at least one trade-off function; got none.")
    gaussian = [c for c in curves if isinstance(c, GaussianTradeoff)]
    others = [c for c in curves if not isinstance(c, GaussianTradeoff)]
    parts: list[AbstractTradeoff] = list(others)
    if gaussian:
        parts.append(GaussianTradeoff(compose_mu([c.mu for c in gaussian])))
    if len(parts) == 1:
        return TradeoffBracket(parts[0], parts[0])
    total = bracket(parts[0], resolution)
    for part in parts[1:]:
        more = bracket(part, resolution)
        total = TradeoffBracket(
            _product(total.lower, more.lower, resolution, up=False),
            _product(total.upper, more.upper, resolution, up=True),
        )
    return total


def _product(
    f: AbstractTradeoff, g: AbstractTradeoff, resolution: int, *, up: bool
) -> DiscreteTradeoff:
    assert isinstance(f, DiscreteTradeoff) and isinstance(g, DiscreteTradeoff)
    p, q = np.outer(f.p, g.p).ravel(), np.outer(f.q, g.q).ravel()
    rounding = f.rounding + g.rounding + 1e-15
    if p.size <= EXACT:
        return DiscreteTradeoff(p, q, rounding)
    return coarsened(p, q, rounding, resolution, up=up)


def group(curve: AbstractTradeoff, size: int, resolution: int = 1024) -> TradeoffBracket:
    """1 - (1 - f)^{o size} between two curves, f made symmetric first."""
    size = check_count(size, "size", low=1)
    if isinstance(curve, GaussianTradeoff):
        exact = GaussianTradeoff(group_mu(curve.mu, size))
        return TradeoffBracket(exact, exact)
    one = bracket(symmetrise(curve), resolution)
    total = one
    for _ in range(size - 1):
        total = TradeoffBracket(
            coarsened(*_followed(total.lower, one.lower), resolution, up=False),
            coarsened(*_followed(total.upper, one.upper), resolution, up=True),
        )
    return total


def _followed(f: AbstractTradeoff, g: AbstractTradeoff) -> tuple[FloatArray, FloatArray, float]:
    """Atoms of a -> g(1 - f(a)): the Q-masses of f are laid along the P-masses of g."""
    assert isinstance(f, DiscreteTradeoff) and isinstance(g, DiscreteTradeoff)
    fp, fq = f.p[f.q > 0.0], f.q[f.q > 0.0]
    gp, gq = g.p[g.p > 0.0], g.q[g.p > 0.0]
    shared, i, j = _overlay(fq, gp)
    p = np.concatenate([shared * (fp / fq)[i], [f.p[f.q == 0.0].sum()], [0.0]])
    q = np.concatenate([shared * (gq / gp)[j], [0.0], [g.q[g.p == 0.0].sum()]])
    return p, q, f.rounding + g.rounding + 4.0 * _OVERLAP


def _overlay(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Common refinement of two partitions of [0, 1]: lengths and the piece of each it lies in."""
    left = np.unique(np.concatenate([[0.0], _below_half(a), _below_half(b)]))
    right = np.unique(np.concatenate([[0.0], _below_half(a[::-1]), _below_half(b[::-1])]))
    middle = max(1.0 - left[-1] - right[-1], 0.0)
    lengths = np.concatenate([np.diff(left), [middle], np.diff(right)[::-1]])
    pieces = [
        np.concatenate([_piece(v, left), [_middle(v, left[-1])], _mirrored(v, right)])
        for v in (a, b)
    ]
    return lengths, pieces[0], pieces[1]


def _below_half(masses: FloatArray) -> FloatArray:
    ends = np.cumsum(masses)
    return ends[ends < 0.5 + _OVERLAP]


def _piece(masses: FloatArray, cuts: FloatArray) -> FloatArray:
    """The piece that holds each interval between `cuts`."""
    middles = 0.5 * (cuts[:-1] + cuts[1:])
    return np.minimum(np.searchsorted(np.cumsum(masses), middles, side="right"), masses.size - 1)


def _mirrored(masses: FloatArray, cuts: FloatArray) -> FloatArray:
    return (masses.size - 1 - _piece(masses[::-1], cuts))[::-1]


def _middle(masses: FloatArray, start: float) -> int:
    inside = np.searchsorted(np.cumsum(masses), math.nextafter(start, 1.0), side="right")
    return min(int(inside), masses.size - 1)
