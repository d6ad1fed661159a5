"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tightrope.numerics.rounding import rounded_down, rounded_up

__all__ = ["screen", "remark", "epsilon_text", "show_account", "show_calibration", "compare_table"]
__all__ += ["show_plan"]

_NUMBERS = ("epsilon", "advantage")
_MOST_STEPS = 10**12  # where the search for steps ends
_LEAST_WIDTH = 44  # columns
_STYLE = {"exact": "green", "bound": "cyan", "estimate": "yellow"}


def screen() -> Console:
    """The terminal; words in brackets are words, not markup.

    A narrower one breaks the lines itself: tables made for it would leave words out.
    """
    console = Console(markup=False, emoji=False, highlight=False)
    console.width = max(console.width, _LEAST_WIDTH)
    return console


def show_account(view: dict[str, Any], console: Console | None = None) -> None:
    """The answer, the analyses that apply, and below them why the others do not."""
    console = console or screen()
    console.print(headline(view))
    remark(view.get("remarks", ()), console)
    console.print(account_table(view))
    refused = (r for r in view["analyses"] if not r["applies"] and not r["foreign"])
    for names, reason in _grouped({**row, "analysis": row["name"]} for row in refused):
        console.print(Text.assemble((f"{', '.join(names)}: ", "bold dim"), (reason, "dim")))
    foreign = sum(row["foreign"] for row in view["analyses"])
    if foreign:
        said = f"({foreign} analyses of other kinds of processes: see --json.)"
        console.print(Text(said, style="dim"))


def remark(lines: Iterable[str], console: Console | None = None) -> None:
    """What was taken for granted, below an answer."""
    for line in lines:
        (console or screen()).print(Text(line, style="yellow"))


def epsilon_text(value: Any) -> str:
    """A certified interval by its safe end, an estimate with a tilde and its error where known."""
    if value is None:
        return "-"
    if "estimate" in value:
        return f"~ {_number(value['estimate'])}{_miss(value.get('error'))}"
    upper = value["upper"]
    return _number(upper) if isinstance(upper, str) else rounded_up(upper, 6)


def _miss(error: dict[str, float] | None) -> str:
    """By how much an estimate misses the truth, where both ends agree on the side."""
    if error is None or error["lower"] <= 0.0 <= error["upper"]:
        return ""
    side = "too small" if error["upper"] < 0.0 else "too large"
    return f" ({min(abs(error['lower']), abs(error['upper'])):.3g} {side})"


def _number(value: float | str) -> str:
    return "infinite" if isinstance(value, str) else f"{value:.6g}"


def headline(view: dict[str, Any]) -> Panel:
    """The answer in one sentence, and that Poisson numbers do not apply where they do not."""
    answer = view["answer"]
    finite = answer["epsilon"]["upper"] != "infinity"
    text = Text(answer["words"], style="" if finite else "bold red")
    text.highlight_regex(r"(?<=epsilon <= )[\d.e+-]+", "bold green")
    text.append(f"\n{answer['second_method']['words']}", style="dim")
    if "group" in answer:
        told = epsilon_text(answer["group"]["epsilon"])
        text.append(f"\nfor {answer['group']['size']} records together: epsilon <= {told}")
    if "said" in view:
        style = "green" if view["said"]["verdict"] == "safe" else "bold red"
        text.append(f"\n{view['said']['words']}", style=style)
    if "poisson_claim" in answer:
        text.append(f"\n{answer['poisson_claim']['words']}", style="yellow")
    return Panel(text, title=answer["analysis"], title_align="left")


def account_table(view: dict[str, Any]) -> Table:
    table = Table(header_style="bold")
    for column in ("analysis", "epsilon", "kind", "source"):
        table.add_column(column, justify="right" if column == "epsilon" else "left")
    for row in view["analyses"]:
        if row["applies"]:
            cells = (epsilon_text(row["epsilon"]), row["kind"], row["source"])
            table.add_row(row["name"], *cells, style=_STYLE[row["kind"]])
    return table


