"""Figures of the report page as inline SVG that follows the page's light or dark colours."""

from __future__ import annotations

import io
import re
from typing import Any

from tightrope.accounting import Account
from tightrope.guarantee.base import Guarantee
from tightrope.report.plots import profile_axes, tradeoff_axes
from tightrope.report.style import COLOURS, figure

__all__ = ["tradeoff_svg", "profile_svg", "history_svg"]

# Drawn with this ink, then replaced by the page's own text colour.
_INK = "#123456"


def tradeoff_svg(guarantee: Guarantee, attack: dict[str, Any] | None) -> str:
    """The best possible attack, and the attacks that were tried (if any)."""
    with figure(width=6.0, height=4.0) as (made, axes):
        tradeoff_axes(axes, guarantee)
        if attack and attack.get("roc"):
            points = [(p["false_positive_rate"], p["true_positive_rate"]) for p in attack["roc"]]
            alarms, hits = zip(*points, strict=True)
            axes.plot(alarms, hits, ".", color=COLOURS["attack"], label="attack on this run")
            axes.legend(fontsize=8)
        return _svg(made, "Trade-off curve: true positive rate against false positive rate")


def profile_svg(account: Account, delta: float) -> str:
    with figure(width=6.0, height=4.0) as (made, axes):
        profile_axes(axes, account, delta)
        return _svg(made, "Epsilon against delta for every analysis")


def history_svg(history: list[dict[str, Any]], budget: float | None) -> str:
    """Epsilon over training with the budget line, and the loss above it."""
    steps = [row["step"] for row in history]
    with figure(width=6.0, height=4.0) as (made, axes):
        spent = [row["epsilon"] for row in history]
        axes.plot(steps, spent, color=COLOURS["exact"], label="epsilon")
        if budget is not None:
            axes.axhline(budget, color=COLOURS["attack"], linestyle="--", label="budget")
        axes.set(xlabel="step", ylabel="epsilon (certified)", title="Privacy spent during training")
        axes.legend(fontsize=8)
        return _svg(made, "Epsilon over the steps of training")


def _svg(made: Any, title: str) -> str:
    """The drawing as an accessible inline SVG element."""
    for axes in made.axes:
        _ink(axes)
    buffer = io.StringIO()
    made.savefig(buffer, format="svg", bbox_inches="tight", transparent=True)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)  # no outside addresses
    drawing = text[text.index("<svg") :].replace(_INK, "currentColor")
    head = f'<svg role="img" aria-label="{title}"'
    return drawing.replace("<svg", head, 1)


def _ink(axes: Any) -> None:
    axes.tick_params(colors=_INK, which="both")
    axes.title.set_color(_INK)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    legend = axes.get_legend()
    for label in legend.get_texts() if legend else ():
        label.set_color(_INK)
