"""Pictures of an account, and of attacks under it.

`best_attack` is the curve of the best possible attack, never below the truth between two points.

The hit rate of the best attack is a concave, increasing function T of its false alarm rate. Between
two knots it lies below the lines through its neighbours on either side, and below the value at
the right end; with proved ends L <= T <= U of each value:
    T(x) <= U_i + (U_i - L_{i-1}) / (a_i - a_{i-1}) (x - a_i)                        a_i <= x
    T(x) <= U_{i+1} - max(0, L_{i+2} - U_{i+1}) / (a_{i+2} - a_{i+1}) (a_{i+1} - x)  x <= a_{i+1}
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.accounting import Account
from tightrope.guarantee.base import Guarantee
from tightrope.report.style import COLOURS, figure, save
from tightrope.validate import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightrope.choosing import Choice
    from tightrope.guarantee.estimate import Estimate


POINTS = 200
STYLE = "steps-pre"  # drawn between two points is the value at the right one, the larger


def best_attack(guarantee: Guarantee, least: float) -> tuple[FloatArray, FloatArray]:
    """False alarm rates from `least` to 1, and hit rates that no attack exceeds; see STYLE."""
    knots = _spread(least, 17, 16)
    values = [guarantee.true_positive_rate(float(a)) for a in knots]
    lower, upper = np.array([v.lower for v in values]), np.array([v.upper for v in values])
    rates = _spread(least, POINTS * 2 // 5, POINTS * 3 // 5)
    return rates, np.minimum(_above(rates, knots, lower, upper), 1.0)


def _spread(least: float, low: int, high: int) -> FloatArray:
    """Even steps for the eye, on the left of a log axis and on its right."""
    return np.concatenate([np.geomspace(least, 0.1, low), np.linspace(0.1, 1.0, high + 1)[1:]])


def _above(x: FloatArray, knots: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    right = np.clip(np.searchsorted(knots, x), 1, len(knots) - 1)
    left = right - 1
    before, after = np.maximum(left - 1, 0), np.minimum(right + 1, len(knots) - 1)
    near = np.where(left > before, knots[left] - knots[before], 1.0)
    far = np.where(after > right, knots[after] - knots[right], 1.0)
    rise, fall = upper[left] - lower[before], np.maximum(lower[after] - upper[right], 0.0)
    from_left = np.where(left > before, upper[left] + rise / near * (x - knots[left]), np.inf)
    from_right = upper[right] - np.where(after > right, fall / far * (knots[right] - x), 0.0)
    return np.where(x <= knots[0], upper[0], np.minimum(from_left, from_right))


_LINES: dict[str, list[Any]] = {
    "exact": ["-"],
    "bound": ["--", "-.", (0, (5, 1))],
    "estimate": [":", (0, (1, 3))],
}
_MOST_DRAWN = 3.0  # times the best epsilon


def account_plot(account: Account, delta: float, path: str | Path) -> Path:
    """Left: epsilon over delta by analysis. Right: the attacker's trade-off."""
    with figure(width=5.0, columns=2) as (made, (left, right)):
        profile_axes(left, account, delta)
        tradeoff_axes(right, account.guarantee(delta))
        made.tight_layout()
        return save(made, path)


def profile_axes(axes: Axes, account: Account, delta: float) -> None:
    """Epsilon over delta, of the analyses that are near the best; the others are in the tables."""
    deltas = np.geomspace(min(1e-12, delta / 10) or 1e-12, max(1e-2, min(10 * delta, 0.99)), 30)
    fine = np.geomspace(deltas[0], deltas[-1], POINTS)
    styles = {kind: cycle(lines) for kind, lines in _LINES.items()}
    most = _MOST_DRAWN * max(_epsilon(account.guarantee(delta), delta), 1e-9)
    for finding in account.findings:
        if finding.outcome is None or finding.key == "composition":
            continue
        kind = str(finding.kind)
        if _epsilon(finding.outcome, delta) > most:
            continue
        values = [_epsilon(finding.outcome, d) for d in deltas]
        if np.isfinite(values).all():
            axes.plot(  # epsilon is convex in delta: straight lines in delta lie above it
                fine,
                np.interp(fine, deltas, values),
                drawstyle="steps-post",
                linestyle=next(styles[kind]),
                color=COLOURS[kind],
                label=finding.name if kind in finding.name else f"{finding.name} ({kind})",
            )
    axes.set(xscale="log", xlabel="delta", ylabel="epsilon", title="Privacy loss by analysis")
    if delta > 0.0:
        axes.axvline(delta, color=COLOURS["plain"], linewidth=0.8, label=f"delta = {delta:g}")
    axes.set_ylim(bottom=0.0)
    axes.legend(fontsize=8, loc="lower left")  # the curves fall from the upper left


