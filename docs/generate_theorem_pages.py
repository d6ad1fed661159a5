"""Write docs/theorems/<name>.md from the docstring of each theorem: one home for a text.

python docs/generate_theorem_pages.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from tightrope.theorems.catalog import ANALYSES, THEOREMS
from tightrope.theorems.stopping_times import StoppingTimes

FOLDER = Path(__file__).parent / "theorems"
HEADINGS = ("Statement", "Proof", "Conditions", "Validity", "Source", "Error", "Vectors")


def page(theorem: Any) -> str:
    """A page that says what the theorem's docstring says, under its headings."""
    text = inspect.cleandoc(theorem.__doc__)
    title, rest = text.split("\n", 1)
    parts = re.split(rf"^({'|'.join(HEADINGS)}): ", rest, flags=re.MULTILINE)
    lines = [f"# {theorem.NAME}", "", title, ""]
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        lines += [f"## {heading}", "", inspect.cleandoc("    " + body.strip()), ""]
    file = theorem.__module__.replace(".", "/")
    lines += [f"Code: `{theorem.__name__}` in `src/{file}.py`. Kind: {theorem.VALIDITY}.", ""]
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
    """PoissonGaussianExactZdw22 has the page poisson_gaussian_exact_zdw22.md."""
    name = theorem.__name__.removesuffix("Theorem")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() + ".md"


def written() -> dict[str, str]:
    return {file_name(theorem): page(theorem) for theorem in (*THEOREMS, StoppingTimes)}


def pages() -> dict[str, str]:
    return {**written(), "README.md": index()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        target = FOLDER / name
        if not target.exists() or name == "README.md" or "\nCode: `" in target.read_text():
            target.write_text(text)
