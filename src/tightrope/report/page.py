"""One self-contained page about a certificate: opens offline, prints, reads aloud.

`html_page` and `markdown_page` say the same things; the second without figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import Any, final

from tightrope.accounting import Account, account
from tightrope.guarantee.base import Guarantee
from tightrope.process.codec import from_json
from tightrope.report.account_view import account_view
from tightrope.report.page_figures import history_svg, profile_svg, tradeoff_svg
from tightrope.report.words import assumptions, headline, what_would_change

__all__ = ["Page", "html_page", "markdown_page"]


@final
@dataclass(frozen=True)
class Page:
    """A certificate together with the account that is recomputed from its process."""

    certificate: dict[str, Any]

    @cached_property
    def account(self) -> Account:
        return account(from_json(self.certificate["process"]))

    @property
    def delta(self) -> float:
        return float(self.certificate["setting"]["delta"])

    @cached_property
    def guarantee(self) -> Guarantee:
        return self.account.guarantee(self.delta)

    @property
    def run(self) -> dict[str, Any]:
        return self.certificate.get("run") or {}

    @cached_property
    def view(self) -> dict[str, Any]:
        return account_view(self.account, self.delta)

    @property
    def numbers(self) -> str:
        epsilon = self.view["answer"]["epsilon"]["upper"]
        shown = epsilon if isinstance(epsilon, str) else f"{epsilon:.6g}"
        neighbours = self.certificate["setting"]["adjacency"]
        return f"epsilon = {shown} at delta = {self.delta:g} ({neighbours} neighbours)"


def html_page(certificate: dict[str, Any]) -> str:
    page = Page(certificate)
    style = files("tightrope.report").joinpath("page.css").read_text()
    parts = [
        "<h1>Privacy report</h1>",
        f"<p>{escape(page.numbers)}, by {escape(page.view['answer']['analysis'])} "
        f"({escape(page.view['answer']['kind'])}).</p>",
        f'<p class="headline">{escape(headline(page.guarantee))}</p>',
        _figures(page),
        "<h2>Every analysis of this process</h2>",
        _analyses(page),
        "<h2>Assumptions</h2>",
        _assumptions(page),
        "<h2>What would change the guarantee</h2>",
        _list(what_would_change(certificate)),
        *_run_section(page),
        "<h2>Check it yourself</h2>",
        "<p><code>tightrope verify certificate.json</code> recomputes every claim from the process "
        "by two independent numerical methods.</p>",
        f"<p>Cite as: Tightrope {escape(certificate['library']['version'])}, certificate "
        f"<code>{escape(certificate['chain']['run'][:16])}</code>.</p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Privacy report</title><style>{style}</style></head><body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _figures(page: Page) -> str:
    drawn = [
        (tradeoff_svg(page.guarantee, page.run.get("audit")), "What the best attacker can do."),
        (profile_svg(page.account, page.delta), "Privacy loss by analysis; lower is better."),
    ]
    history = page.run.get("history")
    if history:
        budget = (page.run.get("budget") or {}).get("epsilon")
        drawn.append((history_svg(history, budget), "Privacy spent during training."))
    caption = "<figure>{}<figcaption>{}</figcaption></figure>"
    cells = [caption.format(svg, escape(told)) for svg, told in drawn]
    return f'<div class="figures">{"".join(cells)}</div>'


def _analyses(page: Page) -> str:
    rows = []
    for row in page.view["analyses"]:
        if row["foreign"]:
            continue
        told = row["source"] if row["applies"] else row["reason"]
        kind = row["kind"] if row["applies"] else "refused"
        cells = f"<td>{escape(row['name'])}</td>" + f'<td class="number">{_epsilon(row)}</td>'
        rows.append(f"<tr>{cells}<td>{kind}</td><td>{escape(told)}</td></tr>")
    head = "<tr><th>analysis</th><th>epsilon</th><th>kind</th><th>source, or why refused</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _epsilon(row: dict[str, Any]) -> str:
    value = row["epsilon"]
    if value is None:
        return "-"
    number = value.get("estimate", value.get("upper"))
    shown = number if isinstance(number, str) else f"{number:.5g}"
    return f"about {shown}" if "estimate" in value else shown


def _assumptions(page: Page) -> str:
    items = []
    for met, told in assumptions(page.certificate, page.guarantee.validity):
        mark = '<span class="yes">yes</span>' if met else '<span class="no">not shown</span>'
        items.append(f"<li>{mark} {escape(told)}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _run_section(page: Page) -> list[str]:
    facts = {k: v for k, v in page.run.items() if isinstance(v, (str, int, float, bool))}
    if not facts:
        return []
    rows = [f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in facts.items()]
    return ["<h2>The run</h2>", f"<table>{''.join(rows)}</table>"]


def markdown_page(certificate: dict[str, Any]) -> str:
    page = Page(certificate)
    rows = [
        f"| {r['name']} | {_epsilon(r)} | {r['kind'] if r['applies'] else 'refused'} |"
        for r in page.view["analyses"]
        if not r["foreign"]
    ]
    marks = [
        f"- [{'x' if met else ' '}] {told}"
        for met, told in assumptions(certificate, page.guarantee.validity)
    ]
    lines = [
        "# Privacy report",
        "",
        f"{page.numbers}, by {page.view['answer']['analysis']} ({page.view['answer']['kind']}).",
        "",
        f"> {headline(page.guarantee)}",
        "",
        "| analysis | epsilon | kind |",
        "| --- | --- | --- |",
        *rows,
        "",
        "## Assumptions",
        *marks,
        "",
        "## What would change the guarantee",
        *(f"- {item}" for item in what_would_change(certificate)),
        "",
    ]
    return "\n".join(lines)
