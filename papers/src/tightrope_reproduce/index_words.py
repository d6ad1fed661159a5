"""What both index pages say: the words, the numbers as people read them, the counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tightrope_reproduce.item import Verdict

__all__ = [
    "TITLE",
    "INTRODUCTION",
    "HEADS",
    "MARKS",
    "QUICK",
    "show",
    "cells",
    "counts",
    "summary",
    "verdict",
    "objections",
    "by_paper",
]

TITLE = "The papers, reproduced"
INTRODUCTION = (
    "Every figure and table of the five papers, computed by Tightrope. A plain number in the "
    "claim's column is printed in the paper; one marked (formula) is the paper's formula at a "
    "setting of ours. Our number is that of the paper's own method; the exact truth stands beside "
    "it as a certified interval where one exists, or as a bound where only that is proved. A "
    "number is reproduced if it meets the printed one within what its verdict names; an inequality "
    "holds here, at the settings tried. Where a cell differs from the paper, its verdict says why. "
    "A claim is invalid if it is false as it is printed; most of these lines show a few things "
    "again and again, which are listed first. Most printed numbers come out as printed."
)
QUICK = (
    "Some items come from a quick run: fewer points on each curve, made data in place of real "
    "data. Numbers that were learned mean nothing there."
)
HEADS = ("what", "the paper's claim", "our number", "the truth", "verdict")
# a sign for each verdict: colour alone would not reach everybody
MARKS = {
    str(Verdict.REPRODUCED): "✓",
    str(Verdict.HOLDS): "≤",
    str(Verdict.DIFFERS): "≠",
    str(Verdict.INVALID): "✗",
    str(Verdict.BEYOND): "+",
    str(Verdict.NOT_RUN): "…",
}


def show(number: Any) -> str:
    """A number as people read it; an interval by its digits that agree, or both ends."""
    if number is None:
        return "-"
    if isinstance(number, dict):
        lower, upper = f"{number['lower']:.6g}", f"{number['upper']:.6g}"
        return lower if lower == upper else f"{lower} to {upper}"
    return number if isinstance(number, str) else f"{number:.6g}"


def cells(line: dict[str, Any]) -> tuple[str, str, str]:
    """Claim, our number and the truth of a line of a record."""
    claim, ours, truth = (show(line[key]) for key in ("claim", "ours", "truth"))
    formula = isinstance(line["claim"], float) and not line["printed"]
    return f"{claim} (formula)" if formula else claim, ours, truth


def verdict(line: dict[str, Any]) -> str:
    """The verdict, and how far our number may be from the printed one."""
    within = line.get("within")
    met = line["verdict"] == str(Verdict.REPRODUCED) and within is not None
    return f"{line['verdict']} within {within:.2g}" if met else str(line["verdict"])


def objections(records: list[dict[str, Any]]) -> list[tuple[str, int, list[str]]]:
    """What invalid claims come down to: the objection, how many lines show it, in which items."""
    shown: dict[str, list[str]] = {}
    for record in records:
        for line in record["lines"]:
            if line["verdict"] == str(Verdict.INVALID):
                shown.setdefault(line.get("objection") or line["what"], []).append(record["item"])
    rows = [(name, len(items), list(dict.fromkeys(items))) for name, items in shown.items()]
    return sorted(rows, key=lambda row: -row[1])


def summary(records: list[dict[str, Any]]) -> str:
    """The counts in words; invalid claims with the number of distinct objections."""
    parts = []
    for name, number in counts(records).items():
        distinct = f" ({len(objections(records))} distinct objections)"
        parts.append(f"{number} {name}" + (distinct if name == Verdict.INVALID else ""))
    return ", ".join(parts)


def counts(records: list[dict[str, Any]]) -> dict[str, int]:
    """How many claims met each verdict, in the order of the signs."""
    met = Counter(line["verdict"] for record in records for line in record["lines"])
    return {verdict: met[verdict] for verdict in MARKS if met[verdict]}


def by_paper(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["paper"], []).append(record)
    return groups
