"""f-divergences, of two discrete laws and of a trade-off function.

Statement: D_F(P||Q) = E_Q F(dP/dQ) for convex F with F(1) = 0. With f = T(P, Q) (H0 is P)
        D_F(P||Q) = int_0^1 phi(|f'(t)|) dt + (1 - f(0)) F(0),  phi(x) = x F(1/x),
    where f(0) < 1 is a mass of Q without P. phi is convex, so on a cell with end slopes s >= s' and
    mean slope m: phi(m) <= mean of phi(|f'|) <= the chord of phi between s' and s, at m.
    For atoms: sum q_i F(p_i/q_i), an atom without Q counting p_i F'(inf), one without P q_i F(0).
Conditions: f convex, non-increasing; `slope` gives |f'|. The last cell needs |f'(1)| > 0, or a
    finite F'(inf), or `tail(t)`, an upper bound on the integral over [t, 1]; the first cell needs
    |f'(0)| or F(0) finite, or `head(t)`, one on the integral over [0, t].
Validity: exact; the enclosure is rigorous for exact f and f'.
Source: Csiszar 1967; Ali and Silvey 1966; (2) and (112) of arXiv:2008.06529, whose (112) leaves out
    the mass of Q without P; Dong, Roth and Su 2019 (arXiv:1905.02383), Proposition B.4.
Error: the two rules above, summed over the mesh; rounding of the sums: 16 ulp of their absolute
    terms; of atoms, that of every ratio p/q too. The upper end is infinite where nothing bounds an
    end.
Vectors: f_divergence in tests/golden/tradeoff.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_order, check_positive
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff

__all__ = [
    "Generator",
    "KULLBACK_LEIBLER",
    "CHI_SQUARED",
    "NEYMAN",
    "TOTAL_VARIATION",
    "HELLINGER",
    "chi_alpha",
    "hockey_stick",
    "of_atoms",
    "of_tradeoff",
    "cell_bounds",
    "mesh",
]

Function = Callable[[FloatArray], FloatArray]


@final
@dataclass(frozen=True)
class Generator:
    """A convex F with F(1) = 0: its values on (0, inf), F(0), and F'(inf) = lim F(t)/t."""

    name: str
    value: Function
    at_zero: float
    at_infinity: float

    def perspective(self, x: FloatArray) -> FloatArray:
        """phi(x) = x F(1/x), with its limits phi(0) = F'(inf) and phi(inf)/inf = F(0)."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inner = x * self.value(1.0 / x)
        return np.where(x > 0.0, inner, self.at_infinity)


KULLBACK_LEIBLER = Generator("Kullback-Leibler", lambda t: t * np.log(t), 0.0, np.inf)
CHI_SQUARED = Generator("chi-squared", lambda t: (t - 1.0) ** 2, 1.0, np.inf)
NEYMAN = Generator("Neyman's chi-squared", lambda t: (t - 1.0) ** 2 / t, np.inf, 1.0)
TOTAL_VARIATION = Generator("total variation", lambda t: 0.5 * np.abs(t - 1.0), 0.5, 0.5)
HELLINGER = Generator("squared Hellinger", lambda t: (np.sqrt(t) - 1.0) ** 2, 1.0, 1.0)


def chi_alpha(order: float) -> Generator:
    """(t^order - 1)/(order - 1): D_order = ln(1 + (order - 1) chi^order)/(order - 1)."""
    a = check_order(order)
    return Generator(f"chi^{a:g}", lambda t: (t**a - 1.0) / (a - 1.0), -1.0 / (a - 1.0), np.inf)


def hockey_stick(threshold: float) -> Generator:
    """(t - threshold)_+: delta at epsilon = ln(threshold) >= 0."""
    c = check_positive(threshold, "threshold")
    if c < 1.0:
        raise InvalidInput(f"threshold must be at least 1, so that F(1) = 0; got {c:g}.")
    return Generator(f"E_{c:g}", lambda t: np.maximum(t - c, 0.0), 0.0, 1.0)


def of_atoms(generator: Generator, curve: DiscreteTradeoff) -> Interval:
    """D_F(P||Q) of the two laws of a piecewise linear f = T(P, Q)."""
    p, q = curve.p, curve.q
    both = (p > 0.0) & (q > 0.0)
    value, error = _with_error(generator, p[both] / q[both], curve.rounding)
    ends = ((p[q == 0.0].sum(), generator.at_infinity), (q[p == 0.0].sum(), generator.at_zero))
    beside = np.array([mass * weight for mass, weight in ends if mass > 0.0])
    lower, upper = (np.append(q[both] * one, beside) for one in (value - error, value + error))
    return _summed(lower, upper, curve.rounding)


def _with_error(
    generator: Generator, ratio: FloatArray, rounding: float
) -> tuple[FloatArray, FloatArray]:
    """F, and what errors of the ratio do to it: by convexity no more than at the ends of them."""
    value, off = generator.value(ratio), 16.0 * ULP + 4.0 * rounding
    ends = [generator.value(ratio * (1.0 + way * off)) for way in (-1.0, 1.0)]
    return value, np.maximum(*(np.abs(end - value) for end in ends))


def of_tradeoff(
    generator: Generator,
    tradeoff: Function,
    slope: Function,
    *,
    cells: int = 4096,
    head: Callable[[float], float] | None = None,
    tail: Callable[[float], float] | None = None,
) -> Interval:
    """D_F(P||Q) for f = T(P, Q) given with its slope |f'|."""
    at = mesh(cells)
    values, slopes = (np.asarray(g(at), dtype=np.float64) for g in (tradeoff, slope))
    lower, upper = cell_bounds(at, values, slopes, generator.perspective, generator.at_zero)
    if head is not None:
        upper[0] = min(upper[0], head(float(at[1])))
    if tail is not None:
        upper[-1] = min(upper[-1], tail(float(at[-2])))
    if values[0] < 1.0:
        missing = (1.0 - values[0]) * generator.at_zero
        lower, upper = np.append(lower, missing), np.append(upper, missing)
    return _summed(lower, upper, 0.0)


