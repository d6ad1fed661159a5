"""Commands that other packages add, under the entry point group `tightrope.commands`."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from tightrope.errors import InvalidInput

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Every command found, by its name; `reproduce` says where to get it when it is not there."""
    found = {each.name: each for each in entry_points(group="tightrope.commands")}
    for name, each in found.items():
        app.command(name)(each.load())
    if "reproduce" not in found:
        app.command("reproduce", context_settings=_ANY_WORDS)(_reproduce)


_ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}


def _reproduce() -> None:
    """Reproduce the five papers' figures and tables (a package of its own: not installed)."""
    raise InvalidInput(
        "The reproduction of the papers is not installed: it is a package of its own. In a clone "
        "of the repository run `make install`, or `pip install ./papers`."
    )
