"""Help shows a flag as a flag: typer 0.29 prints `<bool>` behind it, as if it took a value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["Commands"]


class Commands(TyperGroup):
    """A list of commands whose flags have no type."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            _without_types(found.get_params(ctx))
        return found


def _without_types(parameters: Any) -> Any:
    for one in parameters:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return parameters