def _epsilon(outcome: Guarantee | Estimate, delta: float) -> float:
    return (
        outcome.epsilon(delta).upper if isinstance(outcome, Guarantee) else outcome.epsilon(delta)
    )


def tradeoff_axes(axes: Axes, guarantee: Guarantee) -> None:
    """Hit rate over false alarms of the best possible attack, with blind guessing below."""
    alarms, hits = best_attack(guarantee, 1e-5)
    axes.fill_between(alarms, alarms, hits, step="pre", color=COLOURS["exact"], alpha=0.15)
    words = "best possible attack (certified)"
    axes.plot(alarms, hits, drawstyle=STYLE, color=COLOURS["exact"], label=words)
    axes.plot(alarms, alarms, ":", color=COLOURS["plain"], label="guessing")
    axes.set(xscale="log", xlabel="false positive rate", ylabel="true positive rate", ylim=(0, 1))
    axes.set_title("What an attacker can do")
    axes.legend(fontsize=9)


def compare_plot(views: list[dict[str, Any]], delta: float, path: str | Path) -> Path:
    """One bar for each run, or way of drawing batches."""
    labels = [f"{v.get('run') or v['sampling']}\n{v['answer']['adjacency']}" for v in views]
    values = [v["answer"]["epsilon"]["upper"] for v in views]
    heights = [float("nan") if isinstance(v, str) else v for v in values]
    with figure(width=9.0) as (made, axes):
        from matplotlib.patches import Patch

        colours = [COLOURS[v["answer"]["kind"]] for v in views]
        bars = axes.bar(labels, heights, color=colours)
        axes.bar_label(bars, fmt="%.3g")
        axes.set_axisbelow(True)
        kinds = {str(v["answer"]["kind"]) for v in views}
        axes.legend(handles=[Patch(color=COLOURS[k], label=k) for k in sorted(kinds, reverse=True)])
        axes.set(ylabel=f"epsilon at delta = {delta:g}", title=_title(views))
        axes.tick_params(axis="x", labelsize=7)
        return save(made, path)


def sweep_plot(view: dict[str, Any], path: str | Path) -> Path:
    """Epsilon along a quantity; what could not be answered is left out."""
    name, rows = view["over"].replace("-", "_"), [row for row in view["rows"] if "kind" in row]
    finite = [row for row in rows if not isinstance(row["epsilon"]["upper"], str)]
    with figure() as (made, axes):
        x, y = [row[name] for row in finite], [row["epsilon"]["upper"] for row in finite]
        exact = all(row["kind"] == "exact" for row in finite)
        kind = "exact" if exact else "bound"
        axes.plot(x, y, "o-", markersize=3, color=COLOURS[kind], label=kind)
        at = "" if view["delta"] is None else f" at delta = {view['delta']:g}"
        axes.set(
            xlabel=view["over"], ylabel=f"epsilon{at}", title=f"Epsilon against {view['over']}"
        )
        if name in ("delta", "rate"):
            axes.set_xscale("log")
        axes.legend()
        return save(made, path)


def _title(views: list[dict[str, Any]]) -> str:
    return "Runs side by side" if "run" in views[0] else "What the sampler is worth"


def roc_plot(claim: Guarantee, comparison: Any, path: str | Path) -> Path:
    """An attack's measured points under the curve that no attack passes."""
    with figure() as (made, axes):
        tradeoff_axes(axes, claim)
        if comparison.attack:
            alarms, hits = zip(*comparison.attack, strict=True)
            axes.plot(alarms, hits, ".", color=COLOURS["attack"], label="attack on this run")
            axes.legend(fontsize=8)
        return save(made, path)


_DRAWN = 4  # candidates


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
