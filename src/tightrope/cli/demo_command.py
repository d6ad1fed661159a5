"""`tightrope demo`: the main job on an embedded default, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tightrope.accounting import account
from tightrope.calibrate import Target, find_noise
from tightrope.cli.tables import account_table, headline
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.account_view import account_view
from tightrope.report.plots import account_plot

__all__ = ["demo"]

DELTA = 1e-5


def demo(
    out: Annotated[Path, typer.Option(help="Folder for what the demo writes.")] = Path(
        "tightrope-demo"
    ),
) -> None:
    """Account for a run, find the noise for a budget, and draw it."""
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    run = NoisySGD(PoissonSampling(256 / 60000), noise_multiplier=1.1, steps=14062)
    console.rule("1. How private is DP-SGD on MNIST? (batch 256 of 60,000, noise 1.1, 60 epochs)")
    result = account(run)
    view = account_view(result, DELTA)
    console.print(headline(view))
    console.print(account_table(view))
    console.rule("2. How little noise reaches epsilon = 3?")
    found = find_noise(run, Target.approx_dp(3.0, DELTA))
    console.print(f"noise multiplier [bold green]{found.value:.8f}[/], certified")
    picture = account_plot(result, DELTA, out / "account.png")
    console.print(f"Pictures and numbers: [bold]{picture.parent}[/]")
