"""`tightrope calibrate`: the noise, steps or rate for a budget."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from tightrope.calibrate import Target, find_noise, find_rate, find_steps
from tightrope.cli import options as opt
from tightrope.cli.options import SamplingName
from tightrope.cli.tables import epsilon_text
from tightrope.errors import InvalidInput
from tightrope.report.calibrate_view import calibrate_view

__all__ = ["calibrate"]

_SEARCH = {"noise": find_noise, "steps": find_steps, "rate": find_rate}


def calibrate(
    epsilon: Annotated[str | None, typer.Option(help="Privacy budget.", metavar="EPS")] = None,
    delta: opt.Delta = "1e-5",
    rate: opt.Rate = "",
    noise: Annotated[str | None, typer.Option(help="Noise multiplier, if known.")] = None,
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    find: Annotated[
        str | None,
        typer.Option(help="What to find: noise, steps or rate (default: what is missing)."),
    ] = None,
    advantage: Annotated[
        str | None, typer.Option(help="Membership advantage allowed, in place of epsilon.")
    ] = None,
    tpr: Annotated[str | None, typer.Option(help="Hit rate allowed at --fpr.")] = None,
    fpr: Annotated[str, typer.Option(help="False alarm rate of the attack.")] = "0.01",
    sampling: opt.SamplingChoice = SamplingName.POISSON,
    adjacency: opt.AdjacencyChoice = "add-or-remove",
    as_json: opt.AsJson = False,
) -> None:
    """The smallest noise, the most steps or the largest rate for a budget, on the safe side.

    Example: `tightrope calibrate --epsilon 3 --delta 1e-5 --rate 256/60000 --steps 14062`
    """
    target = _target(epsilon, delta, advantage, tpr, fpr)
    wanted = find or _missing(noise, steps, epochs, rate)
    if wanted not in _SEARCH:
        raise InvalidInput(f"--find takes noise, steps or rate; got {wanted!r}.")
    known = {"noise": noise or "1", "rate": rate or "0.01"}
    counts = ("1", None) if steps is None and epochs is None else (steps, epochs)
    run = opt.build_run(known["rate"], known["noise"], *counts, sampling, adjacency)
    view = calibrate_view(_SEARCH[wanted], run, target)
    if as_json:
        print(json.dumps(view))
        return
    console = Console()
    console.print(_headline(view))
    console.print(_table(view))


def _target(
    epsilon: str | None, delta: str, advantage: str | None, tpr: str | None, fpr: str
) -> Target:
    given = [
        name
        for name, value in (("--epsilon", epsilon), ("--advantage", advantage), ("--tpr", tpr))
        if value
    ]
    if len(given) != 1:
        raise InvalidInput(
            "Say what to reach with one of --epsilon (and --delta), --advantage, or --tpr (and "
            f"--fpr); got {' and '.join(given) or 'none'}."
        )
    if epsilon is not None:
        return Target.approx_dp(
            opt.parse_number(epsilon, "epsilon"), opt.parse_number(delta, "delta")
        )
    if advantage is not None:
        return Target.advantage(opt.parse_number(advantage, "advantage"))
    return Target.hit_rate(opt.parse_number(tpr, "tpr"), opt.parse_number(fpr, "fpr"))


def _missing(noise: str | None, steps: str | None, epochs: str | None, rate: str) -> str:
    """What was left out is what is sought."""
    absent = [
        name
        for name, given in (("noise", noise), ("steps", steps or epochs), ("rate", rate))
        if not given
    ]
    if len(absent) != 1:
        raise InvalidInput(
            "Leave out the one of --noise, --steps (or --epochs) and --rate that should be found, "
            f"or name it with --find; missing now: {', '.join(absent) or 'none'}."
        )
    return absent[0]


def _headline(view: dict[str, Any]) -> Panel:
    answer = view["answer"]
    value = answer[answer["quantity"]]
    shown = f"{value:d}" if answer["quantity"] == "steps" else f"{value:.8g}"
    name = answer["quantity"].replace("_", " ")
    return Panel(
        f"{name} = [bold green]{shown}[/]  (certified epsilon {epsilon_text(answer['epsilon'])})",
        title="calibrated",
        title_align="left",
    )


def _table(view: dict[str, Any]) -> Table:
    table = Table(title="what other analyses would have said", header_style="bold")
    quantity = view["answer"]["quantity"]
    for column in ("analysis", quantity, "compared", "true epsilon there"):
        table.add_column(column)
    for row in view["alternatives"]:
        value = "-" if row[quantity] is None else f"{row[quantity]:.6g}"
        truth = epsilon_text(row["true_epsilon"]) if "true_epsilon" in row else "within budget"
        style = "yellow" if row["kind"] == "estimate" else "cyan"
        table.add_row(
            row["analysis"], value, row.get("compared", row.get("reason", "")), truth, style=style
        )
    return table
