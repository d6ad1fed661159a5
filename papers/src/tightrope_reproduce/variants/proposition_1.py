"""Three Variants, Proposition 1: from the trade-off function to Renyi DP, with a term too many.

(42) adds 1 - beta(0) under the logarithm. Where a mechanism can give itself away (with probability
`leak` its output is impossible without the record) beta(0) = 1 - leak, and the term over-reports.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtri

from tightrope.guarantee import gaussian as profile
from tightrope.numerics.interval import Interval
from tightrope.report.style import COLOURS
from tightrope_reproduce.formulas.proposition1 import gaussian_tail, renyi_of_tradeoff
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.variants.noisy_sgd import PAPERS

ORDERS = (1.5, 2.0, 4.0)
LEAK = 0.1
MU = 1.0
_COLUMNS = ("order", "leak", "printed", "corrected_lower", "corrected_upper", "truth")


def run(setting: Setting) -> Outcome:
    leaks = np.linspace(0.0, 0.5, setting.points(full=51, quick=6))
    rows = [_row(order, float(leak)) for order in ORDERS for leak in leaks]
    lines = (*(_line(_row(order, LEAK)) for order in ORDERS), _gaussian())
    return Outcome(lines, (Table("renyi", _COLUMNS, rows),), (_picture(rows),))


def _row(order: float, leak: float) -> tuple[float, ...]:
    """H0 is the law without the record; the test never errs on the leaked outputs."""
    keep = 1.0 - leak
    found = renyi_of_tradeoff(
        order, lambda t: keep * (1.0 - np.asarray(t)), lambda t: np.full(np.shape(t), keep)
    )
    printed = math.log(leak + math.exp((order - 1.0) * found.upper)) / (order - 1.0)
    return order, leak, printed, *found, -math.log(keep)


def _line(row: tuple[float, ...]) -> Line:
    order, leak, printed, lower, upper, truth = row
    return Line(
        f"Renyi divergence of order {order:g} when a share {leak:g} of the outputs tells",
        claim=printed,
        ours=Interval(lower, upper),
        truth=truth,
        verdict=Verdict.DIFFERS,
        because="the printed term 1 - beta(0) cancels against a mass that its proof leaves out; "
        "without it the formula is exact, with it the divergence is over-reported",
    )


def _gaussian() -> Line:
    """beta(0) = 1: the extra term vanishes."""
    order, truth = 2.0, MU * MU
    found = renyi_of_tradeoff(
        order, lambda t: profile.tradeoff(t, MU), _gaussian_slope, tail=gaussian_tail(MU)
    )
    met = found.lower <= truth <= found.upper
    return Line(
        f"Renyi divergence of order {order:g} of the Gaussian mechanism, noise {1 / MU:g}",
        claim=truth,
        ours=Interval(*found),
        truth=truth,
        verdict=Verdict.REPRODUCED if met else Verdict.DIFFERS,
        because="" if met else "the integral misses the closed form",
    )


def _gaussian_slope(type_i: Any) -> Any:
    """The likelihood ratio at the edge of the best test of this size."""
    with np.errstate(over="ignore"):
        return np.exp(-MU * ndtri(type_i) - 0.5 * MU * MU)


def _picture(rows: list[tuple[float, ...]]) -> Picture:
    def draw(axes: Any) -> None:
        colours = (COLOURS["exact"], COLOURS["bound"], COLOURS["other"])
        numbers = np.array(rows)
        for order, colour in zip(ORDERS, colours, strict=True):
            part = numbers[numbers[:, 0] == order]
            label = f"printed (42), order {order:g}"
            axes.plot(part[:, 1], part[:, 2], "--", color=colour, label=label)
        axes.fill_between(part[:, 1], part[:, 3], part[:, 4], color=COLOURS["plain"], alpha=0.4)
        name = "corrected = truth, every order"
        axes.plot(part[:, 1], part[:, 4], color=COLOURS["plain"], label=name)
        axes.set(xlabel="share of outputs that give the record away", xlim=(0, 0.5), ylim=(0, None))
        axes.set(ylabel="Renyi divergence (nats)", title="The term too many in Proposition 1")
        axes.legend(fontsize=8)

    return Picture(
        "renyi",
        "Where some outputs are impossible without the record, (42) over-reports; without its "
        "extra term it meets -ln(1 - share), to a certified band narrower than the line.",
        draw,
    )


ITEM = Item("variants-proposition-1", PAPERS, "Proposition 1: from trade-off to Renyi DP", run)
