"""Three Variants, Fig. 7: outer bounds for the privacy region of composed Gaussian mechanisms.

Bound 1 is (52), binary Renyi divergences over all orders; Bound 2 is (53), Kullback-Leibler
divergences; the exact region (51) is that of Gaussian DP. The text does not give the figure's
noise and number of rounds: all three depend on mu = sqrt(rounds)/noise alone, and we draw three.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve
from tightrope.guarantee.renyi.regions import type_ii_of_curve
from tightrope.report.style import COLOURS
from tightrope_reproduce.formulas import area
from tightrope_reproduce.formulas.kullback_leibler import type_ii_kullback_leibler
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.variants.noisy_sgd import PAPERS

MUS = (0.5, 1.0, 2.0)
_COLUMNS = ("mu", "type_i", "exact", "bound_1", "bound_2")


def run(setting: Setting) -> Outcome:
    type_i = np.linspace(0.0, 1.0, setting.points(full=201, quick=41))
    curves = {mu: _curves(mu, type_i) for mu in MUS}
    rows = [
        (mu, *numbers) for mu, each in curves.items() for numbers in zip(type_i, *each, strict=True)
    ]
    lines = tuple(line for mu, each in curves.items() for line in _lines(mu, each))
    return Outcome(lines, (Table("boundaries", _COLUMNS, rows),), (_picture(type_i, curves),))


def _curves(mu: float, type_i: Any) -> tuple[Any, Any, Any]:
    rho = 0.5 * mu * mu
    return (
        profile.tradeoff(type_i, mu),
        type_ii_of_curve(RenyiCurve.of(LinearTerm(rho)), type_i),
        type_ii_kullback_leibler(rho, type_i).lower,
    )


def _lines(mu: float, curves: tuple[Any, Any, Any]) -> tuple[Line, ...]:
    exact, bound_1, bound_2 = curves
    held = bool(np.all(bound_2 <= bound_1 + 1e-9) and np.all(bound_1 <= exact + 1e-9))
    names = ("Bound 1 (52)", "Bound 2 (53)")
    return tuple(
        Line(
            f"largest gap between {name} and the exact boundary, mu {mu:g}",
            claim="outer bound (drawn)",
            ours=float(np.max(exact - bound)),
            truth=f"area {area.of_gaussian(mu):.4g}",
            verdict=Verdict.HOLDS if held else Verdict.INVALID,
            because="" if held else "the three regions are not nested",
        )
        for name, bound in zip(names, (bound_1, bound_2), strict=True)
    )


def _picture(type_i: Any, curves: dict[float, tuple[Any, Any, Any]]) -> Picture:
    def draw(axes: Any) -> None:
        for panel, (mu, (exact, bound_1, bound_2)) in zip(axes, curves.items(), strict=True):
            panel.fill_between(type_i, exact, 1 - type_i, color=COLOURS["exact"], alpha=0.15)
            panel.plot(type_i, 1 - type_i, color=COLOURS["plain"], linewidth=0.8, label="guessing")
            panel.plot(type_i, exact, color=COLOURS["exact"], label="exact (51)")
            panel.plot(type_i, bound_1, "--", color=COLOURS["bound"], label="Bound 1 (52)")
            panel.plot(type_i, bound_2, "-.", color=COLOURS["estimate"], label="Bound 2 (53)")
            panel.set(xlabel="type I error", xlim=(0, 1), ylim=(0, 1), title=f"mu = {mu:g}")
            panel.set_aspect("equal")
        axes[0].set_ylabel("type II error")
        axes[-1].legend(fontsize=8)

    return Picture(
        "boundaries",
        "The exact privacy region (shaded) and the two outer bounds from Renyi DP; mu is "
        "sqrt(rounds)/noise.",
        draw,
        columns=3,
        width=3.6,
        height=3.9,
    )


ITEM = Item("variants-fig-7", PAPERS, "Fig. 7: regions of composed Gaussian mechanisms", run)
