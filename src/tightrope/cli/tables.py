"""Tables for people: an account, a calibration, the lines of a verification."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from tightrope.numerics.rounding import rounded_down, rounded_up

if TYPE_CHECKING:
    from tightrope.evidence.check import Check, State


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
        claim = f"({foreign} analyses of other kinds of processes: see --json.)"
        console.print(Text(claim, style="dim"))


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
        words = epsilon_text(answer["group"]["epsilon"])
        text.append(f"\nfor {answer['group']['size']} records together: epsilon <= {words}")
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
    """What was found, and what the other analyses would give."""
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


def show_guarantee(view: dict[str, Any]) -> None:
    """The views of one guarantee, a table each."""
    console = screen()
    for name, argument in (("epsilon", "delta"), ("type_ii_error", "type_i"), ("renyi", "order")):
        table = Table(argument, name.replace("_", " "), header_style="bold")
        for row in view[name]:
            safe = row["lower"] if name == "type_ii_error" else row["upper"]
            rounded = rounded_down if name == "type_ii_error" else rounded_up
            shown = safe if isinstance(safe, str) else rounded(safe, 10)
            table.add_row(f"{row[argument]:g}", shown)
        console.print(table)


def show_routes(view: dict[str, Any]) -> None:
    """One conversion by every route."""
    quantity = next(name for name in ("epsilon", "delta", "gamma") if name in view["routes"][0])
    source = Column("source", overflow="fold")  # nothing of it is left out
    table = Table("route", quantity, "side", source, header_style="bold")
    for row in view["routes"]:
        value = row[quantity]
        rounded = rounded_down if "lower" in row["side"] else rounded_up
        shown = value if isinstance(value, str) else rounded(value, 10)
        table.add_row(row["name"], shown, row["side"], row["source"])
    screen().print(table)


def show_compare(view: dict[str, Any]) -> None:
    """One row a run, and what was taken for granted."""
    screen().print(compare_table(view["runs"], view["delta"]))
    remark(view["remarks"])


def show_sweep(view: dict[str, Any]) -> None:
    """One row a value."""
    name = view["over"].replace("-", "_")
    title = None if view["delta"] is None else f"epsilon at delta = {view['delta']:g}"
    table = Table(view["over"], "epsilon", "kind", title=title, header_style="bold")
    for row in view["rows"]:
        words = row.get("kind") or row["message"]
        table.add_row(f"{row[name]:g}", epsilon_text(row.get("epsilon")), words)
    screen().print(table)
    remark(view["remarks"])


def show_compose(view: dict[str, Any]) -> None:
    """One row a run, then all of them together."""
    title = f"epsilon at delta = {view['delta']:g}"
    table = Table("run", "read as", "epsilon", "kind", title=title, header_style="bold")
    for row in view["runs"]:
        table.add_row(row["run"], row["source"], epsilon_text(row["epsilon"]), row["kind"])
    whole = view["together"].get("answer", view["together"])
    table.add_row("together", "", epsilon_text(whole["epsilon"]), whole["kind"], style="bold")
    screen().print(table)
    budget = [view["budget"]["words"]] if "budget" in view else []
    remark([whole["words"], *budget, *view["remarks"]])


def show_correlated(view: dict[str, Any]) -> None:
    """The candidates, the least error first."""
    console = screen()
    best, white = view["candidates"][0], view["white"]
    share = 100.0 * (1.0 - best["error"] / white["error"])
    console.print(
        f"{best['name']}: noise multiplier {rounded_up(best['noise_multiplier'], 8)} leaves "
        f"{share:.1f}% less noise in the model than independent noise."
        if share > 0.05
        else "Independent noise with Poisson batches is best: correlating it does not pay here."
    )
    remark(view["remarks"], console)
    title = f"epsilon <= {epsilon_text(view['epsilon'])} at delta = {view['delta']:g}, each"
    table = Table(title=title, header_style="bold")
    for column in ("strategy, batches", "noise multiplier", "error", "arrays kept"):
        table.add_column(column, justify="left" if column.startswith("s") else "right")
    for row in view["candidates"]:
        style = "bold green" if row is best else ""
        numbers = (rounded_up(row["noise_multiplier"], 6), f"{row['error']:.4g}")
        table.add_row(row["name"], *numbers, str(row["buffers"]), style=style)
    console.print(table)
    remark([view["unit"]], console)


_NAMES = 18  # columns


def verdict_of(checks: list[Check]) -> Group:
    """The lines of a verification, grouped by who answers for them; the statement at the end."""
    from tightrope.evidence.check import DECISIVE, NO_PROMISE, State

    groups: dict[tuple[State, str], list[Check]] = {}
    for check in checks:
        if check.name not in (DECISIVE, NO_PROMISE) or not check.holds:
            groups.setdefault((check.state, check.by), []).append(check)
    ordered = sorted(groups, key=lambda key: [*State].index(key[0]))
    parts = [_group(state, by, groups[state, by]) for state, by in ordered]
    return Group(*(part for table in parts for part in (table, "")), _conclusion(checks))


def _group(state: State, by: str, checks: list[Check]) -> Table:
    name = Column(min_width=_NAMES, max_width=_NAMES)
    claim = Column(overflow="fold")  # nothing of it is left out
    heading = Text(f"{state.capitalize()}{f' ({by})' if by else ''}", "bold not italic")
    table = Table(Column(width=5), name, claim, title=heading, title_justify="left")
    table.show_header, table.box, table.padding = False, None, (0, 1, 0, 0)
    for check in checks:
        style = {None: "", True: "green", False: "bold red"}[check.holds]
        verdict = "" if check.holds is None else check.verdict
        table.add_row(Text(verdict, style), Text(check.name, style or "dim"), Text(check.said))
    return table


def _conclusion(checks: list[Check]) -> Text:
    """One sentence: what holds, what fails, what is not promised, or that nothing was decided."""
    from tightrope.evidence.check import DECISIVE, NO_PROMISE, Verdict, verdict

    found = verdict(checks)
    if found is Verdict.HOLDS:
        return Text(f"HOLDS: {_last(checks, DECISIVE)}", "bold green")
    if found is Verdict.PROMISES_NOTHING:
        return Text(f"PROMISES NOTHING: {_last(checks, NO_PROMISE)}", "bold red")
    if found is Verdict.FAILS:
        wrong = ", ".join(check.name for check in checks if check.holds is False)
        return Text(f"FAILS: {wrong}.", "bold red")
    return Text("NOT DECIDED: no line fails, and not all were computed.", "bold yellow")


def _last(checks: list[Check], name: str) -> str:
    return next(check.said for check in checks if check.name == name)
