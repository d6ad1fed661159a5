"""`tightrope sweep` and `tightrope compose`: one run along a quantity, several runs together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli import options as opt
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from tightrope.accounting import Account
    from tightrope.interop import Setting

__all__ = ["sweep", "compose"]

_VARIED = {"epochs": "steps", "batch-size": "rate"}  # what each of them stands for


@opt.with_setting()
def sweep(
    setting: Setting,
    over: Annotated[
        str, typer.Option(help="epochs, noise, steps, rate, batch-size or delta.", metavar="NAME")
    ] = "epochs",
    values: Annotated[
        str | None, typer.Option(help="Values to try, with commas between them.", metavar="LIST")
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
    if as_json:
        print(json.dumps(view))
    else:
        from tightrope.cli.tables import remark, screen

        screen().print(_sweep_table(view))
        remark(view["remarks"])
        if plot is not None:
            print(f"Picture: {plot}")
    if all("error" in row for row in view["rows"]):
        raise typer.Exit(2)


@opt.with_setting()
def compose(
    setting: Setting,
    files: Annotated[list[Path], typer.Argument(help="Certificates, or anything --from reads.")],
    epsilon: Annotated[
        str | None, typer.Option(help="A budget for all of them together.", metavar="EPS")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write one certificate for all of them.", metavar="FILE")
    ] = None,
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
    if out is not None or plot is not None:
        _write(view, found, out, plot)
    _show(view, as_json, out, plot)
    if "budget" in view and not view["budget"]["fits"]:
        raise typer.Exit(1)


def _write(view: dict[str, Any], found: Account | None, out: Path | None, plot: str | None) -> None:
    if found is None:
        raise InvalidInput(f"{view['together']['words']} Leave out --out and --plot.")
    if out is not None:
        from tightrope.evidence.certificate import certify, write

        write(certify(found.process, view["delta"]), out)
    if plot is not None:
        from tightrope.report.plots import account_plot

        account_plot(found, view["delta"], plot)


def _show(view: dict[str, Any], as_json: bool, out: Path | None, plot: str | None) -> None:
    if as_json:
        print(json.dumps(view))
        return
    from tightrope.cli.tables import remark, screen

    screen().print(_compose_table(view))
    words = view["together"].get("answer", view["together"])["words"]
    remark([words, *([view["budget"]["words"]] if "budget" in view else []), *view["remarks"]])
    for name, path in (("Certificate", out), ("Picture", plot)):
        if path is not None:
            print(f"{name}: {path}")


def _sweep_table(view: dict[str, Any]) -> Table:
    from rich.table import Table

    from tightrope.cli.tables import epsilon_text

    name = view["over"].replace("-", "_")
    title = None if view["delta"] is None else f"epsilon at delta = {view['delta']:g}"
    table = Table(view["over"], "epsilon", "kind", title=title, header_style="bold")
    for row in view["rows"]:
        told = row.get("kind") or row["message"]
        table.add_row(f"{row[name]:g}", epsilon_text(row.get("epsilon")), told)
    return table


def _compose_table(view: dict[str, Any]) -> Table:
    from rich.table import Table

    from tightrope.cli.tables import epsilon_text

    title = f"epsilon at delta = {view['delta']:g}"
    table = Table("run", "read as", "epsilon", "kind", title=title, header_style="bold")
    for row in view["runs"]:
        table.add_row(row["run"], row["source"], epsilon_text(row["epsilon"]), row["kind"])
    whole = view["together"].get("answer", view["together"])
    table.add_row("together", "", epsilon_text(whole["epsilon"]), whole["kind"], style="bold")
    return table
