"""`tightrope demo`: the main job on an embedded default, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("tightrope-demo"),
) -> None:
    """Account, calibrate, train a small private model, and leave evidence; about a minute."""
    from tightrope.cli.demo_story import tell_story

    tell_story(out)
