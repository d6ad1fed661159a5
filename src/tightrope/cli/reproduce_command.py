"""`tightrope reproduce`: the papers' figures and tables, with the truth beside the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tightrope.reproduce.catalog import find
from tightrope.reproduce.folder import run_item
from tightrope.reproduce.index import show, write_index
from tightrope.reproduce.item import Setting

__all__ = ["reproduce"]

_COLOURS = {"reproduced": "green", "beyond the paper": "cyan", "not run": "dim"}


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
    console.print(_table(records))
    page = write_index(records, out)[1]
    console.print(f"index page: [bold]{page}[/]", highlight=False)


def _run(
    console: Console, chosen: Any, out: Path, quick: bool, device: str
) -> list[dict[str, Any]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    records = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(chosen))
        for each in chosen:

            def tell(word: str, name: str = each.name) -> None:
                progress.update(task, description=f"{name}: {word}")

            tell("computing")
            setting = Setting(quick=quick, learned=out / "learning", device=device, tell=tell)
            records.append(run_item(each, setting, out))
            progress.advance(task)
    return records


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table("item", "what", "claim", "ours", "truth", "verdict")
    for record in records:
        for line in record["lines"]:
            colour = _COLOURS.get(line["verdict"], "yellow")
            numbers = (show(line[key]) for key in ("claim", "ours", "truth"))
            table.add_row(record["item"], line["what"], *numbers, f"[{colour}]{line['verdict']}[/]")
    return table
