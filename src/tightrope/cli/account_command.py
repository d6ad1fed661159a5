"""`tightrope account` and `tightrope compare`: how private is a run?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli import options as opt
from tightrope.cli.options import SamplingName
from tightrope.errors import InvalidInput, TightropeError

if TYPE_CHECKING:
    from tightrope.process import NoisySGD

__all__ = ["account", "compare"]


def account(
    rate: opt.Rate = "",
    noise: opt.Noise = "",
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    delta: opt.Delta = "1e-5",
    sampling: opt.SamplingChoice = SamplingName.POISSON.value,
    adjacency: opt.AdjacencyChoice = "add-or-remove",
    group: opt.Group = None,
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
        from tightrope.cli.batch import answer_file

        _without_setting(rate, noise, steps, epochs, group, plot)
        answer_file(batch)
        return
    if not noise or not (rate or sampling == SamplingName.FULL):
        missing = " and ".join(n for n, v in (("--rate", rate), ("--noise", noise)) if not v)
        raise InvalidInput(
            f"account needs {missing}. For instance: "
            "tightrope account --rate 256/60000 --noise 1.1 --epochs 60 --delta 1e-5"
        )
    run = opt.build_run(rate, noise, steps, epochs, sampling, adjacency)
    _answer(run, opt.parse_delta(delta), opt.parse_group(group), as_json, plot)


def compare(
    rate: opt.Rate,
    noise: opt.Noise,
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    delta: opt.Delta = "1e-5",
    sampling: opt.SamplingChoice = SamplingName.POISSON.value,
    adjacency: opt.AdjacencyChoice = "add-or-remove",
    as_json: opt.AsJson = False,
    plot: opt.Plot = None,
) -> None:
    """The same run under every way of drawing batches: what the sampler is worth.

    Example: `tightrope compare --rate 256/60000 --noise 1.1 --epochs 60 --delta 1e-5`
    """
    level = opt.parse_delta(delta)
    runs = [
        (name, opt.build_run(rate, noise, steps, epochs, name, neighbours))
        for name, neighbours in _schemes(sampling, adjacency)
    ]
    views = [_scheme_view(name, run, level) for name, run in runs]
    if plot is not None:
        from tightrope.report.plots import compare_plot

        compare_plot([view for view in views if "answer" in view], level, plot)
    if as_json:
        print(json.dumps({"schema": "tightrope.compare/1", "runs": views}))
        return
    from tightrope.cli.tables import compare_table, screen

    screen().print(compare_table(views, level))
    if plot is not None:
        print(f"Picture: {plot}")


def _without_setting(*options: str | None) -> None:
    if any(options):
        raise InvalidInput(
            "--batch takes the settings from its file, one JSON object a line; leave out --rate, "
            "--noise, --steps, --epochs, --group and --plot, or leave out --batch."
        )


def _schemes(first: str, adjacency: str) -> list[tuple[str, str]]:
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
    return [asked, *((s.value, a) for s, a in others if (s.value, a) != asked)]


def _scheme_view(name: str, run: NoisySGD, delta: float) -> dict[str, Any]:
    """An account, or why there is none: one scheme without an analysis does not end the table."""
    from tightrope.accounting import account as analyse
    from tightrope.report.account_view import account_view

    try:
        return {"sampling": name, **account_view(analyse(run), delta)}
    except TightropeError as refusal:
        said = {"error": type(refusal).__name__, "message": str(refusal)}
        return {"sampling": name, "adjacency": str(run.adjacency), **said}


def _answer(run: NoisySGD, delta: float, group: int, as_json: bool, plot: str | None) -> None:
    from tightrope.accounting import account as analyse
    from tightrope.report.account_view import account_view

    result = analyse(run, check="full")
    view = account_view(result, delta, group)
    if plot is not None:
        from tightrope.report.plots import account_plot

        account_plot(result, delta, plot)
    if as_json:
        print(json.dumps(view))
        return
    from tightrope.cli.tables import show_account

    show_account(view)
    if plot is not None:
        print(f"Picture: {plot}")
