"""Three panels: less noise, more rounds, and what they buy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.report.style import COLOURS
from tightrope_reproduce.item import Picture
from tightrope_reproduce.learning.result import Summary
from tightrope_reproduce.today.gain import Gain, Scores, improvement

__all__ = ["gains_picture"]


def gains_picture(gains: list[Gain], scores: list[Scores]) -> Picture:
    names = [gain.row.name for gain in gains]
    places = np.arange(len(gains))[::-1]
    bought = any(isinstance(found, Summary) for _, *after in scores for found in after)

    def draw(axes: Any) -> None:
        _bars(axes[0], places, [gain.less_noise for gain in gains], "bound")
        axes[0].set(xlabel="less noise (%)", title="The same rounds, less noise")
        _bars(axes[1], places, [gain.more_steps for gain in gains], "exact")
        axes[1].set(xlabel="more rounds (%)", title="The same noise, more rounds")
        if bought:
            _draw_scores(axes[2], gains, scores, places)
        for each in axes:
            each.set_yticks(places, names)
            each.grid(axis="y", visible=False)

    caption = (
        "The epsilon that the moments accountant reported for each row, spent with the exact "
        "accountant: the least noise, the most rounds"
        + (
            ", and the change in accuracy (percentage points; for MovieLens the fall of the root "
            "mean squared error in hundredths of a star), bars: 95 % by Student's t."
            if bought
            else "."
        )
    )
    return Picture("gains", caption, draw, columns=3 if bought else 2, width=4.2, height=3.6)


def _bars(axes: Any, places: Any, values: list[float], kind: str) -> None:
    axes.barh(places, values, color=COLOURS[kind], height=0.6)
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            f"{value:.0f}", (value, place), (3, 0), textcoords="offset points", va="center"
        )
    axes.set_xlim(0, 1.15 * max(values))


def _draw_scores(axes: Any, gains: list[Gain], scores: list[Scores], places: Any) -> None:
    looks = (("less noise", "bound", "o", 0.12), ("more rounds", "exact", "s", -0.12))
    for which, (name, kind, marker, shift) in enumerate(looks, 1):
        points = [
            (place + shift, *improvement(gain.row, before, after))
            for gain, found, place in zip(gains, scores, places, strict=True)
            if isinstance(before := found[0], Summary)
            and isinstance(after := found[which], Summary)
        ]
        y, value, error = np.transpose(points) if points else ([], [], [])
        shown = np.where(np.isfinite(error), error, 0.0)
        axes.errorbar(value, y, xerr=shown, fmt=marker, color=COLOURS[kind], label=name)
    axes.axvline(0.0, color=COLOURS["plain"], linewidth=0.8)
    axes.set(xlabel="better by (points)", title="What it buys")
    axes.legend(fontsize=8)