def _summed(lower: FloatArray, upper: FloatArray, rounding: float) -> Interval:
    finite = np.isfinite(lower).all()
    slack = (16.0 * ULP + 4.0 * rounding) * float(np.abs(lower).sum()) if finite else 0.0
    least = float(lower.sum()) - slack
    return Interval(max(least, 0.0), max(float(upper.sum()) + slack, 0.0))


def mesh(cells: int) -> FloatArray:
    """Fine near both ends, down to one unit of rounding before 1."""
    body = np.sin(0.5 * np.pi * np.linspace(0.0, 1.0, cells + 1)) ** 2
    return np.unique(np.concatenate([body, 1.0 - 2.0 ** -np.arange(20.0, 50.0, 0.25), [1.0]]))


def cell_bounds(
    at: FloatArray, values: FloatArray, slopes: FloatArray, phi: Function, at_steepest: float
) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds of the integral of phi(|f'|) over each cell.

    `at_steepest` is lim phi(x)/x: the slope of the chord where |f'(0)| is infinite.
    """
    _check_tradeoff(at, values, slopes)
    widths = np.diff(at)
    steep, gentle = slopes[:-1], slopes[1:]
    mean = np.clip(-np.diff(values) / widths, gentle, steep)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lower = widths * phi(mean)
        share = np.where(steep > gentle, (mean - gentle) / (steep - gentle), 1.0)
        high_end = np.where(share > 0.0, share * phi(steep), 0.0)
        low_end = np.where(share < 1.0, (1.0 - share) * phi(gentle), 0.0)
        beyond = np.where(mean > gentle, (mean - gentle) * at_steepest, 0.0) + phi(gentle)
        upper = widths * np.where(np.isinf(steep), beyond, high_end + low_end)
    return lower, upper


def _check_tradeoff(at: FloatArray, values: FloatArray, slopes: FloatArray) -> None:
    falling = np.all(np.diff(values) <= 1e-12) and np.all(np.diff(slopes) <= 1e-9 * slopes[:-1])
    below = np.all(values <= 1.0 - at + 1e-12)
    if not (falling and below) or np.isnan(values).any() or np.isnan(slopes).any():
        raise InvalidInput(
            "A trade-off function is convex, non-increasing and at most 1 - type_i, and `slope` is "
            "the size of its derivative, so it does not increase; the functions given do not "
            "behave like that. Pass f and |f'| of T(P, Q)."
        )
