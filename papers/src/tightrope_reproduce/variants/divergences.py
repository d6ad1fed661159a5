"""Eq. (2)/(5), (112), Remark 1 and Appendix E: f-divergences, and privacy with epsilon 0.

(112) gives every f-divergence from the trade-off function. Remark 1: Renyi DP alone can give
(0, delta)-DP, which Theorem 1 never does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from tightrope.guarantee.renyi.closed_forms import classical_delta, lemma1_delta
from tightrope.guarantee.renyi.optimal import optimal_delta
from tightrope.report.style import COLOURS
from tightrope_reproduce.formulas.proposition1 import gaussian_tail
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.tradeoff.divergence import (
    CHI_SQUARED,
    HELLINGER,
    KULLBACK_LEIBLER,
    TOTAL_VARIATION,
    Generator,
    of_tradeoff,
)
from tightrope_reproduce.variants.noisy_sgd import PAPERS

MU = 1.0
ORDER, GAMMA = 4.0, 0.2
DENSITIES = {  # closed forms of N(0, 1) against N(MU, 1)
    KULLBACK_LEIBLER: 0.5 * MU * MU,
    CHI_SQUARED: math.expm1(MU * MU),
    TOTAL_VARIATION: 2.0 * float(ndtr(0.5 * MU)) - 1.0,
    HELLINGER: -2.0 * math.expm1(-MU * MU / 8.0),
}


def run(setting: Setting) -> Outcome:
    rows = [(g.name, *_of_tradeoff(g, setting), exact) for g, exact in DENSITIES.items()]
    gammas = np.linspace(0.01, 0.6, setting.points(full=60, quick=12))
    least = [(float(g), smallest_delta(ORDER, float(g))) for g in gammas]
    tables = (
        Table("divergences", ("divergence", "lower", "upper", "densities"), rows),
        Table("epsilon_zero", ("gamma", "smallest_delta"), least),
    )
    lines = (*(_line(row) for row in rows), *_remark_1())
    return Outcome(lines, tables, (_picture(least),))


def _of_tradeoff(generator: Generator, setting: Setting) -> tuple[float, float]:
    found = of_tradeoff(
        generator,
        lambda t: ndtr(ndtri(1.0 - t) - MU),
        lambda t: np.exp(MU * ndtri(1.0 - t) - 0.5 * MU * MU),
        cells=setting.points(full=4096, quick=1024),
        tail=lambda t: gaussian_tail(MU)(2.0, t),  # t ln t and (t - 1)^2 are below t^2
    )
    return found.lower, found.upper


def _line(row: tuple[Any, ...]) -> Line:
    name, lower, upper, exact = row
    held = lower <= exact <= upper
    return Line(
        f"(112): {name} of the Gaussian mechanism, noise 1, from its trade-off function",
        claim=exact,
        ours=0.5 * (lower + upper),
        truth=exact,
        verdict=Verdict.REPRODUCED if held else Verdict.INVALID,
        because=f"enclosed to {upper - lower:.2g}; the claim is the closed form of (2)",
    )


def smallest_delta(order: float, gamma: float) -> float:
    """Remark 1 and Appendix E: the least delta at epsilon 0 that Lemma 1 gives."""
    return float(lemma1_delta(order, gamma, 0.0))


def _remark_1() -> tuple[Line, ...]:
    """delta in [zeta e^{(a-1) gamma}, 1/a] needs gamma < ln(a/(a-1)); above 1/a, 1 - e^-gamma."""
    zeta = (1.0 - 1.0 / ORDER) ** (ORDER - 1.0) / ORDER
    first = zeta * math.exp((ORDER - 1.0) * GAMMA)
    large = 0.5  # above ln(4/3): the second case
    second = max(-math.expm1(-large), 1.0 / ORDER)
    least = float(optimal_delta(ORDER, GAMMA, 0.0, sides=1).upper)
    infinite = float(classical_delta(ORDER, GAMMA, 0.0))
    return (
        Line(
            f"Remark 1: delta at epsilon 0 of ({ORDER:g}, {GAMMA})-Renyi DP",
            claim=first,
            ours=smallest_delta(ORDER, GAMMA),
            truth=least,
            verdict=Verdict.REPRODUCED
            if math.isclose(smallest_delta(ORDER, GAMMA), first, rel_tol=1e-9)
            else Verdict.DIFFERS,
            because=f"Theorem 1 gives {infinite:.3g}: nothing; the optimum (Theorem 3) is smaller",
        ),
        Line(
            f"Appendix E: delta at epsilon 0 of ({ORDER:g}, {large})-Renyi DP, order * delta > 1",
            claim=second,
            ours=smallest_delta(ORDER, large),
            truth=float(optimal_delta(ORDER, large, 0.0, sides=1).upper),
            verdict=Verdict.REPRODUCED
            if math.isclose(smallest_delta(ORDER, large), second, rel_tol=1e-9)
            else Verdict.DIFFERS,
            because="1 - e^-gamma, exact for one direction",
        ),
    )


def _picture(least: list[tuple[float, float]]) -> Picture:
    def draw(axes: Any) -> None:
        gamma, delta = np.transpose(least)
        best = [float(optimal_delta(ORDER, g, 0.0, sides=1).upper) for g in gamma]
        axes.plot(gamma, delta, "--", color=COLOURS["bound"], label="Lemma 1 (Remark 1)")
        axes.plot(gamma, best, color=COLOURS["exact"], label="optimum (Theorem 3)")
        axes.axvline(math.log(ORDER / (ORDER - 1.0)), color=COLOURS["plain"], linewidth=0.8)
        axes.set(xlabel="gamma (Renyi level, nats)", ylabel="delta at epsilon 0")
        axes.set_title(f"Total variation from Renyi DP of order {ORDER:g}")
        axes.legend(fontsize=8)

    caption = (
        "(0, delta)-DP from Renyi DP alone; left of the line by Remark 1, right by Appendix E."
    )
    return Picture("epsilon_zero", caption, draw)


ITEM = Item("variants-divergences", PAPERS, "(2), (112), Remark 1: f-divergences, epsilon 0", run)
