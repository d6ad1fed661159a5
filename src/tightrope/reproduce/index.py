"""The index page: every claim, our number, the truth, the verdict; in Markdown and HTML."""

from __future__ import annotations

import html
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

from tightrope.reproduce.folder import write_text

__all__ = ["write_index"]

_TITLE = "The papers, made again"
_HEADS = ("what", "the paper's claim", "our number", "the exact truth", "verdict")
_INTRODUCTION = (
    "Every figure and table of the five papers, computed by Tightrope. Our number is that of the "
    "paper's own method; the exact truth stands beside it as a certified interval where one "
    "exists. Where a cell differs from the paper, its verdict says why."
)


def write_index(records: list[dict[str, Any]], out: Path) -> tuple[Path, Path]:
    write_text(out / "index.md", _markdown(records))
    write_text(out / "index.html", _page(records))
    return out / "index.md", out / "index.html"


def _markdown(records: list[dict[str, Any]]) -> str:
    parts = [f"# {_TITLE}\n", _INTRODUCTION + "\n", _summary(records) + "\n"]
    for paper, group in _by_paper(records).items():
        parts.append(f"## {paper}\n")
        parts += [_section(record) for record in group]
    return "\n".join(parts)


def _section(record: dict[str, Any]) -> str:
    name = record["item"]
    lines = ["| " + " | ".join(_HEADS) + " |", "| --- " * len(_HEADS) + "|"]
    lines += ["| " + " | ".join(map(_escaped, _cells(line))) + " |" for line in record["lines"]]
    pictures = [_picture(name, p) + f"\n\n*{p['caption']}*\n" for p in record["pictures"]]
    numbers = ", ".join(f"[{t}.csv]({name}/{t}.csv)" for t in record["tables"])
    tail = f"Numbers: {numbers}\n" if numbers else ""
    return "\n".join([f"### {record['title']}\n", *lines, "", *pictures, tail])


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    verdict = line["verdict"] + (f": {line['because']}" if line["because"] else "")
    numbers = (show(line[key]) for key in ("claim", "ours", "truth"))
    return (line["what"], *numbers, verdict)


def show(number: Any) -> str:
    """A number as people read it; an interval by its digits that agree, or both ends."""
    if number is None:
        return "-"
    if isinstance(number, dict):
        lower, upper = f"{number['lower']:.6g}", f"{number['upper']:.6g}"
        return lower if lower == upper else f"{lower} to {upper}"
    return number if isinstance(number, str) else f"{number:.6g}"


def _summary(records: list[dict[str, Any]]) -> str:
    counts = Counter(line["verdict"] for record in records for line in record["lines"])
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + "."


def _by_paper(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["paper"], []).append(record)
    return groups


def _page(records: list[dict[str, Any]]) -> str:
    style = files("tightrope.reproduce").joinpath("index.css").read_text()
    body = [f"<h1>{_TITLE}</h1><p>{_INTRODUCTION}</p><p><strong>{_summary(records)}</strong></p>"]
    for paper, group in _by_paper(records).items():
        body.append(f"<h2>{html.escape(paper)}</h2>")
        body += [_article(record) for record in group]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_TITLE}</title><style>{style}</style></head><body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _article(record: dict[str, Any]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADS)
    rows = "\n".join(_row(line) for line in record["lines"])
    figures = "".join(_figure(record["item"], picture) for picture in record["pictures"])
    numbers = " ".join(f'<a href="{record["item"]}/{t}.csv">{t}.csv</a>' for t in record["tables"])
    return (
        f'<article id="{record["item"]}"><h3>{html.escape(record["title"])}</h3>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{figures}"
        f"<p>{'Numbers: ' + numbers if numbers else ''}</p></article>"
    )


def _row(line: dict[str, Any]) -> str:
    mark = line["verdict"].replace(" ", "-")
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(line))
    return f'<tr class="{mark}">{cells}</tr>'


def _figure(name: str, picture: dict[str, Any]) -> str:
    caption = html.escape(picture["caption"])
    return f"<figure>{_picture(name, picture)}<figcaption>{caption}</figcaption></figure>"


def _picture(name: str, picture: dict[str, Any]) -> str:
    """The drawing for the reader's light or dark ground."""
    stem = f"{name}/{picture['name']}"
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{stem}-dark.svg">'
        f'<img src="{stem}-light.svg" alt="{html.escape(picture["caption"])}"></picture>'
    )
