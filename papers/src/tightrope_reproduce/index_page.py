"""The index as one HTML page: no script, no request to anywhere.

The reader's choice of verdicts is a set of radio buttons that the style sheet looks at.
"""

from __future__ import annotations

import html
from importlib.resources import files
from typing import Any

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
    verdict,
)

__all__ = ["page", "picture_tag"]


def page(records: list[dict[str, Any]]) -> str:
    style = files("tightrope_reproduce").joinpath("index.css").read_text()
    body = [f"<header><h1>{TITLE}</h1><p>{INTRODUCTION}</p>{_quick(records)}</header>"]
    body += [_score(counts(records)), _objections(records), _contents(records)]
    for paper, group in by_paper(records).items():
        articles = "\n".join(_article(record) for record in group)
        body.append(f"<section><h2>{html.escape(paper)}</h2>\n{articles}</section>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{style}</style></head><body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _quick(records: list[dict[str, Any]]) -> str:
    if not any(record["made_by"]["quick"] for record in records):
        return ""
    return f'<p class="quick">{QUICK}</p>'


def _score(met: dict[str, int]) -> str:
    """A bar of all claims by verdict, and the choice of which ones to see."""
    bar = "".join(f'<i class="{_class(v)}" style="flex-grow:{n}"></i>' for v, n in met.items())
    everything = f"<b>{sum(met.values())}</b> claims"
    chips = _chip("all", everything, checked=True)
    chips += "".join(_chip(_class(v), f"{MARKS[v]} <b>{n}</b> {v}") for v, n in met.items())
    return (
        f'<div class="bar" aria-hidden="true">{bar}</div>'
        f'<fieldset class="score"><legend>Show</legend>{chips}</fieldset>'
    )


def _chip(name: str, words: str, checked: bool = False) -> str:
    state = " checked" if checked else ""
    return (
        f'<label class="chip {name}"><input type="radio" name="verdict" id="only-{name}"{state}>'
        f"{words}</label>"
    )


def _objections(records: list[dict[str, Any]]) -> str:
    """What the invalid claims come down to."""
    items = "".join(
        f"<li>{html.escape(name)} ({number}: "
        + ", ".join(f'<a href="#{item}">{item}</a>' for item in where)
        + ")</li>"
        for name, number, where in objections(records)
    )
    if not items:
        return ""
    distinct = len(objections(records))
    return (
        f'<details class="objections"><summary>What invalid claims come down to: {distinct} '
        f"distinct objections</summary><ol>{items}</ol></details>"
    )


def _contents(records: list[dict[str, Any]]) -> str:
    cards = []
    for paper, group in by_paper(records).items():
        links = "".join(
            f'<li><a href="#{record["item"]}">{html.escape(record["title"])}</a> '
            f"{_dots(record)}</li>"
            for record in group
        )
        cards.append(f"<div><h3>{html.escape(paper)}</h3><ul>{links}</ul></div>")
    return f'<nav aria-label="Contents">{"".join(cards)}</nav>'


def _dots(record: dict[str, Any]) -> str:
    """How an item's claims fared, as signs with counts."""
    met = counts([record])
    signs = "".join(f'<span class="{_class(v)}">{MARKS[v]}{n}</span>' for v, n in met.items())
    words = ", ".join(f"{n} {verdict}" for verdict, n in met.items())
    return f'<span class="fared" title="{words}">{signs}</span>'


def _article(record: dict[str, Any]) -> str:
    figures = "".join(_figure(record["item"], picture) for picture in record["pictures"])
    numbers = " ".join(f'<a href="{record["item"]}/{t}.csv">{t}.csv</a>' for t in record["tables"])
    return (
        f'<article id="{record["item"]}"><h3>{html.escape(record["title"])} {_dots(record)}</h3>'
        f'<div class="figures">{figures}</div>'
        f'<div class="wide">{_table(record)}</div>'
        f'<p class="numbers">{"Numbers: " + numbers if numbers else ""}</p></article>'
    )


def _table(record: dict[str, Any]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADS)
    rows = "\n".join(_row(line) for line in record["lines"])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(line: dict[str, Any]) -> str:
    told = "".join(f"<td>{html.escape(cell)}</td>" for cell in (line["what"], *cells(line)))
    mark = f'<span class="mark">{MARKS[line["verdict"]]} {verdict(line)}</span>'
    why = f'<span class="why">{html.escape(line["because"])}</span>' if line["because"] else ""
    return f'<tr class="{_class(line["verdict"])}">{told}<td>{mark} {why}</td></tr>'


def _figure(name: str, picture: dict[str, Any]) -> str:
    caption = html.escape(picture["caption"])
    return f"<figure>{picture_tag(name, picture)}<figcaption>{caption}</figcaption></figure>"


def picture_tag(name: str, picture: dict[str, Any]) -> str:
    """The drawing for the reader's light or dark ground."""
    stem = f"{name}/{picture['name']}"
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{stem}-dark.svg">'
        f'<img src="{stem}-light.svg" alt="{html.escape(picture["caption"])}"></picture>'
    )


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")
