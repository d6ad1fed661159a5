"""A Better Bound, Fig. 1 (Three Variants, Fig. 2 left): the optimal gamma and Theorem 4's bounds.

For three pairs (order, epsilon): the smallest Renyi level gamma at which (epsilon, delta)-DP can
just fail, as a function of delta: exactly (Theorem 3), by the closed bounds of Theorem 4, and for
Renyi DP as it is defined, which bounds both directions. The papers name their pairs only in the
figure's legend, which we do not have: these three are ours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from tightrope.guarantee.renyi.closed_forms import theorem4_gamma
from tightrope.guarantee.renyi.optimal import one_sided_gamma, two_sided_gamma
from tightrope.report.style import COLOURS
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.variants.noisy_sgd import PAPERS

_CLOSE = 0.95  # of the optimum
PAIRS = ((2.0, 1.0), (5.0, 0.1), (10.0, 1.0))
_COLUMNS = ("order", "epsilon", "delta", "gamma_exact", "gamma_theorem_4", "gamma_two_sided")


class Curves(NamedTuple):
    exact: Any
    closed: Any
    two_sided: Any


def run(setting: Setting) -> Outcome:
    count = setting.points(full=100, quick=13)
    deltas = np.unique(np.append(np.geomspace(1e-8, 0.9, count), np.linspace(0.02, 0.9, count)))
    curves = {pair: _curves(pair, deltas) for pair in PAIRS}
    rows = [
        (*pair, *numbers)
        for pair, each in curves.items()
        for numbers in zip(deltas, *each, strict=True)
    ]
    lines = tuple(line for pair, each in curves.items() for line in _lines(pair, each, deltas))
    return Outcome(lines, (Table("gamma", _COLUMNS, rows),), (_picture(curves, deltas),))


def _curves(pair: tuple[float, float], deltas: Any) -> Curves:
    return Curves(
        one_sided_gamma(*pair, deltas).upper,
        theorem4_gamma(*pair, deltas),
        two_sided_gamma(*pair, deltas).lower,
    )


def _lines(pair: tuple[float, float], curves: Curves, deltas: Any) -> tuple[Line, ...]:
    where = f"at order {pair[0]:g}, epsilon {pair[1]:g}"
    held = bool(np.all(curves.closed <= curves.exact))
    share, gain = curves.closed / curves.exact, curves.two_sided / curves.exact
    worst, most = int(share.argmin()), int(gain.argmax())
    close = share[worst] > _CLOSE
    return (
        Line(
            f"largest gap between the optimum and Theorem 4 {where}",
            claim="a lower bound (drawn)",
            ours=_largest_gap(pair, curves, deltas),
            truth=None,
            verdict=Verdict.HOLDS if held else Verdict.INVALID,
            because="" if held else "the bound passes above the optimum",
        ),
        Line(
            f"smallest share of the optimum that Theorem 4 gives {where}",
            claim='"closely approximates"',
            ours=float(share[worst]),
            truth=1.0,
            verdict=Verdict.REPRODUCED if close else Verdict.DIFFERS,
            because=""
            if close
            else "close only on the figure's linear axes, where small gammas look like "
            f"0: at delta {deltas[worst]:.2g} the bound gives this share of the optimum",
        ),
        Line(
            f"Renyi DP bounds both directions: gamma grows by this factor {where}",
            claim="1 (Theorem 3 is called optimal)",
            ours=1.0,
            truth=float(gain[most]),
            verdict=Verdict.BEYOND,
            because=f"Theorem 3 uses one direction only; the largest gain is at delta "
            f"{deltas[most]:.2g}",
        ),
    )


def _largest_gap(pair: tuple[float, float], curves: Curves, deltas: Any) -> float:
    """The maximum itself, searched next to the largest gap on the grid."""
    best = int(np.argmax(curves.exact - curves.closed))
    ends = np.log(deltas[[max(best - 1, 0), min(best + 1, len(deltas) - 1)]])

    def gap(log_delta: float) -> float:
        at = np.exp([log_delta])
        return float(theorem4_gamma(*pair, at)[0] - one_sided_gamma(*pair, at).upper[0])

    return -float(minimize_scalar(gap, bounds=ends, method="bounded").fun)


def _picture(curves: dict[tuple[float, float], Curves], deltas: Any) -> Picture:
    def draw(axes: Any) -> None:
        colours = (COLOURS["exact"], COLOURS["bound"], COLOURS["attack"])
        for ((order, epsilon), each), colour in zip(curves.items(), colours, strict=True):
            for panel in axes:
                name = f"order {order:g}, epsilon {epsilon:g}"
                panel.plot(deltas, each.exact, label=name, color=colour)
                panel.plot(deltas, each.closed, ":", color=colour)
                panel.plot(deltas, each.two_sided, "--", color=colour, linewidth=1)
        for panel, scale in zip(axes, ("linear", "log"), strict=True):
            panel.plot([], [], ":", color=COLOURS["plain"], label="Theorem 4 (bound)")
            panel.plot([], [], "--", color=COLOURS["plain"], label="both directions bounded")
            panel.set(xlabel="delta", ylabel="gamma (Renyi level, nats)", yscale=scale)
            panel.set(xscale=scale, title=f"The same curves on {scale} axes")
        axes[0].legend(fontsize=8)

    return Picture(
        "gamma",
        "The least Renyi divergence that breaks (epsilon, delta)-DP: optimal for one direction "
        "(solid, Theorem 3), Theorem 4's closed bound (dotted), and the larger optimum when both "
        "directions are bounded, as Renyi DP says (dashed).",
        draw,
        columns=2,
        width=5.0,
    )


ITEM = Item("variants-fig-1", PAPERS, "Fig. 1/2: gamma", run)
