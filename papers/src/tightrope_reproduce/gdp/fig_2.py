"""Figure 2: epsilon and delta by the central limit theorem and by the moments accountant.

MNIST with noise 0.7 and rate 256/60000. Top: delta over epsilon after 15 and after 45 epochs (the
text does not state the epochs of these panels; 45 is Table 1's, 15 a third of it). Bottom: epsilon
at delta = 1e-5 over the epochs, and over the noise after 45 epochs. The exact curve, which the
paper had not, lies above the central limit theorem's wherever delta is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tightrope.numerics.interval import Interval
from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.analyses import Analyses, epochs_of
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

NOISE, DELTA, EPOCHS = 0.7, 1e-5, (15, 45)
HEADS = ("panel", "x", "clt", "moments", "exact_lower", "exact_upper")
Point = tuple[float, float, float, Interval]  # x; by the CLT, the moments accountant, exactly


def run(setting: Setting) -> Outcome:
    points = setting.points(full=40, quick=6)
    profiles = [_profile(Analyses(epochs_of(n, NOISE)), points) for n in EPOCHS]
    epochs = np.linspace(2, 70, points)
    noises = np.linspace(0.55, 1.3, points)
    panels = {
        f"delta over epsilon, {EPOCHS[0]} epochs": profiles[0],
        f"delta over epsilon, {EPOCHS[1]} epochs": profiles[1],
        "epsilon over epochs": [_epsilon(n, epochs_of(n, NOISE)) for n in epochs],
        "epsilon over noise": [_epsilon(s, epochs_of(EPOCHS[1], s)) for s in noises],
    }
    rows = [
        (name, x, clt, moments, exact.lower, exact.upper)
        for name, curve in panels.items()
        for x, clt, moments, exact in curve
    ]
    lines = (_below(panels), *(_broken(name, curve) for name, curve in panels.items()))
    return Outcome(lines, (Table("curves", HEADS, rows),), (_picture(panels),))


def _profile(analyses: Analyses, points: int) -> list[Point]:
    epsilons = np.linspace(0.25, 1.05, points) * analyses.moments_epsilon(DELTA)
    return [
        (e, analyses.clt.delta(e), analyses.moments_delta(e), analyses.delta(e)) for e in epsilons
    ]


def _epsilon(x: float, run: Any) -> Point:
    analyses = Analyses(run)
    exact = analyses.epsilon(DELTA)
    return x, analyses.clt.epsilon(DELTA), analyses.moments_epsilon(DELTA), exact


def _below(panels: dict[str, list[Point]]) -> Line:
    held = all(clt < moments for curve in panels.values() for _, clt, moments, _ in curve)
    return Line(
        "the CLT's curve is below the moments accountant's at every point",
        "consistently",
        "at every point" if held else "not at every point",
        None,
        Verdict.REPRODUCED if held else Verdict.DIFFERS,
        "" if held else "the curves cross",
    )


def _broken(name: str, curve: list[Point]) -> Line:
    """Where the estimate promises less than the truth."""
    worst = max(curve, key=lambda point: point[3].lower / point[1])
    x, clt, _, exact = worst
    broken = sum(truth.lower > estimate for _, estimate, _, truth in curve)
    return Line(
        f"{name}: CLT where it is furthest below the truth, at {x:.3g}",
        "a sharper guarantee",
        clt,
        exact,
        Verdict.INVALID,
        f"the limit is no bound at finitely many steps: the truth exceeds it at {broken} of "
        f"{len(curve)} points",
        objection=Objection.LIMIT,
    )


def _picture(panels: dict[str, list[Point]]) -> Picture:
    def draw(axes: Any) -> None:
        for each, (name, curve) in zip(np.ravel(axes), panels.items(), strict=True):
            _draw_panel(each, name, curve)
        axes[1, 0].legend(fontsize=8)

    caption = (
        "Noise 0.7, rate 256/60000; delta = 1e-5 in the bottom panels. The exact curves are "
        "certified to ten digits: their bands are thinner than the lines."
    )
    return Picture("curves", caption, draw, columns=2, rows=2, width=4.6, height=3.4)


def _draw_panel(axes: Any, name: str, curve: list[Point]) -> None:
    x = [point[0] for point in curve]
    lower, upper = [p[3].lower for p in curve], [p[3].upper for p in curve]
    axes.plot(x, [p[2] for p in curve], "--", color=COLOURS["bound"], label="moments accountant")
    axes.plot(x, upper, color=COLOURS["exact"], label="exact, certified")
    axes.fill_between(x, lower, upper, color=COLOURS["exact"])
    axes.plot(x, [p[1] for p in curve], ":", color=COLOURS["estimate"], label="CLT (estimate)")
    _LABELS[name.split(",")[0]](axes)
    axes.set_title(name if "," in name else f"{name}, delta = 1e-5", fontsize=10)


def _logarithmic(axes: Any) -> None:
    axes.set(xlabel="epsilon (nats)", ylabel="delta", yscale="log", ylim=(1e-8, 1))
    axes.minorticks_off()


_LABELS: dict[str, Callable[[Any], Any]] = {
    "delta over epsilon": _logarithmic,
    "epsilon over epochs": lambda axes: axes.set(xlabel="epochs", ylabel="epsilon (nats)"),
    "epsilon over noise": lambda axes: axes.set(
        xlabel="noise multiplier (noise / clip norm)", ylabel="epsilon (nats)"
    ),
}

ITEM = Item("gdp-fig-2", PAPER, "Fig. 2: epsilon and delta by CLT and MA", run)
