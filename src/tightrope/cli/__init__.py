"""The `tightrope` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point; says what to install when the command's own dependencies are missing."""
    try:
        from tightrope.cli.app import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.exit(f"The tightrope command needs {missing.name}: pip install 'tightrope[cli]'")
    run()
