"""`tightrope convex`: plan and fit private convex models, draw why a last iterate is private."""

from __future__ import annotations

import json
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from tightrope.cli import options as opt
from tightrope.errors import InvalidInput
from tightrope.numerics.rounding import rounded_up
from tightrope.validate import no_promise

if TYPE_CHECKING:
    from tightrope.estimators.table import CsvTable

__all__ = ["app"]

app = typer.Typer(
    help="Private convex learning: only the final model is released.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Epsilon = Annotated[str, typer.Option(help="Privacy budget.", metavar="EPS")]
Level = Annotated[
    str | None, typer.Option("--delta", help="Default: 1/records^1.1.", metavar="DELTA")
]
Model = Annotated[str, typer.Option(help="logistic, svc, regression or ridge.", metavar="NAME")]
Neighbours = Annotated[
    str,
    typer.Option(
        "--adjacency", help="replace-one (rows are counted) or add-or-remove.", metavar="RELATION"
    ),
]
Algorithm = Annotated[
    str,
    typer.Option(help="auto picks the one with the least predicted excess loss.", metavar="NAME"),
]


@app.command("plan")
def plan(
    records: Annotated[int, typer.Option(help="Number of rows (public).", metavar="N")],
    features: Annotated[int, typer.Option(help="Number of columns.", metavar="D")],
    epsilon: Epsilon,
    delta: Level = None,
    model: Model = "logistic",
    classes: Annotated[int, typer.Option(help="Number of classes.", metavar="N")] = 2,
    algorithm: Algorithm = "auto",
    adjacency: Neighbours = "replace-one",
    as_json: opt.AsJson = False,
) -> None:
    """What a fit would do, before any row is seen.

    Example: `tightrope convex plan --records 10000 --features 20 --epsilon 1`
    """
    from tightrope.estimators import csv_file

    chosen = csv_file.plan(
        records=records,
        features=features,
        epsilon=opt.parse_number(epsilon, "epsilon"),
        delta=None if delta is None else opt.parse_number(delta, "delta"),
        model=model,
        classes=classes,
        algorithm=algorithm,
        adjacency=adjacency,
    )
    from tightrope.report.views import plan_view

    view = plan_view(chosen)
    if as_json:
        print(json.dumps(view))
        return
    from tightrope.cli.tables import show_plan

    show_plan(view)
    _remark_on_delta(delta, records)


def _remark_on_delta(delta: str | None, records: int) -> None:
    """That a delta which was asked for is too large for so many people."""
    from tightrope.cli.tables import remark
    from tightrope.interop.setting import level_of

    if delta is not None:
        remark(level_of(delta, records).remarks)


@app.command("fit")
def fit(
    data: Annotated[Path, typer.Argument(help="A CSV file with a header and numeric columns.")],
    target: Annotated[str, typer.Option(help="Name of the target column.", metavar="NAME")],
    epsilon: Epsilon,
    data_norm: Annotated[
        float,
        typer.Option(help="Public bound on the length (Euclidean norm) of a row.", metavar="X"),
    ],
    delta: Level = None,
    model: Model = "logistic",
    algorithm: Algorithm = "auto",
    classes: Annotated[
        str | None,
        typer.Option(help="All possible labels, with commas between them: no,yes.", metavar="LIST"),
    ] = None,
    labels_public: Annotated[
        bool, typer.Option("--labels-public", help="Everybody may know which labels occur.")
    ] = False,
    target_bound: Annotated[
        float | None,
        typer.Option(help="Public bound on the size of a numeric target.", metavar="X"),
    ] = None,
    adjacency: Neighbours = "replace-one",
    records: Annotated[
        int | None,
        typer.Option(help="Public number of rows; needed with add-or-remove.", metavar="N"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the model.", metavar="FILE")] = Path(
        "model.json"
    ),
    ledger: Annotated[
        str | None,
        typer.Option(help="Book the fit in this ledger (path or URL).", metavar="LEDGER"),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The ledger's name for these data.", metavar="NAME")
    ] = None,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Fit a private model to a table; model and certificate may be published, the key may not.

    Example: `tightrope convex fit t.csv --target y --classes 0,1 --epsilon 1 --data-norm 9`
    """
    from tightrope.cli.tables import remark
    from tightrope.estimators import PromisesNothing, csv_file
    from tightrope.evidence.files import write_text

    for path in (out, out.parent / "certificate.json", out.parent / "data.key"):
        opt.may_write(path, force)  # before the fit: another one would cost as much privacy again
    out.parent.mkdir(parents=True, exist_ok=True)
    quiet = warnings.catch_warnings(category=PromisesNothing, action="ignore")  # remarked below
    progress = Progress(console=Console(stderr=True), transient=True)
    with quiet, _spending(ledger, dataset), progress as bar:
        task = bar.add_task("passes over the data", total=None)
        fitted = csv_file.fit(
            data,
            target=target,
            epsilon=opt.parse_number(epsilon, "epsilon"),
            data_norm=data_norm,
            delta=None if delta is None else opt.parse_number(delta, "delta"),
            model=model,
            algorithm=algorithm,
            classes=None if classes is None else [name.strip() for name in classes.split(",")],
            labels_public=labels_public,
            target_bound=target_bound,
            adjacency=adjacency,
            records=records,
            on_pass=lambda: bar.advance(task),
        )
    write_text(out, csv_file.model_card(fitted))
    table = csv_file.read_csv(data, target)
    certificate = _certify(fitted, table, out)
    if as_json:
        from tightrope.report.views import fit_view

        print(json.dumps(fit_view(fitted, out, certificate)))
        return
    console = Console()
    spent = fitted.guarantee_.epsilon(fitted.delta_).upper
    console.print(f"epsilon <= [bold green]{rounded_up(spent, 6)}[/] at delta = {fitted.delta_:g}")
    _remark_on_delta(delta, records or len(table.target))
    remark(filter(None, [no_promise(spent, 0.0)]))
    console.print(fitted.reason_, highlight=False)
    console.print(f"Model: [bold]{out}[/]")
    console.print(f"Certificate: [bold]{certificate}[/]. Check it: tightrope verify {certificate}")


def _spending(ledger: str | None, dataset: str | None) -> AbstractContextManager[None]:
    if (ledger is None) != (dataset is None):
        raise InvalidInput("--ledger and --dataset go together: give both, or neither.")
    if ledger is None or dataset is None:
        return nullcontext()
    from tightrope.ledger.spending import spending

    return spending(ledger, dataset)


def _certify(fitted: Any, table: CsvTable, out: Path) -> Path:
    """certificate.json beside the model, and the key of its commitment to the table."""
    from tightrope.evidence.certificate import FILE, write
    from tightrope.evidence.commitment import new_key, write_key

    key = new_key()
    certificate = fitted.certificate(data=(table.features, table.target), key=key)
    write_key(key, out.parent / "data.key")
    return write(certificate, out.parent / FILE)


@app.command("draw")
def draw(
    out: Annotated[Path, typer.Option(help="A .png, .svg or .pdf.", metavar="FILE")] = Path(
        "hidden-state.png"
    ),
) -> None:
    """Per-person privacy along one pass, the shifts' hull, and privacy that stops growing."""
    from tightrope.report.plots import hidden_state_plot

    Console().print(f"Picture: [bold]{hidden_state_plot(out)}[/]")
