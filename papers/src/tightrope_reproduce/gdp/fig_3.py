"""Figure 3: type I and type II error of the best attack, for the six models of Table 1.

Drawn as in the paper: G_mu of the central limit theorem, the one pair (epsilon, 1e-5) of the
moments accountant, and all its pairs; and, new, the exact curve between its certified sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.guarantee.approx import tradeoff as approx_tradeoff
from tightrope.numerics.interval import Interval
from tightrope.report.style import COLOURS
from tightrope.validate import FloatArray
from tightrope_reproduce.gdp.analyses import Analyses
from tightrope_reproduce.gdp.band import Band, slopes_up_to, symmetric_band
from tightrope_reproduce.gdp.table import PAPER
from tightrope_reproduce.item import (
    Item,
    Line,
    Objection,
    Outcome,
    Picture,
    Printed,
    Setting,
    Table,
    Verdict,
    check,
)
from tightrope_reproduce.learning.paper import CLAIMS, TABLE_1
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff

SUMS = {
    "clt": Printed(77.6),
    "moments": Printed(9.4),
}  # Section 4.1: least sum of errors at 96.6 % accuracy, in %
FALSE_ALARMS = 1e-4
HEADS = ("model", "type_i", "clt", "moments_one_pair", "moments_all_pairs", "exact_lower")


@final
@dataclass(frozen=True)
class Panel:
    """The curves of one model; `type_i` are the errors at which they are drawn."""

    name: str
    analyses: Analyses
    type_i: FloatArray
    band: Band
    one_pair: FloatArray
    all_pairs: FloatArray

    @property
    def clt(self) -> FloatArray:
        return np.asarray(GaussianTradeoff(self.analyses.mu).type_ii(self.type_i))


def run(setting: Setting) -> Outcome:
    panels = [_panel(recipe, setting) for recipe in TABLE_1]
    rows = [
        (panel.name, *numbers)
        for panel in panels
        for numbers in zip(
            panel.type_i,
            panel.clt,
            panel.one_pair,
            panel.all_pairs,
            panel.band.lower(panel.type_i),
            strict=True,
        )
    ]
    lines = (*_sums(panels[1]), *(_hit_rate(panel) for panel in panels))
    return Outcome(lines, (Table("tradeoff", HEADS, rows),), (_picture(panels),))


def _panel(recipe: Any, setting: Setting) -> Panel:
    analyses, printed = Analyses(recipe.process), CLAIMS[recipe.name]
    points = setting.points(full=80, quick=10)
    slopes = slopes_up_to(analyses.moments_epsilon(1e-4), points)
    band = symmetric_band(slopes, [analyses.delta(e) for e in slopes])
    type_i = np.linspace(0.0, 1.0, setting.points(full=201, quick=41))
    one = approx_tradeoff(type_i, printed.moments_epsilon, recipe.delta)
    pairs = [approx_tradeoff(type_i, *pair) for pair in _pairs(analyses)]
    return Panel(recipe.name, analyses, type_i, band, one, np.max(pairs, axis=0))


def _pairs(analyses: Analyses) -> list[tuple[float, float]]:
    """(epsilon, delta) of the moments accountant, densely."""
    epsilons = np.linspace(0.0, analyses.moments_epsilon(1e-4), 400)
    return [(e, analyses.moments_delta(e)) for e in epsilons]


def _sums(panel: Panel) -> tuple[Line, ...]:
    """The least sum of both errors of the model with 96.6 % accuracy, in %."""
    printed, total = CLAIMS[panel.name], panel.analyses.delta(0.0)  # 1 - total variation
    truth = Interval(100.0 * (1.0 - total.upper), 100.0 * (1.0 - total.lower))
    by_mu = GaussianTradeoff(printed.mu)
    clt = 100.0 * (1.0 - float(by_mu.delta(0.0)))
    pair = 200.0 * (1.0 - 1e-5) / (1.0 + np.exp(printed.moments_epsilon))
    every = 200.0 * max((1.0 - d) / (1.0 + np.exp(e)) for e, d in _pairs(panel.analyses))
    return (
        check("least sum of errors (%), CLT, mu = 0.57", SUMS["clt"], clt, 0.06, truth),
        check(
            "least sum of errors (%), MA's (3.01, 1e-5)",
            Printed(SUMS["moments"]),
            pair,
            0.06,
            truth,
        ),
        Line(
            "least sum of errors (%), all pairs of MA",
            None,
            every,
            truth,
            Verdict.BEYOND,
            "drawn in the paper's second row without a number",
        ),
    )


def _hit_rate(panel: Panel) -> Line:
    """What the drawn curve says of an attack with few false alarms."""
    drawn = 1.0 - panel.analyses.clt.tradeoff(FALSE_ALARMS)
    missed = panel.analyses.account.tradeoff(FALSE_ALARMS)
    truth = Interval(1.0 - missed.upper, 1.0 - missed.lower)
    what = f"{panel.name}: hit rate of the best attack with {FALSE_ALARMS:g} false alarms"
    if truth.lower <= drawn:
        return Line(what, "drawn", drawn, truth, Verdict.HOLDS)
    because = (
        "the drawn G_mu is a limit, no bound: the curves cross, and at few false alarms the best "
        f"attack hits {truth.lower / drawn:.2f} times as often"
    )
    return Line(what, "drawn", drawn, truth, Verdict.INVALID, because, objection=Objection.LIMIT)


def _picture(panels: list[Panel]) -> Picture:
    def draw(axes: Any) -> None:
        for each, panel in zip(np.ravel(axes), panels, strict=True):
            _draw_panel(each, panel)
        axes[0, 0].legend(fontsize=7)

    caption = (
        "Type II against type I error of the best attack on one record. Below a curve no attack "
        "is possible by that analysis; the filled band holds the exact curve."
    )
    return Picture("tradeoff", caption, draw, columns=3, rows=2, width=3.6, height=3.4)


def _draw_panel(axes: Any, panel: Panel) -> None:
    a = panel.type_i
    upper, lower = panel.band.upper(a), panel.band.lower(a)
    axes.fill_between(a, lower, upper, color=COLOURS["exact"], alpha=0.4, linewidth=0)
    axes.plot(a, lower, color=COLOURS["exact"], label="exact, certified")
    axes.plot(a, panel.clt, ":", color=COLOURS["estimate"], label="CLT (estimate)")
    axes.plot(a, panel.all_pairs, "--", color=COLOURS["bound"], label="MA, all pairs")
    axes.plot(a, panel.one_pair, "-.", color=COLOURS["other"], label="MA, delta = 1e-5")
    axes.plot([0, 1], [1, 0], color=COLOURS["plain"], linewidth=0.8)
    axes.set(xlabel="type I error", ylabel="type II error", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(
        f"{panel.name}: exact epsilon {panel.analyses.epsilon(1e-5).upper:.3g}", fontsize=9
    )


ITEM = Item("gdp-fig-3", PAPER, "Fig. 3: trade-off between type I and type II errors", run)
