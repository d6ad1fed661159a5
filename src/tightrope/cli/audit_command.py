"""`tightrope audit`: attack a run; its ROC against the certified limit, as table and drawing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tightrope.cli import options as opt
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.rounding import rounded_down, rounded_up

if TYPE_CHECKING:
    from tightrope.audit.result import FolderAudit


def audit(
    folder: Annotated[Path, typer.Argument(help="A run folder with audit.json.")],
    plot: opt.Plot = None,
    as_json: opt.AsJson = False,
) -> None:
    """An attack's lower bound on epsilon beside the certified one; exit 1 on contradiction."""
    from tightrope.audit.result import audit_folder

    found = audit_folder(folder)
    lower = found.audit.epsilon_lower
    if as_json:
        print(json.dumps(_audit_row(found)))
    else:
        console = Console()
        attacked, claimed = rounded_down(lower, 4), rounded_up(found.claimed_epsilon, 4)
        console.print(
            f"attack: epsilon >= [bold]{attacked}[/] with {found.audit.confidence:.0%} confidence; "
            f"certified: epsilon <= [bold green]{claimed}[/]"
        )
        console.print(roc_table(found.claim, found.audit.roc))
        console.print(roc_drawing(found.claim, found.audit.roc), highlight=False)
        console.print(
            f"Chance moves what {found.audit.canaries} canaries show by about "
            f"{scatter(found.audit.canaries):.2f}, so the attack may seem to beat the limit by as "
            "much. The lower bound above allows for that."
        )
        console.print(
            f"Even with every guess right, so few canaries prove no more than epsilon >= "
            f"{rounded_down(found.audit.epsilon_ceiling, 4)} at delta {found.audit.delta:g}."
        )
        if (noise := found.audit.noise) is not None:
            console.print(
                f"noise multiplier found: at most {rounded_up(noise.noise_upper, 4)} "
                f"({noise.coordinates} coordinates, false alarms {noise.miss:.1%}); "
                f"claimed: {noise.claimed:g}"
            )
        if found.contradicted:
            console.print("[bold red]The attack contradicts the claim: the code leaks.[/]")
    if plot is not None:
        from tightrope.report.plots import roc_plot

        roc_plot(found.claim, found.roc(), plot)
    if found.contradicted:
        raise typer.Exit(1)


def _audit_row(found: FolderAudit) -> dict[str, Any]:
    noise = found.audit.noise
    return {
        "epsilon_lower": found.audit.epsilon_lower,
        "epsilon_ceiling": found.audit.epsilon_ceiling,
        "epsilon_certified": found.claimed_epsilon,
        "noise_upper": None if noise is None else noise.noise_upper,
        "noise_claimed": None if noise is None else noise.claimed,
        "contradicted": found.contradicted,
    }


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
