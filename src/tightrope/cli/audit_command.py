"""`tightrope audit`: attack a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tightrope.cli import options as opt
from tightrope.cli.roc_drawing import roc_drawing, roc_table, scatter
from tightrope.numerics.rounding import rounded_down, rounded_up

if TYPE_CHECKING:
    from tightrope.audit.result import FolderAudit

__all__ = ["audit"]


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