def _grouped(rows: Iterable[dict[str, Any]]) -> list[tuple[list[str], str]]:
    """The refused analyses by their reason, which many of them share."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        reason = row["reason"].removeprefix(row["analysis"]).strip()
        groups.setdefault(reason, []).append(row["analysis"])
    return [(names, reason) for reason, names in groups.items()]


def compare_table(views: list[dict[str, Any]], delta: float) -> Table:
    """One row a run: a file, or a way of drawing batches."""
    title = f"epsilon at delta = {delta:g}"  # 80 columns hold every word of the table below
    table = Table(title=title, header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    what = "run" if "run" in views[0] else "sampling"
    for column in (what, "neighbours", "epsilon", "advantage", "analysis", "kind"):
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    for view in views:
        if "answer" not in view:
            refused = (view[what], view["adjacency"], "-", "-", view["message"], "refused")
            table.add_row(*refused, style="dim")
            continue
        answer = view["answer"]
        numbers = [epsilon_text(answer[key]) for key in ("epsilon", "membership_advantage")]
        cells = (*numbers, answer["analysis"], answer["kind"])
        table.add_row(view[what], answer["adjacency"], *cells, style=_STYLE[answer["kind"]])
    return table


def show_calibration(view: dict[str, Any], console: Console | None = None) -> None:
    """What was found, and what the other analyses would have said."""
    console = console or screen()
    answer = view["answer"]
    value = answer[answer["quantity"]]
    shown = f"{value:d}" if answer["quantity"] == "steps" else _safe(answer["quantity"], value, 8)
    text = Text.assemble(
        f"{answer['quantity'].replace('_', ' ')} = ",
        (shown, "bold green"),
        f"\ncertified: epsilon <= {epsilon_text(answer['epsilon'])} at delta = {answer['delta']:g}",
    )
    if set(view["target"]) != {"epsilon", "delta"}:
        text.append(f"\n{answer['words']}")
    if answer["quantity"] == "steps" and value >= _MOST_STEPS:
        text.append("\nMore steps were not tried: these hardly touch the budget.")
    console.print(Panel(text, title="calibrated", title_align="left"))
    remark(view.get("remarks", ()), console)
    if others := [row for row in view["alternatives"] if "reason" not in row]:
        console.print(_alternatives(view["answer"]["quantity"], others))
    for names, reason in _grouped(row for row in view["alternatives"] if "reason" in row):
        console.print(Text.assemble((f"{', '.join(names)}: ", "bold dim"), (reason, "dim")))


def _safe(quantity: str, value: float, digits: int) -> str:
    """Less noise and less delta are unsafe, so is a larger rate: rounded away from that."""
    return (rounded_down if quantity == "rate" else rounded_up)(value, digits)


def _alternatives(quantity: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title="what other analyses would have said", header_style="bold")
    for column in ("analysis", quantity.replace("_", " "), "compared", "true epsilon there"):
        table.add_column(column)
    for row in rows:
        truth = epsilon_text(row["true_epsilon"]) if "true_epsilon" in row else "within budget"
        cells = (f"{row[quantity]:.6g}", row["compared"], truth)
        table.add_row(row["analysis"], *cells, style=_STYLE[row["kind"]])
    return table


def show_plan(view: dict[str, Any]) -> None:
    """The algorithm and its promise, then what it was compared with."""
    console = screen()
    console.print(
        f"{view['algorithm']}: epsilon <= {epsilon_text(view['epsilon'])} at delta = "
        f"{rounded_up(view['delta'], 6)}, {view['adjacency']} neighbours"
    )
    if not view["compared"]:
        return
    table = Table("algorithm", "excess loss", "how", title="Least predicted excess loss first")
    for row in view["compared"]:
        table.add_row(row["algorithm"], f"{float(row['excess_loss']):.3g}", row["words"])
    console.print(table)
