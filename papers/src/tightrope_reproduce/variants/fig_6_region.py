"""Three Variants, Fig. 6: the privacy region of the Gaussian mechanism, noise 1.

The lower boundary of the region (the trade-off function) and that of the larger region that its
(1, delta)-DP alone describes; then Remark 2: all (epsilon, delta) pairs together give it back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.guarantee import gaussian as profile
from tightrope.report.style import COLOURS
from tightrope_reproduce.formulas import area
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff
from tightrope_reproduce.tradeoff.hull import intersection
from tightrope_reproduce.variants.noisy_sgd import PAPERS

MU, EPSILON = 1.0, 1.0
FAMILY = np.linspace(0.0, 8.0, 81)


def run(setting: Setting) -> Outcome:
    type_i = np.linspace(0.0, 1.0, setting.points(full=201, quick=41))
    region = GaussianTradeoff(MU)
    pair = ApproxTradeoff(EPSILON, float(profile.delta_bounds(EPSILON, MU)[1]))
    family = intersection([(e, float(profile.delta_bounds(e, MU)[1])) for e in FAMILY])
    curves = {"exact": region(type_i), "one_pair": pair(type_i), "all_pairs": family(type_i)}
    rows = list(zip(type_i, *curves.values(), strict=True))
    table = Table("boundaries", ("type_i", *curves), rows)
    return Outcome(_lines(curves), (table,), (_picture(type_i, curves),))


def _lines(curves: dict[str, Any]) -> tuple[Line, ...]:
    touch = GaussianTradeoff(MU).tangent(np.array(EPSILON))
    delta = profile.delta_bounds(EPSILON, MU)
    gap = GaussianTradeoff(MU)(float(touch[0])) - ApproxTradeoff(EPSILON, delta.upper)(
        float(touch[0])
    )
    outer = bool(np.all(curves["one_pair"] <= curves["exact"] + 1e-12))
    return (
        Line(
            f"delta of the Gaussian mechanism at epsilon {EPSILON:g} (40)",
            claim="(40)",
            ours=profile.delta(EPSILON, MU),
            truth=delta,
            verdict=Verdict.REPRODUCED,
        ),
        Line(
            f"gap between the two curves at type I error {float(touch[0]):.4f}, where they touch",
            claim=0.0,
            ours=gap,
            truth=0.0,
            verdict=Verdict.REPRODUCED if outer and gap < 1e-12 else Verdict.INVALID,
            because="" if outer and gap < 1e-12 else "the two boundaries do not touch",
        ),
        Line(
            "area of the privacy region",
            claim=f"{area.of_approx(EPSILON, delta.upper):.4g} by (1, delta)-DP alone (drawn)",
            ours=area.of_gaussian(MU),
            truth=area.of_gaussian(MU),
            verdict=Verdict.REPRODUCED,
        ),
        Line(
            f"largest gap when {FAMILY.size} pairs (epsilon, delta) are used (Remark 2)",
            claim="0 with all pairs",
            ours=float(np.max(curves["exact"] - curves["all_pairs"])),
            truth=0.0,
            verdict=Verdict.REPRODUCED,
        ),
    )


def _picture(type_i: Any, curves: dict[str, Any]) -> Picture:
    def draw(axes: Any) -> None:
        axes.fill_between(type_i, curves["exact"], 1 - type_i, color=COLOURS["exact"], alpha=0.15)
        axes.plot(type_i, 1 - type_i, color=COLOURS["plain"], linewidth=0.8, label="guessing")
        axes.plot(type_i, curves["exact"], color=COLOURS["exact"], label="exact boundary")
        name = "(1, delta)-DP alone"
        axes.plot(type_i, curves["one_pair"], "--", color=COLOURS["bound"], label=name)
        name = f"{FAMILY.size} pairs (epsilon, delta)"
        axes.plot(type_i, curves["all_pairs"], ":", color=COLOURS["other"], linewidth=3, label=name)
        axes.set(xlabel="type I error", ylabel="type II error", xlim=(0, 1), ylim=(0, 1))
        axes.set_aspect("equal")
        axes.set_title("Gaussian mechanism, noise 1")
        axes.legend(fontsize=8)

    return Picture(
        "boundaries",
        "Errors that no test can beat. One (epsilon, delta) pair describes a larger region that "
        "touches the true one at two points; many pairs together describe it exactly.",
        draw,
        width=5.0,
        height=4.6,
    )


ITEM = Item("variants-fig-6", PAPERS, "Fig. 6: privacy region of a Gaussian mechanism", run)
