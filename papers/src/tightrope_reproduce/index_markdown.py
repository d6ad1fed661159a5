"""The index in Markdown: for readers of the repository."""

from __future__ import annotations

from typing import Any

from tightrope_reproduce.index_page import picture_tag
from tightrope_reproduce.index_words import (
    HEADS,
    INTRODUCTION,
    MARKS,
    QUICK,
    TITLE,
    by_paper,
    cells,
    counts,
    objections,
    summary,
    verdict,
)

__all__ = ["markdown"]


def markdown(records: list[dict[str, Any]]) -> str:
    parts = [f"# {TITLE}\n", INTRODUCTION + "\n", f"**{summary(records)}.**\n"]
    if any(record["made_by"]["quick"] for record in records):
        parts.append(QUICK + "\n")
    parts += [_objections(records), _contents(records)]
    for paper, group in by_paper(records).items():
        parts.append(f"## {paper}\n")
        parts += [_section(record) for record in group]
    return "\n".join(parts)


def _objections(records: list[dict[str, Any]]) -> str:
    rows = [
        f"| {name} | {number} | {', '.join(f'[{item}](#{item})' for item in items)} |"
        for name, number, items in objections(records)
    ]
    if not rows:
        return ""
    head = ["| what invalid claims come down to | lines | items |", "| --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n"


def _contents(records: list[dict[str, Any]]) -> str:
    lines = []
    for paper, group in by_paper(records).items():
        lines.append(f"- {paper}")
        for record in group:
            fared = " ".join(f"{MARKS[v]}{n}" for v, n in counts([record]).items())
            lines.append(f"    - [{record['title']}](#{record['item']}) ({fared})")
    return "\n".join(lines) + "\n"


def _section(record: dict[str, Any]) -> str:
    name = record["item"]
    pictures = [picture_tag(name, p) + f"\n\n*{p['caption']}*\n" for p in record["pictures"]]
    lines = ["| " + " | ".join(HEADS) + " |", "| --- " * len(HEADS) + "|"]
    lines += ["| " + " | ".join(map(_escaped, _cells(line))) + " |" for line in record["lines"]]
    numbers = ", ".join(f"[{t}.csv]({name}/{t}.csv)" for t in record["tables"])
    tail = f"Numbers: {numbers}\n" if numbers else ""
    heading = f'<a id="{name}"></a>\n\n### {record["title"]}\n'
    return "\n".join([heading, *pictures, *lines, "", tail])


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    words = f"{MARKS[line['verdict']]} {verdict(line)}"
    if line["because"]:
        words += f": {line['because']}"
    return (line["what"], *cells(line), words)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
