"""`tightrope reproduce`: the papers' figures and tables, with the truth beside the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["reproduce"]


def reproduce(
    item: Annotated[str, typer.Argument(help="One item, or all.")] = "all",
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("reproduction"),
    quick: Annotated[bool, typer.Option(help="Minutes, on made data, for a first look.")] = False,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    names: Annotated[bool, typer.Option("--list", help="List the items and stop.")] = False,
) -> None:
    """Make the five papers' figures and tables again; finished items are not run twice."""
    from tightrope_reproduce.screen import show_items

    show_items(item, out, quick, device, names)
