"""`tightrope account`, `compare`, `sweep` and `compose`: one run, or several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli import options as opt
from tightrope.cli.options import option
from tightrope.errors import InvalidInput, TightropeError

if TYPE_CHECKING:
    from tightrope.interop import Reading, Setting


@opt.with_setting(group=True, last_iterate=True)
def account(
    setting: Setting,
    source: opt.Source = None,
    said: Annotated[str | None, option("The epsilon another library printed.", "EPS")] = None,
    as_json: opt.AsJson = False,
    plot: opt.Plot = None,
    batch: Annotated[
        str | None, option("A file with one JSON object a line (- for standard input).", "FILE")
    ] = None,
) -> None:
    """The certified epsilon of a run, with every other analysis beside it.

    Example: `tightrope account --rate 256/60000 --noise 1.1 --epochs 60 --delta 1e-5`

    Exit code 2 where a line of a batch has no answer: the other lines have theirs all the same.
    """
    if batch is not None:
        from tightrope.cli.batch import answer_file

        if any(vars(setting).values()) or any((source, said, plot)):
            raise InvalidInput(
                "--batch takes the settings from its file, one JSON object a line; leave out "
                "--rate, --noise and the other options, or leave out --batch."
            )
        if not answer_file(batch):
            raise typer.Exit(2)
        return
    from tightrope.report.account_view import opinion

    reading = opt.reading_of(setting, source, "account")
    view, result = opinion(reading, setting, said)
    if plot is not None:
        from tightrope.report.plots import account_plot

        account_plot(result, view["delta"], plot)
    opt.answer(view, as_json, "account", Picture=plot)


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
    from tightrope.interop import read
    from tightrope.report.account_view import level_for

    found = [(str(path), read(str(path), setting)) for path in files or []]
    level = level_for(setting, [reading for _, reading in found])
    views = [{"run": name, **_view(one, level.delta)} for name, one in found]
    if not files:
        opt.needs(setting, "compare")
        views = [{"sampling": s.sampling, **_view(s, level.delta)} for s in _schemes(setting)]
    if plot is not None:
        from tightrope.report.plots import compare_plot

        compare_plot([view for view in views if "answer" in view], level.delta, plot)
    view = {"schema": "tightrope.compare/1", "runs": views, "remarks": level.remarks}
    shown = view if as_json else {**view, "delta": level.delta}
    opt.answer(shown, as_json, "compare", Picture=plot)
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


def _view(one: Setting | Reading, delta: float) -> dict[str, Any]:
    """An account, or why there is none: one run that is refused does not end the table."""
    from tightrope.accounting import account as analyse
    from tightrope.interop import Reading
    from tightrope.report.account_view import account_view

    who = str(one.neighbours)
    try:
        run = one.process if isinstance(one, Reading) else one.run()
        return account_view(analyse(run), delta, neighbours=who)
    except TightropeError as refusal:
        return {"adjacency": who, "error": type(refusal).__name__, "message": str(refusal)}


_VARIED = {"epochs": "steps", "batch-size": "rate"}  # what each of them stands for


@opt.with_setting()
def sweep(
    setting: Setting,
    over: Annotated[
        str, option("epochs, noise, steps, rate, batch-size or delta.", "NAME")
    ] = "epochs",
    values: Annotated[
        str | None, option("Values to try, with commas between them.", "LIST")
    ] = None,
    as_json: opt.AsJson = False,
    plot: opt.Plot = None,
) -> None:
    """Epsilon after each epoch, or against noise, rate, steps, batch size or delta.

    Exit code 2 where no row has an answer.

    Example: `tightrope sweep --rate 256/60000 --noise 1.1 --epochs 60 --over epochs`
    """
    from tightrope.report.views import OVER, sweep_view

    if over in OVER:
        opt.needs(setting, "sweep", "" if values is None else _VARIED.get(over, over))
    view = sweep_view(setting, over, values)
    if plot is not None:
        from tightrope.report.plots import sweep_plot

        sweep_plot(view, plot)
    opt.answer(view, as_json, "sweep", Picture=plot)
    if all("error" in row for row in view["rows"]):
        raise typer.Exit(2)


@opt.with_setting()
def compose(
    setting: Setting,
    files: Annotated[list[Path], typer.Argument(help="Certificates, or anything --from reads.")],
    epsilon: Annotated[str | None, option("A budget for all of them together.", "EPS")] = None,
    out: Annotated[Path | None, option("Write one certificate for all of them.", "FILE")] = None,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
    plot: opt.Plot = None,
) -> None:
    """Several trainings on the same people: what they cost together. Exit code 1 over the budget.

    Example: `tightrope compose first.json second.json --epsilon 5`
    """
    from tightrope.interop import read
    from tightrope.report.account_view import level_for
    from tightrope.report.views import compose_view
    from tightrope.validate import check_epsilon

    named = [(str(path), read(path, setting)) for path in files]
    level = level_for(setting, [reading for _, reading in named])
    budget = None
    if epsilon is not None:
        budget = float(check_epsilon(opt.parse_number(epsilon, "epsilon")))
    if out is not None:
        opt.may_write(out, force)
        for _, reading in named:
            reading.certifiable()
    view, found = compose_view(named, level, budget)
    if found is None and (out is not None or plot is not None):
        raise InvalidInput(f"{view['together']['words']} Leave out --out and --plot.")
    if out is not None:
        from tightrope.evidence.certificate import certify, write

        write(certify(found.process, view["delta"]), out)  # type: ignore[union-attr]
    if plot is not None:
        from tightrope.report.plots import account_plot

        account_plot(found, view["delta"], plot)  # type: ignore[arg-type]
    opt.answer(view, as_json, "compose", Certificate=out, Picture=plot)
    if "budget" in view and not view["budget"]["fits"]:
        raise typer.Exit(1)
