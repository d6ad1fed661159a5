"""Figure 5 (Appendix A): numerical composition against the limit, after one epoch.

The second row of Table 1 (noise 1.1, 60 epochs) squeezed into the 234 steps of one epoch, with the
rate raised so that rate sqrt(steps) stays the same: f = (p G_{1/noise} + (1 - p) Id)^{x 234} and
G_mu. "The two are almost identical": on the paper's axes yes; where few false alarms are allowed,
which is where (epsilon, 1e-5) is decided, no.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.analyses import Analyses
from tightrope_reproduce.gdp.band import Band, one_way_band, slopes_up_to
from tightrope_reproduce.gdp.table import PAPER
from tightrope_reproduce.item import (
    Item,
    Line,
    Objection,
    Outcome,
    Picture,
    Setting,
    Table,
    Verdict,
)
from tightrope_reproduce.learning.paper import TABLE_1
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff

STEPS, DELTA = 234, 1e-5
HEADS = ("type_i", "clt", "exact_lower", "exact_upper")


def squeezed() -> NoisySGD:
    """One epoch's steps with the same rate sqrt(steps) as all sixty."""
    full = TABLE_1[1].process
    assert full is not None
    rate = full.sampling.rate * math.sqrt(full.steps / STEPS)
    return NoisySGD(PoissonSampling(rate), full.noise_multiplier, STEPS)


def run(setting: Setting) -> Outcome:
    analyses = Analyses(squeezed())
    band = _band(analyses, setting.points(full=120, quick=24))
    type_i = np.r_[np.geomspace(1e-7, 0.01, 60)[:-1], np.linspace(0.01, 1.0, 100)]
    limit = np.asarray(GaussianTradeoff(analyses.mu).type_ii(type_i))
    curves = (type_i, limit, band.lower(type_i), band.upper(type_i))
    lines = (_identical(curves), _tail(analyses))
    table = Table("tradeoff", HEADS, np.stack(curves, axis=1).tolist())
    return Outcome(lines, (table,), (_picture(curves),))


def _band(analyses: Analyses, points: int) -> Band:
    """f itself, of one order of the neighbours; tangents down to delta = 1e-9."""
    guarantee = analyses.account.guarantee(DELTA)
    assert isinstance(guarantee, LossGuarantee)
    remove, add = (LossGuarantee((order,)) for order in guarantee.orders)
    slopes = slopes_up_to(analyses.epsilon(1e-9).upper, points)
    return one_way_band(slopes, [remove.delta(e) for e in slopes], [add.delta(e) for e in slopes])


def _identical(curves: Any) -> Line:
    _, limit, lower, upper = curves
    gap = float(np.max(np.maximum(upper - limit, limit - lower)))
    return Line(
        "largest distance between f after one epoch and G_mu (type II error)",
        "almost identical",
        gap,
        None,
        Verdict.REPRODUCED if gap < 0.02 else Verdict.DIFFERS,
        "" if gap < 0.02 else "the curves can be told apart by eye",
    )


def _tail(analyses: Analyses) -> Line:
    clt, truth = analyses.clt.epsilon(DELTA), analyses.epsilon(DELTA)
    times = analyses.delta(clt).lower / DELTA
    return Line(
        "epsilon at delta = 1e-5 of the same two curves",
        "works well",
        clt,
        truth,
        Verdict.INVALID,
        f"curves close in type II error are far apart in delta: at the limit's epsilon the true "
        f"delta is {times:.0f} times 1e-5",
        objection=Objection.LIMIT,
    )


def _picture(curves: Any) -> Picture:
    type_i, limit, lower, upper = curves

    def draw(axes: Any) -> None:
        left, right = axes
        left.plot(type_i, limit, color=COLOURS["estimate"], label="limit G_mu (CLT)")
        left.plot(type_i, lower, "--", color=COLOURS["exact"], label="composed, certified")
        left.fill_between(type_i, lower, upper, color=COLOURS["exact"], alpha=0.4, linewidth=0)
        left.set(xlabel="type I error", ylabel="type II error", title="As printed")
        left.legend(fontsize=8)
        right.plot(type_i, 1 - limit, color=COLOURS["estimate"])
        right.plot(type_i, 1 - lower, "--", color=COLOURS["exact"])
        right.fill_between(type_i, 1 - upper, 1 - lower, color=COLOURS["exact"], alpha=0.4)
        right.set(xscale="log", yscale="log", xlim=(1e-7, 1e-2), ylim=(1e-7, 0.2))
        right.set(xlabel="false alarms (type I error)", ylabel="hit rate (1 - type II error)")
        right.set_title("The same curves where alarms are few")
        right.minorticks_off()

    caption = (
        "(p G_{1/noise} + (1 - p) Id) composed 234 times and its limit; the band holds the exact "
        "curve. Right: with few false alarms the best attack hits more often than the limit says, "
        "and there (epsilon, 1e-5) is decided."
    )
    return Picture("tradeoff", caption, draw, columns=2, width=4.6, height=3.6)


ITEM = Item("gdp-fig-5", PAPER, "Fig. 5: composition against the limit after one epoch", run)
