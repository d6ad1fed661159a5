"""Table 1: NoisySGD on MNIST, six settings, and their privacy analyses at delta = 1e-5."""

from __future__ import annotations

import math
from typing import Any

from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.table import PAPER, Row, outcome, twin_of
from tightrope_reproduce.gdp.trained import trained
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Printed, Setting, check
from tightrope_reproduce.learning.paper import CLAIMS, TABLE_1
from tightrope_reproduce.learning.result import Summary

RATIOS = Printed(1212.0), Printed(159.1)


def run(setting: Setting) -> Outcome:
    return outcome(TABLE_1, setting, "test accuracy (%)", 0.3, _pictures, _ratios())


def _ratios() -> tuple[Line, ...]:
    """Section 4.1's "likelihood ratios" of the third row."""
    printed = CLAIMS["mnist-0.7"]
    pairs = ((RATIOS[0], printed.moments_epsilon), (RATIOS[1], printed.clt_epsilon))
    return tuple(
        check(f"e^{epsilon:.2f}, the worst likelihood ratio", claim, math.exp(epsilon), 0.1)
        for claim, epsilon in pairs
    )


def _pictures(rows: list[Row], setting: Setting) -> tuple[Picture, ...]:
    """Accuracy against what it costs, by each analysis."""
    found = [] if setting.quick else [trained(row.recipe, setting) for row in rows]
    twin = None if setting.quick else trained(twin_of(rows[0].recipe), setting)

    def draw(axes: Any) -> None:
        for number, row in enumerate(rows):
            _costs(axes, row, named=number == 0)
        _ours(axes, rows, found)
        if isinstance(twin, Summary):
            axes.axhline(twin.mean, color=COLOURS["plain"], linestyle=":")
            axes.annotate("without privacy", (0.8, twin.mean), (0, -13), textcoords="offset points")
        axes.set(xscale="log", xlabel="epsilon (nats) at delta = 1e-5", ylabel="accuracy (%)")
        axes.set_xticks([1, 2, 5, 10, 20, 30], ["1", "2", "5", "10", "20", "30"])
        axes.minorticks_off()
        axes.set_title("MNIST: accuracy, and what it really costs")
        axes.legend(fontsize=8, loc="lower right")

    caption = (
        "Each of the six settings at its accuracy: the epsilon claimed by the central limit "
        "theorem, the exact one (certified to ten digits, so its band is invisible), and the "
        "moments accountant's. Rings: the paper's accuracy; dots with bars: ours, mean and "
        "standard deviation over the runs."
    )
    return (Picture("accuracy", caption, draw),)


def _costs(axes: Any, row: Row, named: bool) -> None:
    """One setting: a line from the smallest to the largest epsilon said of it."""
    printed, accuracy = CLAIMS[row.recipe.name], row.recipe.claim
    claims = (printed.clt_epsilon, row.exact.upper, printed.moments_epsilon)
    looks = (("<", "estimate", "CLT (claimed)"), ("o", "exact", "exact"), (">", "bound", "MA"))
    axes.plot([min(claims), max(claims)], [accuracy] * 2, color=COLOURS["plain"], linewidth=1)
    for epsilon, (marker, kind, name) in zip(claims, looks, strict=True):
        hollow = "none" if kind == "exact" else "full"
        axes.plot(
            epsilon,
            accuracy,
            marker,
            color=COLOURS[kind],
            fillstyle=hollow,
            label=f"{name}, the paper's accuracy" if named else None,
        )


def _ours(axes: Any, rows: list[Row], found: list[Summary | str]) -> None:
    pairs = [(r, f) for r, f in zip(rows, found, strict=False) if isinstance(f, Summary)]
    if pairs:
        axes.errorbar(
            [row.exact.upper for row, _ in pairs],
            [summary.mean for _, summary in pairs],
            yerr=[summary.deviation for _, summary in pairs],
            fmt="o",
            color=COLOURS["exact"],
            capsize=3,
            label="exact, our accuracy",
        )


ITEM = Item("gdp-table-1", PAPER, "Table 1: MNIST", run, ("table-1",))
