"""`tightrope reproduce`: the papers' figures and tables, with the truth beside the claim."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tightrope.reproduce.catalog import find
from tightrope.reproduce.folder import finished, run_item
from tightrope.reproduce.index import write_index
from tightrope.reproduce.index_words import MARKS, counts, show
from tightrope.reproduce.item import Item, Setting

__all__ = ["reproduce"]

_COLOURS = {
    "reproduced": "green",
    "differs": "yellow",
    "claim invalid": "red",
    "beyond the paper": "cyan",
    "not run": "dim",
}


def reproduce(
    item: Annotated[str, typer.Argument(help="One item, or all.")] = "all",
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("reproduction"),
    quick: Annotated[bool, typer.Option(help="Minutes, on made data, for a first look.")] = False,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    names: Annotated[bool, typer.Option("--list", help="List the items and stop.")] = False,
) -> None:
    """Make the five papers' figures and tables again; finished items are not run twice."""
    console = Console()
    chosen = find(item)
    if names:
        for each in chosen:
            console.print(f"[bold]{each.name}[/]  {each.paper}: {each.title}", highlight=False)
        return
    records = _run(console, chosen, out, quick, device)
    console.print(_lines(records[0]) if len(records) == 1 else _table(records))
    page = write_index(out)[1]
    console.print(f"index page: [bold]{escape(str(page))}[/]", highlight=False)


def _run(
    console: Console, chosen: tuple[Item, ...], out: Path, quick: bool, device: str
) -> list[dict[str, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    records, known = [], 0
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=len(chosen))
        for item in chosen:
            tell = partial(_tell, progress, task, item.name)
            tell("computing")
            setting = Setting(quick=quick, learned=out / "learning", device=device, tell=tell)
            known += finished(item, setting, out) is not None
            records.append(run_item(item, setting, out))
            progress.advance(task)
        progress.update(task, description="done")
    if known:
        console.print(f"{known} of {len(chosen)} were finished before and not run again")
    return records


def _tell(progress: Progress, task: TaskID, name: str, word: str) -> None:
    progress.update(task, description=f"{name}: {word}")


def _table(records: list[dict[str, Any]]) -> Table:
    """One row an item: how its claims fared; the index page has every line."""
    met = counts(records)
    table = Table("item", "figure or table", show_footer=True)
    table.columns[0].footer = f"{sum(met.values())} claims"
    for verdict, count in met.items():
        name = f"[{_COLOURS[verdict]}]{MARKS[verdict]} {verdict}[/]"
        table.add_column(name, f"[{_COLOURS[verdict]}]{count}[/]", justify="right")
    for record in records:
        own = counts([record])
        cells = (f"[{_COLOURS[v]}]{own[v]}[/]" if v in own else "" for v in met)
        table.add_row(record["item"], escape(record["title"]), *cells)
    return table


def _lines(record: dict[str, Any]) -> Table:
    """Every claim of one item."""
    table = Table("what", "claim", "ours", "truth", "verdict", title=record["title"])
    for line in record["lines"]:
        colour, mark = _COLOURS[line["verdict"]], MARKS[line["verdict"]]
        numbers = (escape(show(line[key])) for key in ("claim", "ours", "truth"))
        verdict = f"[{colour}]{mark} {line['verdict']}[/] {escape(line['because'])}"
        table.add_row(escape(line["what"]), *numbers, verdict)
    return table
