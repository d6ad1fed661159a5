"""Write docs/theorems/<module>.md from the docstring of each theorem module: one home for a text.

python docs/generate_theorem_pages.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from tightrope.theorems import stopping_times
from tightrope.theorems.catalog import ANALYSES, THEOREMS

FOLDER = Path(__file__).parent / "theorems"
HEADINGS = ("Statement", "Proof", "Conditions", "Validity", "Source", "Error", "Vectors")


def page(theorem: Any) -> str:
    """A page that says what the module's docstring says, under its headings."""
    text = inspect.cleandoc(theorem.__doc__)
    title, rest = text.split("\n", 1)
    parts = re.split(rf"^({'|'.join(HEADINGS)}): ", rest, flags=re.MULTILINE)
    lines = [f"# {theorem.NAME}", "", title, ""]
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        lines += [f"## {heading}", "", inspect.cleandoc("    " + body.strip()), ""]
    module = theorem.__name__.rsplit(".", 1)[1]
    lines += [f"Code: `src/tightrope/theorems/{module}.py`. Kind: {theorem.VALIDITY}.", ""]
    return "\n".join(lines)


def index() -> str:
    rows = [
        f"| [{a.lead.NAME}]({file_name(a.lead)}) | {a.lead.VALIDITY} | {a.lead.SOURCE} |"
        for a in ANALYSES
    ]
    head = ["# Theorems", "", "| analysis | kind | source |", "|---|---|---|"]
    leads = {file_name(a.lead) for a in ANALYSES} | {"README.md"}
    rest = sorted({page.name for page in FOLDER.glob("*.md")} | set(written()) - leads)
    others = [f"- [{_title(name)}]({name})" for name in rest if name not in leads]
    return "\n".join([*head, *rows, "", "Behind them, and beside them:", "", *others, ""])


def _title(name: str) -> str:
    text = written()[name] if name in written() else (FOLDER / name).read_text()
    return text.split("\n", 1)[0].removeprefix("# ")


def file_name(theorem: Any) -> str:
    return theorem.__name__.rsplit(".", 1)[1] + ".md"


def written() -> dict[str, str]:
    return {file_name(theorem): page(theorem) for theorem in (*THEOREMS, stopping_times)}


def pages() -> dict[str, str]:
    return {**written(), "README.md": index()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        target = FOLDER / name
        if not target.exists() or name == "README.md" or "Code: `src/" in target.read_text():
            target.write_text(text)
