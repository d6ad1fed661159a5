"""Candidates of correlated noise as plain data, and the noise that each leaves, as a picture.

Schema `tightrope.correlated/1`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope.accounting import account
from tightrope.choosing import Candidate, Choice
from tightrope.process.codec import to_json
from tightrope.report.account_view import certified_view
from tightrope.report.style import COLOURS, figure, save
from tightrope.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["correlated_view", "correlated_plot", "noise_axes"]

SCHEMA = "tightrope.correlated/1"
_UNIT = (
    "error: the standard deviation of the noise in one coordinate of the sum of all mean gradients "
    "so far, in clip norms; root mean square over the steps. Sizes of gradients are not in it."
)
_DRAWN = 4


def correlated_view(choice: Choice, target: Target, delta: float) -> dict[str, Any]:
    """Every candidate with its noise and its error; the process of the best one runs it."""
    found = [account(one.process).guarantee(delta) for one in choice.candidates]
    epsilons = [one.loss_known(one.epsilon(delta)) for one in found]
    worst = max(range(len(found)), key=lambda i: epsilons[i].upper)
    return {
        "schema": SCHEMA,
        "target": {"epsilon": target.epsilon, "delta": target.delta},
        "delta": delta,
        "epsilon": certified_view(epsilons[worst], found[worst].two_sided),
        "candidates": [_row(one) for one in choice.candidates],
        "white": _row(choice.white),
        "unit": _UNIT,
    }


def _row(one: Candidate) -> dict[str, Any]:
    return {
        "name": one.name,
        "strategy": str(one.strategy),
        "noise_multiplier": one.noise_multiplier,
        "error": one.error,
        "buffers": one.buffers,
        "process": to_json(one.process),
    }


def correlated_plot(choice: Choice, path: str | Path) -> Path:
    """Left: the noise in the model at each step. Right: the error of every candidate."""
    with figure(columns=2, width=5.6) as (made, (left, right)):
        shown = {one.name: one.by_step for one in choice.candidates[:_DRAWN]}
        noise_axes(left, {**shown, choice.white.name: choice.white.by_step})
        names = [one.name for one in choice.candidates]
        colours = [COLOURS["plain" if one == choice.white.name else "exact"] for one in names]
        right.barh(names, [one.error for one in choice.candidates], color=colours)
        right.invert_yaxis()
        right.set(xlabel="error (clip norms)", title="Root mean square over the steps")
        right.tick_params(axis="y", labelsize=7)
        made.tight_layout()
        return save(made, path)


def noise_axes(axes: Axes, by_step: dict[str, tuple[float, ...]]) -> None:
    """The noise that is left in the model after each step; the last of them is the plain one."""
    colours = [c for name, c in COLOURS.items() if name != "plain"]
    *others, plain = by_step
    for name, colour in zip(others, colours, strict=False):
        axes.plot(range(1, len(by_step[name]) + 1), by_step[name], color=colour, label=name)
    steps = range(1, len(by_step[plain]) + 1)
    axes.plot(steps, by_step[plain], ":", color=COLOURS["plain"], label=plain)
    axes.set(xlabel="step", ylabel="noise in the model (clip norms)", title="Noise that is left")
    axes.legend(fontsize=8)
