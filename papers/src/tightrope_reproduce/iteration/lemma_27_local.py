"""Amplification by iteration, Lemma 27: local privacy of one noisy gradient.

"For every epsilon, delta > 0 the noise 2 L sqrt(2 ln(1.25/delta))/epsilon gives local
(epsilon, delta)-DP." The formula is proved for epsilon < 1. Drawn: the true delta of that noise
over the claimed one; above the line the promise is broken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tightrope.guarantee import gaussian as profile
from tightrope.numerics.roots import crossing
from tightrope.process.convex import ConvexLoss, LocalGradient
from tightrope.report.style import COLOURS
from tightrope.theorems.last_iterate.descent import HiddenLocal
from tightrope_reproduce.formulas.gaussian_noise import analytic_noise, classical_noise
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

DELTAS = (1e-3, 1e-5, 1e-8)
LOSS = ConvexLoss(1.0, math.inf)  # Lemma 27 needs no smoothness
_PROVED = 0.5  # an epsilon at which the classical formula is proved


def run(setting: Setting) -> Outcome:
    epsilons = np.linspace(0.25, 12.0, setting.points(full=160, quick=24))
    rows = [
        (delta, epsilon, printed_noise(epsilon, delta), true_delta(epsilon, delta), exact)
        for delta in DELTAS
        for epsilon, exact in zip(
            epsilons, analytic_noise(epsilons, delta, 2.0 * LOSS.lipschitz), strict=True
        )
    ]
    columns = ("delta", "epsilon", "noise_printed", "true_delta", "noise_exact")
    lines = (*map(_limit, DELTAS), _less_noise())
    return Outcome(lines, (Table("local", columns, rows),), (_picture(rows),))


def printed_noise(epsilon: float, delta: float) -> float:
    """The formula at any epsilon; the library refuses it where it is not proved."""
    return classical_noise(_PROVED, delta, 2.0 * LOSS.lipschitz) * _PROVED / epsilon


def true_delta(epsilon: float, delta: float) -> float:
    sent = HiddenLocal.guarantee(LocalGradient(LOSS, printed_noise(epsilon, delta)))
    return sent.delta(epsilon).upper


def _limit(delta: float) -> Line:
    """The largest epsilon up to which the formula's delta is met."""

    def broken(inverse: float) -> float:
        epsilon = 1.0 / inverse
        mu = 2.0 * LOSS.lipschitz / printed_noise(epsilon, delta)
        return float(profile.log_delta(epsilon, mu)) - math.log(delta)

    found = crossing(broken, guess=1.0 / 8.0, smallest=1.0 / 20.0, largest=1.0)
    limit = 1.0 / found.below
    return Line(
        f"largest epsilon at which Lemma 27's noise is enough, delta {delta:g}",
        claim=math.inf,
        ours=limit,
        truth=limit,
        verdict=Verdict.INVALID,
        objection=Objection.CLASSICAL,
        because="stated for every epsilon; the classical Gaussian formula is proved for epsilon "
        "below 1, true up to our number and false above it",
    )


def _less_noise() -> Line:
    epsilon, delta = 1.0, 1e-5
    return Line(
        f"noise for local ({epsilon:g}, {delta:g})-DP, L = 1",
        claim=printed_noise(epsilon, delta),
        ours=float(analytic_noise(epsilon, delta, 2.0 * LOSS.lipschitz)),
        truth=2.0 * LOSS.lipschitz / profile.mu_bounds(epsilon, delta).lower,
        verdict=Verdict.BEYOND,
        because="the exact Gaussian profile asks for less noise wherever the formula holds",
    )


def _picture(rows: Any) -> Picture:
    def draw(axes: Any) -> None:
        colours = (COLOURS["estimate"], COLOURS["bound"], COLOURS["other"])
        for delta, colour, line in zip(DELTAS, colours, ("-", "--", "-."), strict=True):
            points = np.array([(row[1], row[3] / delta) for row in rows if row[0] == delta])
            axes.plot(*points.T, line, color=colour, label=f"delta = {delta:g}")
        axes.axhline(1.0, color=COLOURS["attack"], linewidth=1, label="promise broken above")
        axes.axvspan(0.0, 1.0, color=COLOURS["exact"], alpha=0.15, label="proved (epsilon < 1)")
        axes.set(yscale="log", ylim=(1e-6, 20.0), xlim=(0.0, 12.0))
        axes.set(xlabel="epsilon", ylabel="true delta / claimed delta")
        axes.set_title("Noise 2 L sqrt(2 ln(1.25/delta))/epsilon")
        axes.legend(fontsize=8, loc="lower right")

    caption = "True delta of Lemma 27's noise over the claimed one (certified upper ends)."
    return Picture("local", caption, draw)


ITEM = Item(
    "iteration-lemma-27",
    "Privacy Amplification by Iteration",
    "Lemma 27: local privacy of one gradient",
    run,
)
