"""An attack's ROC against the certified limit, as a table and as a drawing for the terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from tightrope.guarantee.base import Guarantee

__all__ = ["roc_table", "roc_drawing", "scatter"]

WIDTH, HEIGHT = 61, 16
LIMIT, ATTACK = "·", "o"


def roc_table(claim: Guarantee, points: Any) -> Table:
    """The attack's measured hit rates beside the largest that the guarantee allows."""
    table = Table("false alarms", "attack found", "at most (certified)", header_style="bold")
    shown = [point for point in points if point[0] > 0.0]
    for alarms, hits in shown[:: max(1, len(shown) // 8)]:
        limit = claim.true_positive_rate(min(alarms, 1.0)).upper
        table.add_row(f"{alarms:.3f}", f"{hits:.3f}", f"{limit:.3f}")
    return table


def roc_drawing(claim: Guarantee, points: Any) -> str:
    """Hits upwards, false alarms to the right, both from 0 to 1."""
    grid = [[" "] * WIDTH for _ in range(HEIGHT + 1)]
    for column in range(1, WIDTH):
        limit = claim.true_positive_rate(column / (WIDTH - 1)).upper
        grid[_row(limit)][column] = LIMIT
    for alarms, hits in points:
        grid[_row(hits)][round(alarms * (WIDTH - 1))] = ATTACK
    lines = ["".join(row) for row in grid]
    labels = {0: "1.0", HEIGHT // 2: "0.5", HEIGHT: "0.0"}
    drawn = [f"{labels.get(at, ''):>4} │{line.rstrip()}" for at, line in enumerate(lines)]
    feet = [f"     └{'─' * WIDTH}", f"      0{'false alarms':^{WIDTH - 2}}1"]
    key = f"      {ATTACK} attack   {LIMIT} certified limit   (found, from 0 to 1, upwards)"
    return "\n".join([*drawn, *feet, key])


def _row(rate: float) -> int:
    return round((1.0 - min(max(rate, 0.0), 1.0)) * HEIGHT)


def scatter(canaries: int) -> float:
    """How far a frequency among half of the canaries may stray from the truth (95 %)."""
    return 1.96 * math.sqrt(0.25 / max(canaries / 2, 1))
