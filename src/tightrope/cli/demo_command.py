"""`tightrope demo`: the main job on an embedded default, in a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tightrope.cli import options as opt
from tightrope.cli.options import option


def demo(
    out: Annotated[Path, option("Folder for what it writes.", "FOLDER")] = Path("tightrope-demo"),
    as_json: opt.AsJson = False,
) -> None:
    """Account, calibrate, train a small private model, and leave evidence; about a minute."""
    from rich.console import Console

    from tightrope.cli.demo import tell_story

    found = tell_story(out, Console(stderr=as_json))
    if as_json:
        print(json.dumps(found))
    if not found["holds"]:
        raise typer.Exit(1)
