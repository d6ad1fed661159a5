"""delta over epsilon after training: what is claimed, what is proved, what is true."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.table import Row
from tightrope_reproduce.item import Picture, Setting
from tightrope_reproduce.learning.paper import CLAIMS

__all__ = ["profiles"]

NAMES = {"adult": "Adult income", "imdb": "IMDb reviews", "movielens": "MovieLens 1M"}
_CAPTION = (
    "delta over epsilon after training: the exact profile (its certified band, of relative width "
    "below 1e-6, is thinner than the line), the moments accountant, the central limit theorem. "
    "The ring is the printed central-limit guarantee, the cross the true delta at that epsilon."
)


def profiles(rows: list[Row], setting: Setting) -> tuple[Picture, ...]:
    (row,) = rows
    printed = CLAIMS[row.recipe.name]
    points = setting.points(full=60, quick=8)
    epsilons = np.linspace(0.3 * printed.clt_epsilon, 1.1 * printed.moments_epsilon, points)
    exact = [row.analyses.delta(e) for e in epsilons]
    moments = [row.analyses.moments_delta(e) for e in epsilons]
    clt = [row.analyses.clt.delta(e) for e in epsilons]

    def draw(axes: Any) -> None:
        lower, upper = [d.lower for d in exact], [d.upper for d in exact]
        axes.plot(epsilons, moments, "--", color=COLOURS["bound"], label="moments accountant")
        axes.plot(epsilons, upper, color=COLOURS["exact"], label="exact, certified")
        axes.fill_between(epsilons, lower, upper, color=COLOURS["exact"])
        axes.plot(epsilons, clt, ":", color=COLOURS["estimate"], label="CLT (estimate)")
        _mark(axes, row, printed.clt_epsilon)
        axes.set(yscale="log", xlabel="epsilon (nats)", ylabel="delta")
        axes.set_ylim(row.recipe.delta / 300, 1.0)
        axes.minorticks_off()
        axes.set_title(f"{NAMES[row.recipe.task]}: the printed guarantee and the truth")
        axes.legend(fontsize=8)

    return (Picture("profile", _CAPTION, draw),)


def _mark(axes: Any, row: Row, printed: float) -> None:
    truth, delta = row.true_delta.upper, row.recipe.delta
    ring = {"fillstyle": "none", "markersize": 9, "linestyle": "none"}
    cross = {"color": COLOURS["attack"], "markersize": 8, "linestyle": "none"}
    name = f"printed: ({printed:g}, {delta:.0e})"
    axes.plot(printed, delta, "o", color=COLOURS["estimate"], label=name, **ring)
    axes.plot(printed, truth, "X", label=f"truth there: delta = {truth:.1e}", **cross)
    axes.vlines(printed, delta, truth, color=COLOURS["attack"], linewidth=1)
