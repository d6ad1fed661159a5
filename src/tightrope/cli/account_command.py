"""`tightrope account` and `tightrope compare`: how private is a run?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli import options as opt
from tightrope.errors import InvalidInput, TightropeError
from tightrope.process import Process

if TYPE_CHECKING:
    from tightrope.interop import Reading, Setting

__all__ = ["account", "compare"]


@opt.with_setting(group=True, last_iterate=True)
def account(
    setting: Setting,
    source: opt.Source = None,
    said: Annotated[
        str | None, typer.Option(help="The epsilon another library printed.", metavar="EPS")
    ] = None,
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

    Exit code 2 where a line of a batch has no answer: the other lines have theirs all the same.
    """
    if batch is not None:
        from tightrope.cli.batch import answer_file

        _alone(setting, source, said, plot)
        if not answer_file(batch):
            raise typer.Exit(2)
        return
    from tightrope.report.account_view import opinion

    reading = opt.reading_of(setting, source, "account")
    view, result = opinion(reading, setting, said)
    if plot is not None:
        from tightrope.report.plots import account_plot

        account_plot(result, view["delta"], plot)
    if as_json:
        print(json.dumps(view))
        return
    from tightrope.cli.tables import show_account

    show_account(view)
    if plot is not None:
        print(f"Picture: {plot}")


def _alone(setting: Setting, *options: str | None) -> None:
    if any(vars(setting).values()) or any(options):
        raise InvalidInput(
            "--batch takes the settings from its file, one JSON object a line; leave out --rate, "
            "--noise and the other options, or leave out --batch."
        )


@opt.with_setting()
def compare(
    setting: Setting,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs to put beside each other, in place of the options."),
    ] = None,
    as_json: opt.AsJson = False,
    plot: opt.Plot = None,
) -> None:
    """One run under every way of drawing batches, or the runs in several files side by side.

    Exit code 2 where no run has an answer.

    Example: `tightrope compare --rate 256/60000 --noise 1.1 --epochs 60 --delta 1e-5`
    """
    from tightrope.report.account_view import level_for

    found = _files(files or [], setting)
    level = level_for(setting, [reading for _, reading in found])
    views = [{"run": n, **_view(r.process, level.delta, r.neighbours)} for n, r in found]
    if not files:
        opt.needs(setting, "compare")
        schemes = _schemes(setting)
        views = [{"sampling": s.sampling, **_scheme_view(s, level.delta)} for s in schemes]
    if plot is not None:
        from tightrope.report.plots import compare_plot

        compare_plot([view for view in views if "answer" in view], level.delta, plot)
    if as_json:
        content = {"schema": "tightrope.compare/1", "runs": views, "remarks": level.remarks}
        print(json.dumps(content))
    else:
        from tightrope.cli.tables import compare_table, remark, screen

        screen().print(compare_table(views, level.delta))
        remark(level.remarks)
        if plot is not None:
            print(f"Picture: {plot}")
    if all("error" in view for view in views):
        raise typer.Exit(2)


def _schemes(setting: Setting) -> list[Setting]:
    """The scheme asked for, then the others with the neighbours each can be analysed under."""
    others = [
        ("poisson", "add-or-remove"),
        ("balls-in-bins", "add-or-remove"),
        ("shuffled", "add-or-remove"),
        ("cyclic", "add-or-remove"),
        ("poisson", "replace-one"),
        ("fixed-size", "replace-one"),
        ("shuffled", "replace-one"),
    ]
    asked = (setting.scheme.value, setting.neighbours.value)
    pairs = [asked, *(pair for pair in others if pair != asked)]
    return [replace(setting, sampling=how, adjacency=who) for how, who in pairs]


def _files(paths: list[Path], setting: Setting) -> list[tuple[str, Reading]]:
    from tightrope.interop import read

    names = [str(path) for path in paths]
    return [(name, read(name, setting)) for name in names]


def _view(run: Process, delta: float, neighbours: str | None = None) -> dict[str, Any]:
    """An account, or why there is none: one run without an analysis does not end the table."""
    from tightrope.accounting import account as analyse
    from tightrope.report.account_view import account_view

    try:
        return account_view(analyse(run), delta, neighbours=neighbours)
    except TightropeError as refusal:
        return _refused(str(run.adjacency), refusal)


def _scheme_view(setting: Setting, delta: float) -> dict[str, Any]:
    """Where a scheme cannot draw such batches, that is its row."""
    try:
        run = setting.run()
    except TightropeError as refusal:
        return _refused(str(setting.neighbours), refusal)
    return _view(run, delta)


def _refused(neighbours: str, refusal: TightropeError) -> dict[str, Any]:
    return {"adjacency": neighbours, "error": type(refusal).__name__, "message": str(refusal)}
