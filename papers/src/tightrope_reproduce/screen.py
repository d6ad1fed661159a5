"""What `tightrope reproduce` shows: the papers' figures and tables, the truth beside the claim."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tightrope_reproduce.catalog import find
from tightrope_reproduce.folder import finished, run_item
from tightrope_reproduce.index import write_index
from tightrope_reproduce.index_words import MARKS, cells, counts
from tightrope_reproduce.item import Item, Setting

__all__ = ["show_items", "list_items"]

_COLOURS = {
    "reproduced": "green",
    "holds here": "green",
    "differs": "yellow",
    "claim invalid": "red",
    "beyond the paper": "cyan",
    "not run": "dim",
}


def list_items(console: Console, item: str) -> dict[str, Any]:
    """The items by name, with what each one reproduces."""
    chosen = find(item)
    for each in chosen:
        console.print(f"[bold]{each.name}[/]  {each.paper}: {each.title}", highlight=False)
    listed = [{"item": one.name, "paper": one.paper, "title": one.title} for one in chosen]
    return {"items": listed}


def show_items(console: Console, item: str, out: Path, quick: bool, device: str) -> dict[str, Any]:
    """Run what was asked for, with a bar, and print how every claim fared."""
    chosen = find(item)
    try:
        records = _run(console, chosen, out, quick, device)
    finally:  # a run that is stopped leaves an index of what it finished
        page = write_index(out)[1]
    if len(records) == 1:
        _print_lines(console, records[0])
    else:
        _print_table(console, records)
    console.print(f"index page: [bold]{escape(str(page))}[/]", highlight=False)
    return {"claims": counts(records), "items": records, "index": str(page)}


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


def _print_table(console: Console, records: list[dict[str, Any]]) -> None:
    """One row an item: how its claims fared; the index page has every line."""
    met = counts(records)
    table = Table(box=box.SIMPLE)
    table.add_column("item", no_wrap=True)
    names = max(len(record["item"]) for record in records)
    room = max(console.width - names - 5 * len(met) - 8, 16)  # what names and counts leave
    table.add_column("figure or table", no_wrap=True, overflow="ellipsis", max_width=room)
    for verdict in met:
        head = f"[{_COLOURS[verdict]}]{MARKS[verdict]}[/]"
        table.add_column(head, justify="right", no_wrap=True, min_width=2)
    for record in records:
        own = counts([record])
        cells = (f"[{_COLOURS[v]}]{own[v]}[/]" if v in own else "" for v in met)
        table.add_row(record["item"], escape(record["title"]), *cells)
    console.print(table)
    sums = "  ".join(f"[{_COLOURS[v]}]{MARKS[v]} {n} {v}[/]" for v, n in met.items())
    console.print(f"{sum(met.values())} claims: {sums}", highlight=False)


def _print_lines(console: Console, record: dict[str, Any]) -> None:
    """Every claim of one item, a short paragraph each: reasons are long, terminals narrow."""
    console.print(f"[bold]{escape(record['title'])}[/]", highlight=False)
    for line in record["lines"]:
        colour, mark = _COLOURS[line["verdict"]], MARKS[line["verdict"]]
        claim, ours, truth = map(escape, cells(line))
        console.print(f"[{colour}]{mark} {line['verdict']}[/]  {escape(line['what'])}")
        numbers = f"[dim]claim[/] {claim}  [dim]ours[/] {ours}  [dim]truth[/] {truth}"
        console.print(Padding(numbers, (0, 0, 0, 4)), highlight=False)
        if line["because"]:
            console.print(Padding(f"[dim]{escape(line['because'])}[/]", (0, 0, 0, 4)))
