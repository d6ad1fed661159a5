"""The lines of a verification, for people at a terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from tightrope.evidence.check import DECISIVE, NO_PROMISE, Check, State, Verdict, verdict

__all__ = ["verdict_of"]

_NAMES = 18  # columns


def verdict_of(checks: list[Check]) -> Group:
    """The lines, grouped by who answers for them; the statement at the end."""
    groups = dict[tuple[State, str], list[Check]]()
    for check in checks:
        if check.name not in (DECISIVE, NO_PROMISE) or not check.holds:
            groups.setdefault((check.state, check.by), []).append(check)
    ordered = sorted(groups, key=lambda key: [*State].index(key[0]))
    parts = [_group(state, by, groups[state, by]) for state, by in ordered]
    return Group(*(part for table in parts for part in (table, "")), _conclusion(checks))


def _group(state: State, by: str, checks: list[Check]) -> Table:
    name = Column(min_width=_NAMES, max_width=_NAMES)
    said = Column(overflow="fold")  # nothing of it is left out
    heading = Text(f"{state.capitalize()}{f' ({by})' if by else ''}", "bold not italic")
    table = Table(Column(width=5), name, said, title=heading, title_justify="left")
    table.show_header, table.box, table.padding = False, None, (0, 1, 0, 0)
    for check in checks:
        style = {None: "", True: "green", False: "bold red"}[check.holds]
        verdict = "" if check.holds is None else check.verdict
        table.add_row(Text(verdict, style), Text(check.name, style or "dim"), Text(check.said))
    return table


def _conclusion(checks: list[Check]) -> Text:
    """One sentence: what holds, what fails, what is not promised, or that nothing was decided."""
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
