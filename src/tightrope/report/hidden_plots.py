"""Why the last iterate is private: three pictures of the hidden-state theorems."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tightrope.numerics.hull import minorant
from tightrope.report.style import COLOURS, figure, save
from tightrope.theorems import hidden_cyclic, hidden_full_batch, hidden_langevin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["hidden_state_plot"]

PEOPLE, EPOCHS = 100, 3
STEP_SIZE_TIMES_CONVEXITY = 0.05


def hidden_state_plot(path: str | Path) -> Path:
    """Theorem 23's curve over the index, the hull with its points, and convergence with T."""
    with figure(columns=3, width=5.4) as (made, (left, middle, right)):
        _index_curve(left)
        _hull(middle)
        _convergence(right)
        made.tight_layout()
        return save(made, path)


def _index_curve(axes: Axes) -> None:
    index = np.arange(1, PEOPLE + 1)
    for epochs, colour in ((1, "exact"), (EPOCHS, "bound")):
        mu = np.sqrt(hidden_cyclic.squared_mu(1.0, PEOPLE, epochs, index))
        axes.plot(index, mu, color=COLOURS[colour], label=f"last iterate, {epochs} epoch(s)")
        axes.axhline(
            math.sqrt(epochs), color=COLOURS[colour], linestyle=":", label=f"all iterates, {epochs}"
        )
    axes.set(
        xlabel="position of the record in the pass",
        ylabel="mu (in units of one step)",
        title="Early people are protected most",
        yscale="log",
    )
    axes.legend(fontsize=7)


def _hull(axes: Axes) -> None:
    """Twelve steps, the record used at steps 3, 7 and 11: points and greatest convex minorant."""
    pushes = np.zeros(12)
    pushes[[2, 6, 10]] = 1.0
    tau, total, vertices = minorant(pushes, np.full(12, 0.97), np.ones(12))
    axes.step(tau, total, where="post", color=COLOURS["plain"], linewidth=0.8)
    axes.plot(tau, total, "o", color=COLOURS["plain"], markersize=4, label="steps")
    axes.plot(tau[vertices], total[vertices], "-o", color=COLOURS["exact"], label="lower hull")
    axes.set(xlabel="noise so far", ylabel="influence so far", title="Best shifts = lower hull")
    axes.legend(fontsize=8)


def _convergence(axes: Axes) -> None:
    c = STEP_SIZE_TIMES_CONVEXITY
    steps = np.unique(np.geomspace(1, 1000, 60).astype(int))
    last = [hidden_full_batch.squared_mu(1.0 - c, int(t)) / 2 for t in steps]
    langevin = [hidden_langevin.rho(1.0, c, int(t)) for t in steps]
    axes.plot(steps, steps / 2, ":", color=COLOURS["plain"], label="composition")
    axes.plot(steps, langevin, "--", color=COLOURS["bound"], label="Langevin (Chourasia et al.)")
    axes.plot(steps, last, color=COLOURS["exact"], label="shifted interpolation (exact)")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="steps",
        ylabel="Renyi divergence / order",
        title="Privacy loss stops growing",
    )
    axes.legend(fontsize=8)
