"""Tables for people."""

from __future__ import annotations

from typing import Any

from rich.panel import Panel
from rich.table import Table

__all__ = ["headline", "account_table", "compare_table", "epsilon_text"]

_STYLE = {"exact": "green", "bound": "cyan", "estimate": "yellow"}


def epsilon_text(value: Any) -> str:
    """A certified interval by its safe end, an estimate with a tilde and its error where known."""
    if value is None:
        return "-"
    if "estimate" in value:
        return f"~ {_number(value['estimate'])}{_miss(value.get('error'))}"
    lower, upper = value["lower"], value["upper"]
    if "infinity" in (lower, upper):
        return "infinite" if upper == "infinity" else _number(upper)
    return _number(upper)


def _miss(error: dict[str, float] | None) -> str:
    """By how much an estimate misses the truth, where both ends agree on the side."""
    if error is None or error["lower"] <= 0.0 <= error["upper"]:
        return ""
    side = "too small" if error["upper"] < 0.0 else "too large"
    return f" ({min(abs(error['lower']), abs(error['upper'])):.3g} {side})"


def _number(value: float | str) -> str:
    return "infinite" if isinstance(value, str) else f"{value:.6g}"


def headline(view: dict[str, Any]) -> Panel:
    """The answer in one sentence."""
    answer = view["answer"]
    epsilon = answer["epsilon"]
    if epsilon["upper"] == "infinity":
        text = (
            "[bold red]Not private:[/] epsilon is infinite (no noise, or a release without limit)."
        )
    else:
        text = (
            f"epsilon <= [bold green]{epsilon['upper']:.8g}[/] at delta = {view['delta']:g} "
            f"({answer['adjacency']} neighbours)"
        )
        if answer["kind"] == "exact" and epsilon["lower"] > 0:
            gap = epsilon["upper"] - epsilon["lower"]
            text += f"; the truth is at most {gap:.1g} below"
    return Panel(text, title=answer["analysis"], title_align="left")


def account_table(view: dict[str, Any]) -> Table:
    table = Table(title=None, header_style="bold")
    for column in ("analysis", "epsilon", "kind", "source or reason"):
        table.add_column(column, justify="right" if column == "epsilon" else "left")
    foreign = [row for row in view["analyses"] if row["foreign"]]
    for row in view["analyses"]:
        if row["foreign"]:
            continue
        style = _STYLE[row["kind"]] if row["applies"] else "dim"
        told = row["source"] if row["applies"] else row["reason"]
        kind = row["kind"] if row["applies"] else "refused"
        table.add_row(row["name"], epsilon_text(row["epsilon"]), kind, told, style=style)
    if foreign:
        table.caption = f"{len(foreign)} analyses of other kinds of processes are not shown."
    return table


def compare_table(views: list[dict[str, Any]], delta: float) -> Table:
    table = Table(title=f"epsilon at delta = {delta:g}", header_style="bold")
    for column in ("sampling", "neighbours", "epsilon", "analysis", "kind"):
        table.add_column(column, justify="right" if column == "epsilon" else "left")
    for view in views:
        answer = view["answer"]
        cells = (epsilon_text(answer["epsilon"]), answer["analysis"], answer["kind"])
        table.add_row(view["sampling"], answer["adjacency"], *cells, style=_STYLE[answer["kind"]])
    return table
