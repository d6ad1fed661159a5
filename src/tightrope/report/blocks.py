"""What a page is made of, written once and rendered as HTML or Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import final


@final
@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@final
@dataclass(frozen=True)
class Text:
    text: str


@final
@dataclass(frozen=True)
class Callout:
    """The sentence to take away; `good` is False for warnings."""

    text: str
    good: bool = True


@final
@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@final
@dataclass(frozen=True)
class FactList:
    """Names and values, few and short."""

    items: tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class TableBlock:
    """`head` may be empty; columns named in `numbers` (by position) are aligned right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()


@final
@dataclass(frozen=True)
class Figure:
    """`alt` says in words what the picture shows."""

    svg: str
    alt: str
    caption: str


Block = Heading | Text | Callout | Bullets | FactList | TableBlock | Figure


def _inline(text: str) -> str:
    """Escaped text in which `backquotes` mark code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def as_html(blocks: Sequence[Block]) -> str:
    """Figures that follow each other stand side by side where there is room."""
    parts: list[str] = []
    for at, block in enumerate(blocks):
        figure = isinstance(block, Figure)
        if figure and not (at and isinstance(blocks[at - 1], Figure)):
            parts.append('<div class="figures">')
        parts.append(_html(block))
        if figure and not (at + 1 < len(blocks) and isinstance(blocks[at + 1], Figure)):
            parts.append("</div>")
    return "\n".join(parts)


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Callout(text, good):
            return f'<p class="headline {"good" if good else "bad"}">{_inline(text)}</p>'
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"
        case FactList(items):
            rows = (f"<div><dt>{_inline(n)}</dt><dd>{_inline(v)}</dd></div>" for n, v in items)
            return f'<dl class="facts">{"".join(rows)}</dl>'
        case TableBlock():
            return _table(block)
        case Figure(svg, alt, caption):
            drawing = svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
            return f"<figure>{drawing}<figcaption>{_inline(caption)}</figcaption></figure>"


def _table(table: TableBlock) -> str:
    head = "".join(f'<th scope="col">{_inline(name)}</th>' for name in table.head)
    rows = "".join(f"<tr>{_cells(row, table)}</tr>" for row in table.rows)
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    caption = f"<caption>{_inline(table.caption)}</caption>"
    return f"<table>{caption}{top}<tbody>{rows}</tbody></table>"


def _cells(row: tuple[str, ...], table: TableBlock) -> str:
    first = f'<th scope="row">{_inline(row[0])}</th>'
    kinds = dict.fromkeys(table.numbers, ' class="number"')
    names = {at: f' data-name="{escape(name)}"' for at, name in enumerate(table.head)}
    rest = (
        f"<td{kinds.get(at, '')}{names.get(at, '')}>{_inline(cell)}</td>"
        for at, cell in enumerate(row[1:], start=1)
    )
    return first + "".join(rest)


def as_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


_SAFE = {"\\": "\\\\", "&": "&amp;", "<": "&lt;", ">": "&gt;", "[": "\\[", "]": "\\]", "|": "\\|"}


def _safe(text: str) -> str:
    """Text that Markdown takes for text: no tags, no links, no columns."""
    return "".join(_SAFE.get(character, character) for character in text)


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_safe(text)}"
        case Text(text):
            return _safe(text)
        case Callout(text):
            return f"> **{_safe(text)}**"
        case Bullets(items):
            return "\n".join(f"- {_safe(item)}" for item in items)
        case FactList(items):
            return "\n".join(f"- {_safe(name)}: {_safe(value)}" for name, value in items)
        case TableBlock():
            return _markdown_table(block)
        case Figure(_, alt, _):
            return f"*{_safe(alt)}*"


def _markdown_table(table: TableBlock) -> str:
    width = len(table.rows[0]) if table.rows else len(table.head)
    head = table.head or ("",) * width
    rule = ["---:" if at in table.numbers else "---" for at in range(width)]
    rows = [head, tuple(rule), *(tuple(map(_safe, row)) for row in table.rows)]
    return "\n".join([f"{_safe(table.caption)}:", "", *(f"| {' | '.join(row)} |" for row in rows)])
