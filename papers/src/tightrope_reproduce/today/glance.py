"""At a glance: the nine printed central-limit guarantees, what is true, what was safe to say."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.table import Row
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
from tightrope_reproduce.learning.gains import ROWS
from tightrope_reproduce.learning.paper import CLAIMS

HEADS = ("row", "delta", "clt_printed", "exact_lower", "exact_upper", "improved", "moments_printed")


def run(setting: Setting) -> Outcome:
    rows = [Row(recipe) for recipe in ROWS]
    numbers = [_numbers(row) for row in rows]
    return Outcome(_lines(rows), (Table("epsilons", HEADS, numbers),), (_picture(numbers),))


def _numbers(row: Row) -> tuple[Any, ...]:
    printed, delta = CLAIMS[row.recipe.name], row.recipe.delta
    improved = row.analyses.improved_epsilon(delta)
    exact = (row.exact.lower, row.exact.upper)
    return row.recipe.name, delta, printed.clt_epsilon, *exact, improved, printed.moments_epsilon


def _lines(rows: list[Row]) -> tuple[Line, ...]:
    violated = [row for row in rows if row.violated]
    excess = max(row.exact.lower - CLAIMS[row.recipe.name].clt_epsilon for row in violated)
    times = max(row.true_delta.lower / row.recipe.delta for row in violated)
    saved = [1.0 - row.exact.upper / CLAIMS[row.recipe.name].moments_epsilon for row in rows]
    bounded = sum(row.exact.upper <= CLAIMS[row.recipe.name].moments_epsilon for row in rows)
    return (
        Line(
            "printed CLT guarantees that hold, of nine",
            9,
            len(rows) - len(violated),
            None,
            Verdict.INVALID,
            f"the truth exceeds the others, by up to {excess:.3g} in epsilon and a factor of "
            f"{times:.3g} in delta",
            objection=Objection.LIMIT,
        ),
        Line("printed MA guarantees that hold, of nine", 9, bounded, None, Verdict.REPRODUCED),
        Line(
            "epsilon that the exact accountant saves against MA (%), least and most",
            None,
            f"{100 * min(saved):.0f} to {100 * max(saved):.0f}",
            None,
            Verdict.BEYOND,
            "the same runs, certified",
        ),
    )


def _picture(numbers: list[tuple[Any, ...]]) -> Picture:
    names, _, clt, _, exact, improved, moments = zip(*numbers, strict=True)
    labels = [f"{name}   {epsilon:#.3g}" for name, epsilon in zip(names, exact, strict=True)]
    places = np.arange(len(names))[::-1]
    ratios = [100.0 * np.array(values) / np.array(exact) for values in (clt, improved, moments)]
    kinds = ("estimate", "other", "bound")
    words = ("CLT, printed", "improved MA", "moments accountant (MA), printed")

    def draw(axes: Any) -> None:
        axes.axvspan(70, 100, color=COLOURS["attack"], alpha=0.12, linewidth=0)
        axes.annotate("claims privacy that is not there", (99.5, -0.75), ha="right", fontsize=8)
        axes.axvline(100, color=COLOURS["exact"], linewidth=2.5, label="exact, certified")
        for values, kind, name, marker in zip(ratios, kinds, words, "<d>", strict=True):
            axes.hlines(places, 100, values, color=COLOURS[kind], linewidth=1.2)
            axes.plot(values, places, marker, color=COLOURS[kind], label=name, markersize=8)
        axes.set(xlim=(73, 156), ylim=(-1.1, len(names) - 0.5))
        axes.set(xlabel="epsilon said of the run, in % of the true one")
        axes.set_yticks(places, labels)
        axes.set_title("Nine trainings, their true epsilon, and what three analyses say")
        axes.grid(axis="y", visible=False)
        axes.legend(fontsize=8, loc="center right")

    dearer = max(ratios[2]) - 100.0
    caption = (
        "Tables 1 to 4 of Deep Learning with Gaussian Differential Privacy (delta = 1e-5, "
        "MovieLens 1e-6); the true epsilon stands beside each name. Eight of nine printed "
        "central-limit epsilons lie left of the truth; the moments accountant is safe and up to "
        f"{dearer:.0f} % too high. Exact values are certified to ten digits: their bands cannot "
        "be seen."
    )
    return Picture("glance", caption, draw, width=7.6, height=4.4)


ITEM = Item("glance", "At a glance", "Exact, moments accountant, central limit theorem", run)
