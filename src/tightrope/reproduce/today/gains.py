"""What you gain today: each row of Tables 1 to 4, with the exact accountant instead of the MA.

The paper reports the moments accountant's epsilon. Whoever accepts that epsilon may spend it
exactly: less noise over the same rounds, or more rounds with the same noise; and train for real.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, final

import numpy as np

from tightrope.accounting import account
from tightrope.numerics.interval import Interval
from tightrope.report.style import COLOURS
from tightrope.reproduce.gdp.trained import spread, trained
from tightrope.reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope.reproduce.learning.gains import ROWS, less_noise, more_rounds
from tightrope.reproduce.learning.paper import CLAIMS
from tightrope.reproduce.learning.recipe import Recipe
from tightrope.reproduce.learning.result import Summary

HEADS = (
    "row",
    "budget_epsilon",
    "delta",
    "noise_paper",
    "noise_allowed",
    "less_noise_percent",
    "steps_paper",
    "steps_allowed",
    "more_steps_percent",
    "score_paper",
    "score_ours",
    "score_less_noise",
    "score_more_rounds",
)


@final
@dataclass(frozen=True)
class Gain:
    """One row, and the two ways to spend what the moments accountant reported for it."""

    row: Recipe

    @property
    def budget(self) -> float:
        return CLAIMS[self.row.name].moments_epsilon

    @cached_property
    def quieter(self) -> Recipe:
        return less_noise(self.row)

    @cached_property
    def longer(self) -> Recipe:
        return more_rounds(self.row)

    @property
    def less_noise(self) -> float:
        """Share of the noise that is not needed, in %."""
        return 100.0 * (
            1.0 - (self.quieter.noise_multiplier or 0.0) / (self.row.noise_multiplier or 1.0)
        )

    @property
    def more_steps(self) -> float:
        """Rounds that come on top, in %."""
        return 100.0 * (self.longer.steps / self.row.steps - 1.0)


def run(setting: Setting) -> Outcome:
    gains = [Gain(row) for row in ROWS]
    scores = [_scores(gain, setting) for gain in gains]
    lines = [line for gain in gains for line in _lines(gain)]
    for gain, found in zip(gains, scores, strict=True):
        lines += _score_lines(gain, found)
    rows = [_numbers(gain, found) for gain, found in zip(gains, scores, strict=True)]
    table = Table("gains", HEADS, rows)
    return Outcome(tuple(lines), (table,), (_picture(gains, scores),))


Found = Summary | str
Scores = tuple[Found, Found, Found]  # as the paper ran it, less noise, more rounds


def _scores(gain: Gain, setting: Setting) -> Scores:
    if setting.quick:
        return ("quick run",) * 3
    before, quieter, longer = (trained(r, setting) for r in (gain.row, gain.quieter, gain.longer))
    return before, quieter, longer


def _lines(gain: Gain) -> tuple[Line, ...]:
    row, budget = gain.row, f"epsilon {gain.budget:g}"
    spent = [_spent(recipe) for recipe in (gain.quieter, gain.longer)]
    return (
        Line(
            f"{row.name}: noise for {budget}",
            row.noise_multiplier,
            gain.quieter.noise_multiplier,
            spent[0],
            Verdict.BEYOND,
            f"{gain.less_noise:.0f} % less noise over the same rounds; the truth column is the "
            "certified epsilon of that run",
        ),
        Line(
            f"{row.name}: rounds for {budget}",
            row.steps,
            gain.longer.steps,
            spent[1],
            Verdict.BEYOND,
            f"{gain.more_steps:.0f} % more rounds with the same noise",
        ),
    )


def _spent(recipe: Recipe) -> Interval:
    assert recipe.process is not None, "rows of the tables are private"
    return account(recipe.process).epsilon(recipe.delta)


def _score_lines(gain: Gain, scores: Scores) -> list[Line]:
    """What the better spent budget buys, on our own runs of the paper's setting."""
    before, *after = scores
    lines = []
    for words, found in zip(("less noise", "more rounds"), after, strict=True):
        what = f"{gain.row.name}: {_unit(gain.row)} with {words}"
        if isinstance(found, str) or isinstance(before, str):
            reason = found if isinstance(found, str) else str(before)
            if reason != "quick run":
                lines.append(Line(what, gain.row.claim, None, None, Verdict.NOT_RUN, reason))
            continue
        change, error = _change(before, found)
        because = (
            f"{change:+.3f} (two standard errors: {error:.3f}) over the same seeds at the paper's "
            f"setting, {spread(before)}"
        )
        lines.append(Line(what, gain.row.claim, spread(found), None, Verdict.BEYOND, because))
    return lines


def _unit(recipe: Recipe) -> str:
    return "root mean squared error" if recipe.task == "movielens" else "accuracy (%)"


def _numbers(gain: Gain, scores: Scores) -> tuple[Any, ...]:
    return (
        gain.row.name,
        gain.budget,
        gain.row.delta,
        gain.row.noise_multiplier,
        gain.quieter.noise_multiplier,
        gain.less_noise,
        gain.row.steps,
        gain.longer.steps,
        gain.more_steps,
        gain.row.claim,
        *(found.mean if isinstance(found, Summary) else None for found in scores),
    )


def _picture(gains: list[Gain], scores: list[Scores]) -> Picture:
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
            "mean squared error in hundredths of a star), bars: two standard errors."
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
            (place + shift, *_improvement(gain.row, before, after))
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


def _improvement(row: Recipe, before: Summary, after: Summary) -> tuple[float, float]:
    """The gain and two standard errors, in points; an error falls where accuracy rises."""
    factor = -100.0 if row.task == "movielens" else 1.0
    change, error = _change(before, after)
    return factor * change, abs(factor) * error


def _change(before: Summary, after: Summary) -> tuple[float, float]:
    """Mean change over the seeds both have (same start, same batches), two standard errors."""
    earlier = {result.seed: result.final for result in before.results}
    changes = [r.final - earlier[r.seed] for r in after.results if r.seed in earlier]
    if not changes:
        return after.mean - before.mean, math.inf
    error = stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else math.inf
    return fmean(changes), 2.0 * error


ITEM = Item(
    "today-gains",
    "What you gain today",
    "Tables 1 to 4 with the exact accountant",
    run,
    ("table-1", "table-2", "table-3", "table-4", "gain"),
)
