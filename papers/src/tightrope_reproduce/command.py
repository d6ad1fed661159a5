"""`tightrope reproduce`: the papers' figures and tables, with the truth beside the claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tightrope.cli import options as opt

__all__ = ["reproduce"]


def reproduce(
    item: Annotated[str, typer.Argument(help="One item, or all.")] = "all",
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("reproduction"),
    quick: Annotated[bool, typer.Option(help="Minutes, on made data, for a first look.")] = False,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    names: Annotated[bool, typer.Option("--list", help="List the items and stop.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Reproduce the five papers' figures and tables; finished items are not run twice."""
    from rich.console import Console

    from tightrope_reproduce.screen import list_items, show_items

    console = Console(stderr=as_json)
    found = list_items(console, item) if names else show_items(console, item, out, quick, device)
    if as_json:
        print(json.dumps({"schema": "tightrope.reproduce/1", **found}))
