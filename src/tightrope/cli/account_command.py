"""`tightrope account` and `tightrope compare`: how private is a run?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tightrope.accounting import account as analyse
from tightrope.cli import options as opt
from tightrope.cli.options import SamplingName
from tightrope.cli.tables import account_table, headline
from tightrope.errors import InvalidInput, TightropeError
from tightrope.report.account_view import account_view
from tightrope.validate import check_delta

__all__ = ["account", "compare"]


def account(
    rate: opt.Rate = "",
    noise: opt.Noise = "",
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    delta: opt.Delta = "1e-5",
    sampling: opt.SamplingChoice = SamplingName.POISSON,
    adjacency: opt.AdjacencyChoice = "add-or-remove",
    as_json: opt.AsJson = False,
    plot: opt.Plot = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="A file with one JSON object a line (- for standard input).", metavar="FILE"
        ),
    ] = None,
) -> None:
    """The certified epsilon of a run, with every other analysis beside it.

    Example: `tightrope account --rate 256/60000 --noise 1.1 --epochs 60 --delta 1e-5`
    """
    if batch is not None:
        _batch(batch)
        return
    if not rate or not noise:
        raise InvalidInput("account needs --rate and --noise (and --steps or --epochs).")
    run = opt.build_run(rate, noise, steps, epochs, sampling, adjacency)
    _answer(run, check_delta(opt.parse_number(delta, "delta")), as_json, plot)


def compare(
    rate: opt.Rate,
    noise: opt.Noise,
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    delta: opt.Delta = "1e-5",
    sampling: opt.SamplingChoice = SamplingName.POISSON,
    adjacency: opt.AdjacencyChoice = "add-or-remove",
    as_json: opt.AsJson = False,
    plot: opt.Plot = None,
) -> None:
    """The same run under every way of drawing batches: what the sampler is worth."""
    level = check_delta(opt.parse_number(delta, "delta"))
    views = []
    for name, neighbours in _schemes(sampling, adjacency):
        run = opt.build_run(rate, noise, steps, epochs, name, neighbours)
        views.append({"sampling": name.value, **account_view(analyse(run), level)})
    if as_json:
        print(json.dumps({"schema": "tightrope.compare/1", "runs": views}))
    else:
        from tightrope.cli.tables import compare_table

        Console().print(compare_table(views, level))
    if plot is not None:
        from tightrope.report.plots import compare_plot

        compare_plot(views, level, plot)


def _schemes(first: SamplingName, adjacency: str) -> list[tuple[SamplingName, str]]:
    """The scheme asked for, then the others with the neighbours each can be analysed under."""
    others = [
        (SamplingName.POISSON, "add-or-remove"),
        (SamplingName.BALLS_IN_BINS, "add-or-remove"),
        (SamplingName.SHUFFLED, "add-or-remove"),
        (SamplingName.CYCLIC, "add-or-remove"),
        (SamplingName.POISSON, "replace-one"),
        (SamplingName.FIXED_SIZE, "replace-one"),
        (SamplingName.SHUFFLED, "replace-one"),
    ]
    asked = (first, adjacency)
    return [asked, *(scheme for scheme in others if scheme != asked)]


def _answer(run: Any, delta: float, as_json: bool, plot: str | None) -> None:
    result = analyse(run, check="full")
    view = account_view(result, delta)
    if as_json:
        print(json.dumps(view))
    else:
        console = Console()
        console.print(headline(view))
        console.print(account_table(view))
    if plot is not None:
        from tightrope.report.plots import account_plot

        account_plot(result, delta, plot)
        if not as_json:
            Console().print(f"Picture: {plot}")


def _batch(source: str) -> None:
    """One answer a line, in one process; a bad line gets its error and the rest goes on."""
    lines = sys.stdin if source == "-" else Path(source).read_text().splitlines()
    for line in lines:
        if not line.strip():
            continue
        try:
            print(json.dumps(_one(json.loads(line))), flush=True)
        except (TightropeError, json.JSONDecodeError) as error:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)


def _one(setting: Any) -> dict[str, Any]:
    if not isinstance(setting, dict) or not {"rate", "noise", "delta"} <= setting.keys():
        raise InvalidInput("Each line is a JSON object with rate, noise, steps and delta.")
    run = opt.build_run(
        setting["rate"],
        setting["noise"],
        setting.get("steps"),
        setting.get("epochs"),
        setting.get("sampling", SamplingName.POISSON),
        setting.get("adjacency", "add-or-remove"),
    )
    delta = check_delta(opt.parse_number(setting["delta"], "delta"))
    return account_view(analyse(run), delta)
