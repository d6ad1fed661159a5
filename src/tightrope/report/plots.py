"""Pictures of an account: epsilon against delta, and the trade-off curve an attacker faces."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.accounting import Account
from tightrope.guarantee.base import Guarantee
from tightrope.report.safe_curve import POINTS, STYLE, best_attack
from tightrope.report.style import COLOURS, figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightrope.guarantee.estimate import Estimate

_LINES: dict[str, list[Any]] = {
    "exact": ["-"],
    "bound": ["--", "-.", (0, (5, 1))],
    "estimate": [":", (0, (1, 3))],
}
_MOST_DRAWN = 3.0  # times the best epsilon

__all__ = [
    "account_plot",
    "compare_plot",
    "sweep_plot",
    "roc_plot",
    "tradeoff_axes",
    "profile_axes",
]


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
    told = "best possible attack (certified)"
    axes.plot(alarms, hits, drawstyle=STYLE, color=COLOURS["exact"], label=told)
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
