"""Figures of the report page as inline SVG that follows the page's light or dark colours."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.accounting import Account
from tightrope.calibrate import find_noise
from tightrope.correlated.strategies import white
from tightrope.correlated.workloads import noise_left as left_of
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.rounding import rounded_up
from tightrope.process import CorrelatedSGD
from tightrope.report.blocks import Figure
from tightrope.report.plots import STYLE, best_attack, noise_axes, profile_axes
from tightrope.report.style import COLOURS, figure
from tightrope.report.words import FALSE_ALARMS, PEOPLE, found_of
from tightrope.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#123456"  # drawn with it, then replaced by the page's own text colour
_COLUMNS, _CELL = 50, 10
_WIDTH, _HEIGHT = 6.0, 3.8


def people(guarantee: Guarantee) -> Figure:
    """A thousand dots: found by luck, found by the best attacker, not found."""
    found = found_of(guarantee)
    lucky = min(FALSE_ALARMS, found)
    groups = {"plain": range(lucky), "attack": range(lucky, found), "pale": range(found, PEOPLE)}
    dots = "".join(f'<path class="dots {kind}" d="{_dots(at)}"/>' for kind, at in groups.items())
    height = PEOPLE // _COLUMNS * _CELL
    alt = (
        f"{PEOPLE:,} dots, one for each person in the data: {lucky} are found by luck, "
        f"{found - lucky} more by the best possible attacker, {PEOPLE - found} are not found."
    )
    box = f'viewBox="0 0 {_COLUMNS * _CELL} {height}"'
    caption = (
        f"Each dot is one of {PEOPLE:,} people in the data. Grey: found by guessing ({lucky}). "
        f"Orange: found as well by the best possible attacker (at most {found - lucky}). "
        f"The others (at least {PEOPLE - found}) are not found."
    )
    return Figure(f'<svg class="people" {box}>{dots}</svg>', alt, caption)


def _dots(places: range) -> str:
    half = _CELL // 2
    centres = ((p % _COLUMNS * _CELL + half, p // _COLUMNS * _CELL + half) for p in places)
    return "".join(f"M{x} {y}h0" for x, y in centres)


def tradeoff(guarantee: Guarantee, attack: Sequence[tuple[float, float]] = ()) -> Figure:
    """The best possible attack, and the attack that was tried (if any), in people."""
    alarms, hits = (PEOPLE * part for part in best_attack(guarantee, 1.0 / PEOPLE))
    with figure(width=_WIDTH, height=_HEIGHT) as (made, axes):
        axes.fill_between(alarms, alarms, hits, step="pre", alpha=0.15, **_line("exact"))
        axes.plot(alarms, hits, drawstyle=STYLE, label="best possible attacker", **_line("exact"))
        if attack:
            alarmed, found = PEOPLE * _thinned(np.array(attack)).T
            axes.plot(
                alarmed, found, ".", markersize=5, label="attack that was tried", **_line("attack")
            )
        axes.plot(alarms, alarms, ":", label="guessing", **_line("plain"))
        axes.set(xscale="log", xlim=(1, PEOPLE), ylim=(0, PEOPLE))
        axes.set(xlabel=f"false alarms among {PEOPLE:,} people not in the data")
        axes.set(ylabel=f"found, of {PEOPLE:,} in the data")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        svg = _svg(made)
    few, many = found_of(guarantee, 10), found_of(guarantee, 100)
    alt = (
        "Curve of people found against false alarms. At 10 false alarms the best attacker finds "
        f"at most {few} of {PEOPLE:,}, at 100 false alarms at most {many}."
    )
    tried = " Dots: the attack that was tried, counted on few records, so they scatter."
    words = "What an attacker can do: in the long run, no one gets above the green curve."
    return Figure(svg, alt, words + (tried if attack else ""))


def _thinned(points: Any) -> Any:
    """About forty of the points, evenly spread over what is drawn."""
    drawn = np.log10(np.maximum(points[:, 0], 1e-3)) / 3.0 + points[:, 1]
    keep = np.unique(np.searchsorted(drawn, np.linspace(drawn[0], drawn[-1], 40)))
    return points[np.minimum(keep, len(points) - 1)]


def profile(account: Account, delta: float) -> Figure:
    with figure(width=_WIDTH, height=4.6) as (made, axes):
        profile_axes(axes, account, delta)
        axes.set_title("")
        axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        svg = _svg(made)
    alt = "Epsilon against delta by analysis; the table below has the numbers of all."
    words = "Epsilon against delta by analysis, up to three times the best; lower is better."
    return Figure(svg, alt, words)


def history(rows: list[dict[str, Any]], budget: float | None) -> Figure:
    """Epsilon over training with the budget line."""
    known = [row for row in rows if row["epsilon"] is not None]
    steps, spent = [row["step"] for row in known], [row["epsilon"] for row in known]
    with figure(width=_WIDTH, height=_HEIGHT) as (made, axes):
        mark = {"marker": "o", "markersize": 3, "drawstyle": STYLE}  # more steps spend more
        axes.plot(steps, spent, label="spent", **mark, **_line("exact"))
        if budget is not None:
            axes.axhline(budget, linestyle="--", label="budget", **_line("attack"))
        axes.set(xlabel="step of training", ylabel="epsilon (certified)", xlim=(0, None))
        axes.set_ylim(0, None)
        svg = _svg(made)
    end = (
        f"epsilon {rounded_up(spent[-1], 4)} after step {steps[-1]}"
        if known
        else "no finite epsilon"
    )
    limit = "" if budget is None else f"; the budget is {budget:g}"
    return Figure(svg, f"Rising curve: {end}{limit}.", "Privacy spent during training.")


def noise_left(process: CorrelatedSGD, epsilon: float, delta: float) -> Figure:
    """The noise in the model after each step, beside independent noise of the same privacy."""
    target = Target.approx_dp(epsilon, delta)
    plain = find_noise(replace(process, strategy=white(), noise_multiplier=1.0), target).process
    by_step = {
        name: tuple(run.noise_multiplier * left for left in left_of(run.strategy, run.steps))
        for name, run in ((str(process.strategy), process), ("independent noise", plain))
    }
    with figure(width=_WIDTH, height=_HEIGHT) as (made, axes):
        noise_axes(axes, by_step)
        axes.set_title("")
        svg = _svg(made)
    ours, others = (noise[-1] for noise in by_step.values())
    alt = f"Two curves: {ours:.3g} clip norms after the last step, {others:.3g} if independent."
    return Figure(svg, alt, "Noise in the sum of all steps so far; same batches, same privacy.")


def _line(kind: str) -> dict[str, str]:
    return {"color": COLOURS[kind]}


def _svg(made: Any) -> str:
    """The drawing as an inline SVG element whose colours are those of the page."""
    for axes in made.axes:
        _ink(axes)
    buffer = io.StringIO()
    made.savefig(buffer, format="svg", bbox_inches="tight", transparent=True)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)  # no outside addresses
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    for kind, colour in COLOURS.items():
        text = text.replace(colour.lower(), f"var(--{kind})")
    return text


def _ink(axes: Axes) -> None:
    legend = axes.get_legend()
    if legend is None and axes.get_legend_handles_labels()[1]:
        legend = axes.legend(fontsize=9)
    axes.tick_params(colors=_INK, which="both")
    axes.title.set_color(_INK)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    for label in legend.get_texts() if legend else ():
        label.set_color(_INK)
