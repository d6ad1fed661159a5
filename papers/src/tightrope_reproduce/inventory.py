"""Every item of every paper, with its home and its check.

`python -m tightrope_reproduce.inventory` writes the page.

inventory.csv is the one list. `home` is a module or a page of ours, or one of the words below;
`check` is an item of the reproduction or a test, and for a word its reason.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import final

from tightrope_reproduce.catalog import MODULES

__all__ = ["Entry", "entries", "page", "KINDS"]

KINDS = {
    "item": "only said with numbers: the item computes them",
    "proof": "used in proofs only; what it proves is checked",
    "left out": "not made again; the last column says why",
}
_TITLE = "# Every item of the five papers\n"
_WORDS = """Made by `python -m tightrope_reproduce.inventory` from one list. *Home* is where the
statement lives in the library, *check* what would notice if it were wrong: an item of
[the reproduction](index.md) or a test. Each test notices a fault that is planted in the home: the
lists `tests/mutants/faults_*.py` name function, fault and test, and `make mutants` shows it.
{kinds}
"""
_MISPRINTS = """## Misprints

Slips of print that we met, none of which changes what a paper shows.
"""


@final
@dataclass(frozen=True)
class Entry:
    paper: str
    place: str
    statement: str
    home: str
    check: str

    @property
    def checked_by(self) -> str:
        """An item, a test, a proof, or only words."""
        if self.check in MODULES:
            return "item"
        if self.check.startswith("tests/"):
            return "test"
        return "proof" if self.home == "proof" else "words"


def entries() -> list[Entry]:
    text = files("tightrope_reproduce").joinpath("inventory.csv").read_text()
    return [Entry(**row) for row in csv.DictReader(text.splitlines())]


def page() -> str:
    everything = entries()
    kinds = " ".join(f"*{name}*: {words}." for name, words in KINDS.items())
    parts = [_TITLE, _WORDS.format(kinds=kinds), _summary(everything)]
    for paper in dict.fromkeys(entry.paper for entry in everything):
        rows = [_row(entry) for entry in everything if entry.paper == paper]
        head = ["| place | what | home | check |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {paper}\n", *head, *rows, ""]))
    return "\n".join([*parts, _misprints()])


def _misprints() -> str:
    """What is printed wrongly, and what is right."""
    text = files("tightrope_reproduce").joinpath("misprints.csv").read_text()
    head = ["| paper | place | printed | right | how it is seen |", "|---|---|---|---|---|"]
    rows = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row.values()) + " |"
        for row in csv.DictReader(text.splitlines())
    ]
    return "\n".join([_MISPRINTS, *head, *rows, ""])


def _summary(everything: list[Entry]) -> str:
    counted = Counter(entry.checked_by for entry in everything)
    return (
        f"**{len(everything)} places: {counted['item']} checked by an item, {counted['test']} by a "
        f"test, {counted['proof']} used in proofs only, {counted['words']} in words with a "
        "reason.**\n"
    )


def _row(entry: Entry) -> str:
    home = f"`{entry.home}`" if entry.home.startswith("tightrope") else _linked(entry.home)
    check = f"[{entry.check}](index.md#{entry.check})" if entry.check in MODULES else entry.check
    return f"| {entry.place} | {entry.statement} | {home} | {_linked(check)} |"


def _linked(path: str) -> str:
    if path.startswith(("tests/", "docs/")) and " " not in path:
        target = f"../../{path}" if path.startswith("tests/") else path.replace("docs/", "../")
        return f"[{path}]({target})"
    return path


if __name__ == "__main__":
    target = Path("docs/reproduction/inventory.md")
    target.write_text(page())
    print(target)
