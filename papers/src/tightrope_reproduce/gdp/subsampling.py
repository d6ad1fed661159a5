"""Proposition A.1, Lemmas A.2 and B.3, Theorem 6: sampling any f-DP mechanism, and its limit.

Drawn: C_p(f) of an (epsilon, delta)-DP mechanism above the subsampling theorem of approximate
privacy; and how fast a sampled Laplace mechanism, composed, comes to its Gaussian limit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tightrope.report.style import COLOURS
from tightrope_reproduce.formulas.product import tensor
from tightrope_reproduce.formulas.sampled import one_way_sampled, sampled
from tightrope_reproduce.gdp.table import PAPER
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.tradeoff.bracket import TradeoffBracket
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff, LaplaceTradeoff
from tightrope_reproduce.tradeoff.divergence import NEYMAN, of_tradeoff
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff

RATE, EPSILON, DELTA = 0.1, 1.0, 1e-3
LAPLACE, NU = 1.0, 0.5
TYPE_I = np.linspace(0.0, 1.0, 101)


def run(setting: Setting) -> Outcome:
    ours = sampled(ApproxTradeoff(EPSILON, DELTA), RATE).bounds(TYPE_I)[0]
    theirs = ApproxTradeoff(math.log1p(RATE * math.expm1(EPSILON)), RATE * DELTA).type_ii(TYPE_I)
    doublings = (2, 4, 6) if setting.quick else (2, 3, 4, 5, 6, 7, 8)
    gaps = [(2**n, _gap(n)) for n in doublings]
    curves = np.transpose([TYPE_I, ours, theirs]).tolist()
    tables = (
        Table("sampled", ("type_i", "c_p", "theorem"), curves),
        Table("limit", ("steps", "largest_distance"), gaps),
    )
    lines = (_improves(ours - theirs), _chi_squared(), *_limit(gaps))
    return Outcome(lines, tables, (_picture(ours, theirs, gaps),))


def _improves(gain: Any) -> Line:
    held = bool(np.all(gain >= -1e-9) and gain.max() > 1e-6)
    return Line(
        f"largest gain of C_p(f) over sampled ({EPSILON:g}, {DELTA:g})-DP, p = {RATE}",
        claim="strictly improves",
        ours=float(gain.max()),
        truth=None,
        verdict=Verdict.HOLDS if held else Verdict.INVALID,
        because="in type II error; equal where the theorem's line touches, nowhere below it",
    )


def chi_squared() -> float:
    """Lemma B.3 for the Laplace mechanism."""
    curve = LaplaceTradeoff(LAPLACE)

    def slope(type_i: Any) -> Any:
        middle = math.exp(-LAPLACE) / (4.0 * np.maximum(type_i, 1e-9) ** 2)
        return np.clip(middle, math.exp(-LAPLACE), math.exp(LAPLACE))

    found = of_tradeoff(NEYMAN, curve.type_ii, slope)
    return 0.5 * (found.lower + found.upper)


def _chi_squared() -> Line:
    """chi^2(f) = int f'^2 - 1 = E_P (dQ/dP)^2 - 1: (2 e^eps + e^-2 eps)/3 - 1 by the densities."""
    exact = (2.0 * math.exp(LAPLACE) + math.exp(-2.0 * LAPLACE)) / 3.0 - 1.0
    ours = chi_squared()
    held = math.isclose(ours, exact, rel_tol=1e-4)
    return Line(
        f"Lemma B.3: chi^2(f) of the Laplace mechanism, epsilon {LAPLACE:g}",
        claim=exact,
        ours=ours,
        truth=exact,
        verdict=Verdict.REPRODUCED if held else Verdict.INVALID,
        because="" if held else "the integral over f and the densities disagree",
    )


def _gap(doublings: int) -> float:
    """The largest distance between f_p composed 2^doublings times and its limit."""
    resolution = 512
    one = one_way_sampled(LaplaceTradeoff(LAPLACE), NU / math.sqrt(2**doublings), resolution)
    for _ in range(doublings):
        one = TradeoffBracket(
            tensor(one.lower, one.lower, resolution=resolution).lower,
            tensor(one.upper, one.upper, resolution=resolution).upper,
        )
    low, high = one.bounds(TYPE_I)
    limit = GaussianTradeoff(NU * math.sqrt(chi_squared())).type_ii(TYPE_I)
    return float(np.max(np.abs(0.5 * (low + high) - limit)))


def _limit(gaps: list[tuple[int, float]]) -> tuple[Line, ...]:
    steps, distance = np.log(np.transpose(gaps))
    power = float(np.polyfit(steps, distance, 1)[0])
    return (
        Line(
            f"Theorem 6: distance of {gaps[-1][0]} sampled Laplace steps from their limit",
            claim="tends to 0",
            ours=gaps[-1][1],
            truth=None,
            verdict=Verdict.HOLDS if power < -0.3 else Verdict.DIFFERS,
            because=f"nu = {NU}, type II error; it falls like T^{power:.2f}",
        ),
    )


def _picture(ours: Any, theirs: Any, gaps: list[tuple[int, float]]) -> Picture:
    def draw(axes: Any) -> None:
        axes[0].plot(TYPE_I, 1000.0 * (ours - theirs), color=COLOURS["exact"])
        axes[0].set(xlabel="type I error", ylabel="more type II error (thousandths)")
        axes[0].set_title(f"C_p(f) above the theorem, p = {RATE}")
        steps, distance = np.transpose(gaps)
        axes[1].plot(steps, distance, "o-", color=COLOURS["bound"])
        axes[1].set(xscale="log", yscale="log", xlabel="steps T", ylabel="largest distance")
        axes[1].set_title("Sampled Laplace steps and their Gaussian limit")

    caption = (
        f"Left: what sampling a ({EPSILON:g}, {DELTA:g})-DP mechanism hides beyond the subsampling "
        "theorem. Right: Theorem 6 for the Laplace mechanism, p sqrt(T) = 1/2."
    )
    return Picture("sampling", caption, draw, columns=2, width=4.6, height=3.4)


ITEM = Item("gdp-sampling", PAPER, "Proposition A.1, Theorem 6: sampling any mechanism", run)
