"""`tightrope table`: from a raw table to a private model and back to predictions."""

from __future__ import annotations

import csv
import json
import math
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from tightrope.cli import options as opt
from tightrope.cli.options import option
from tightrope.errors import InvalidInput
from tightrope.numerics.rounding import rounded_up
from tightrope.validate import no_promise

if TYPE_CHECKING:
    from tightrope.tables import PrivatePipeline

app = typer.Typer(
    help="Private models from raw tables: one budget for preprocessing and fit.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_KINDS = ("number", "category", "flag", "date", "ignored")

Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file.")]
SchemaFile = Annotated[Path, option("What is public: a YAML or JSON file.", "FILE", "--schema")]
Epsilon = Annotated[str, option("Privacy budget of everything.", "EPS")]
Level = Annotated[str | None, option("Default: 1/rows^1.1.", "DELTA", "--delta")]
Model = Annotated[
    str | None, option("logistic, svc, regression or ridge; default by target.", "NAME")
]
Neighbours = Annotated[
    str, option("replace-one (rows are counted) or add-or-remove.", "RELATION", "--adjacency")
]
Records = Annotated[int | None, option("Public number of rows; needed with add-or-remove.", "N")]


def _list(words: str) -> Any:
    return typer.Option(help=words, metavar="LIST", show_default=False)


@app.command("describe")
def describe(
    data: Data,
    target: Annotated[str, option("Name of the target column.", "NAME")],
    classes: Annotated[str, _list("All labels of the target, with commas between them.")] = "",
    target_range: Annotated[str, _list("Public bounds of a numeric target: 0,100.")] = "",
    numbers: Annotated[str, _list("Columns of numbers, or NAME=LOW:HIGH with public bounds.")] = "",
    categories: Annotated[str, _list("Columns of texts, or NAME=A|B|C where all are public.")] = "",
    flags: Annotated[str, _list("Columns of yes and no.")] = "",
    dates: Annotated[str, _list("Columns of days.")] = "",
    ignored: Annotated[str, _list("Columns that nothing reads.")] = "",
    out: Annotated[Path, option("Where to write it.", "FILE")] = Path("schema.yaml"),
    force: opt.Force = False,
) -> None:
    """Write a schema: kinds are named here, or asked for column by column. No value is read.

    Example: `tightrope table describe t.csv --target y --classes no,yes --numbers age=0:120`
    """
    from tightrope.tables import TableSchema
    from tightrope.tables.sources import names_of

    opt.may_write(out, force)
    names = names_of(data)
    if target not in names:
        raise InvalidInput(f"{data} has no column {target!r}; its columns are {', '.join(names)}.")
    columns: dict[str, Any] = {}
    for words, made in (
        (numbers, _number),
        (categories, _category),
        (flags, lambda given: {"kind": "flag"}),
        (dates, lambda given: {"kind": "date"}),
        (ignored, lambda given: {"kind": "ignored"}),
    ):
        for word in filter(None, map(str.strip, words.split(","))):
            name, _, given = word.partition("=")
            if name not in names:
                raise InvalidInput(f"{data} has no column {name!r}.")
            columns[name] = made(given)
    columns[target] = _target(classes, target_range)
    missing = [name for name in names if name not in columns]
    if missing and not sys.stdin.isatty():
        raise InvalidInput(
            f"The kind of these columns is not said: {', '.join(missing)}. Name them with "
            "--numbers, --categories, --flags, --dates or --ignored."
        )
    for name in missing:
        columns[name] = _asked(name)
    schema = TableSchema.from_dict({"columns": {n: columns[n] for n in names}, "target": target})
    written = schema.write(out)
    Console().print(f"Schema: [bold]{written}[/]. Everything in it counts as public.")


def _number(given: str) -> dict[str, Any]:
    if not given:
        return {"kind": "number"}
    low, _, high = given.partition(":")
    pair = (opt.parse_number(low, "low"), opt.parse_number(high, "high"))
    return {"kind": "number", "low": pair[0], "high": pair[1]}


def _category(given: str) -> dict[str, Any]:
    return {"kind": "category"} | ({"values": given.split("|")} if given else {})


def _target(classes: str, bounds: str) -> dict[str, Any]:
    if bool(classes) == bool(bounds):
        raise InvalidInput("Give --classes of a target with labels, or --target-range of a number.")
    if classes:
        return _category("|".join(name.strip() for name in classes.split(",")))
    return _number(bounds.replace(",", ":"))


def _asked(name: str) -> dict[str, Any]:
    """The kind of one column, from a person."""
    kind = typer.prompt(f"{name}: {', '.join(_KINDS)}?", default="ignored")
    if kind not in _KINDS:
        return _asked(name)
    if kind == "number":
        return _number(typer.prompt("  public bounds LOW:HIGH (empty: unknown)", default=""))
    if kind == "category":
        return _category(typer.prompt("  all values A|B|C (empty: unknown)", default=""))
    return {"kind": kind}


@app.command("plan")
def plan(
    schema: SchemaFile,
    epsilon: Epsilon,
    records: Annotated[int, option("Number of rows (public).", "N")],
    delta: Level = None,
    adjacency: Neighbours = "replace-one",
    as_json: opt.AsJson = False,
) -> None:
    """What a budget would buy for a table of this schema, before a row is read.

    Example: `tightrope table plan --schema schema.yaml --epsilon 1 --records 30000`
    """
    from tightrope.accounting import account
    from tightrope.cli.tables import remark
    from tightrope.process.codec import to_json
    from tightrope.tables import PrivatePipeline, TableSchema

    table = TableSchema.read(schema)
    model = PrivatePipeline(
        table,
        epsilon=opt.parse_number(epsilon, "epsilon"),
        delta=None if delta is None else opt.parse_number(delta, "delta"),
        adjacency=adjacency,
        records=records if adjacency == "add-or-remove" else None,
    )
    share, before, counted = model.planned(table, records)
    spent = account(share.whole).guarantee(model.delta_).epsilon(model.delta_).upper
    view = {
        "schema": "tightrope.table.plan/1",
        "epsilon": spent,
        "delta": model.delta_,
        "adjacency": adjacency,
        "preprocessing_share": share.share,
        "count_noise": before.cells or None,
        "rarest_category": before.threshold if before.categories else None,
        "fit_mu": share.mu,
        "process": to_json(share.whole),
    }
    if as_json:
        print(json.dumps(view))
        return
    console = Console(highlight=False)
    console.print(
        f"epsilon <= {rounded_up(spent, 6)} at delta = {rounded_up(model.delta_, 3)}, "
        f"{adjacency} neighbours"
    )
    console.print(f"Preprocessing takes {share.share:.0%} of the budget (as squared mu).")
    if before.cells:
        part = before.cells / counted
        console.print(f"Counts for bounds and ranks get noise of {part:.2%} of the rows.")
    if before.categories:
        console.print(
            f"A category stands by itself from {before.threshold:,} rows on "
            f"({before.threshold / counted:.1%}); rarer ones are merged."
        )
    remark(filter(None, [no_promise(spent, model.delta_, counted)]))
    noise = 2.0 / (counted * share.mu)
    words = "little" if noise < 1e-3 else "some" if noise < 1e-2 else "much"
    console.print(f"The fit gets {words} noise: {noise:.1e} of a row's weight in its mean.")


@app.command("fit")
def fit(
    data: Data,
    schema: SchemaFile,
    epsilon: Epsilon,
    delta: Level = None,
    model: Model = None,
    preprocessing: Annotated[
        float, option("Share of the budget for bounds, ranks, categories.")
    ] = 0.12,
    adjacency: Neighbours = "replace-one",
    records: Records = None,
    out: Annotated[Path, option("Where to write the model.", "FILE")] = Path("model.json"),
    ledger: Annotated[
        str | None, option("Book the fit in this ledger (path or URL).", "LEDGER")
    ] = None,
    dataset: Annotated[str | None, option("The ledger's name for these data.", "NAME")] = None,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Fit a private model to a raw table; model and certificate may be published.

    Example: `tightrope table fit t.csv --schema schema.yaml --epsilon 1`
    """
    from tightrope.cli.tables import remark
    from tightrope.estimators import PromisesNothing
    from tightrope.evidence.certificate import FILE, write
    from tightrope.tables import PrivatePipeline, TableSchema
    from tightrope.tables.model_file import MODELS, write_model

    for path in (out, out.parent / FILE):
        opt.may_write(path, force)  # before the fit: another one would cost as much privacy again
    out.parent.mkdir(parents=True, exist_ok=True)
    if model is not None and model not in MODELS:
        raise InvalidInput(f"--model must be one of {', '.join(MODELS)}; got {model!r}.")
    table = TableSchema.read(schema)
    if table.target is None:
        raise InvalidInput(f"{schema} names no target.")
    pipeline: Any = PrivatePipeline(
        table,
        None if model is None else MODELS[model](),
        epsilon=opt.parse_number(epsilon, "epsilon"),
        delta=None if delta is None else opt.parse_number(delta, "delta"),
        preprocessing=preprocessing,
        adjacency=adjacency,
        records=records,
    )
    quiet = warnings.catch_warnings(category=PromisesNothing, action="ignore")  # remarked below
    progress = Progress(console=Console(stderr=True), transient=True)
    with quiet, _spending(ledger, dataset), progress as bar:
        rows = bar.add_task("rows read", total=None)
        passes = bar.add_task("passes over the rows", total=None)
        pipeline._on_rows = lambda seen: bar.update(rows, completed=seen)
        pipeline._on_pass = lambda: bar.advance(passes)
        pipeline.fit(data)
    write_model(pipeline, out)
    certificate = write(pipeline.certificate(), out.parent / FILE)
    if as_json:
        print(json.dumps(_fit_view(pipeline, out, certificate)))
        return
    console = Console(highlight=False)
    console.print(pipeline.report())
    spent = pipeline.guarantee_.epsilon(pipeline.delta_).upper
    remark(filter(None, [no_promise(spent, pipeline.delta_, pipeline.records_)]))
    console.print(f"Model: [bold]{out}[/]. Use it: tightrope table predict {out} FILE")
    console.print(f"Certificate: [bold]{certificate}[/]. Check it: tightrope verify {certificate}")


def _fit_view(model: PrivatePipeline, out: Path, certificate: Path) -> dict[str, Any]:
    return {
        "schema": "tightrope.table.fit/1",
        "epsilon": model.guarantee_.epsilon(model.delta_).upper,
        "delta": model.delta_,
        "adjacency": str(model.guarantee_.adjacency),
        "preprocessing_epsilon": model.preprocessing_epsilon_,
        "preprocessing_share": model.preprocessing_share_,
        "words": model.report(),
        "model": str(out),
        "certificate": str(certificate),
    }


def _spending(ledger: str | None, dataset: str | None) -> AbstractContextManager[None]:
    if (ledger is None) != (dataset is None):
        raise InvalidInput("--ledger and --dataset go together: give both, or neither.")
    if ledger is None or dataset is None:
        return nullcontext()
    from tightrope.ledger.spending import spending

    return spending(ledger, dataset)


@app.command("predict")
def predict(
    model: Annotated[Path, typer.Argument(help="A model file of `tightrope table fit`.")],
    data: Data,
    out: Annotated[Path | None, option("A CSV file; default: the screen.", "FILE")] = None,
    probabilities: Annotated[
        bool, option("A column for each class.", None, "--probabilities")
    ] = False,
    force: opt.Force = False,
) -> None:
    """Predict the target of each row of a table. The model file holds no code.

    Example: `tightrope table predict model.json new.csv --out predicted.csv`
    """
    from tightrope.tables.model_file import read_model

    read = read_model(model)
    if out is not None:
        opt.may_write(out, force)
    if probabilities and not hasattr(read, "predict_proba"):
        raise InvalidInput("Only a logistic model gives probabilities.")
    header = list(read.classes_) if probabilities else [str(read._schema.target)]
    found = read.predict_proba(data).tolist() if probabilities else read.predict(data).tolist()
    rows = found if probabilities else [[value] for value in found]
    file = sys.stdout if out is None else out.open("w", newline="", encoding="utf-8")
    try:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([_shown(value) for value in row] for row in rows)
    finally:
        if out is not None:
            file.close()


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else value
