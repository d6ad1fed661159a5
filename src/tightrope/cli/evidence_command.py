"""`tightrope certify`, `verify` and `report`: claims in a file, checked and explained."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tightrope.cli import options as opt
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from tightrope.evidence.verify import Check
    from tightrope.interop import Setting

__all__ = ["certify", "verify", "report", "checks_table"]


@opt.with_setting()
def certify(
    setting: Setting,
    source: opt.Source = None,
    out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("certificate.json"),
) -> None:
    """Write the certificate of a declared run."""
    from tightrope.cli.tables import remark
    from tightrope.evidence.certificate import certify as make_certificate
    from tightrope.evidence.certificate import write
    from tightrope.report.second_opinion import level_for

    reading = opt.reading_of(setting, source, "certify")
    level = level_for(setting, [reading])
    write(make_certificate(reading.certifiable(), level.delta), out)
    remark((*reading.notes, *level.remarks))
    print(f"Certificate: {out}. Check it with: tightrope verify {out}")


def verify(
    certificate: Annotated[Path, typer.Argument(help="A certificate.json, or a run folder.")],
    rigorous: Annotated[
        bool, typer.Option("--rigorous", help="Also prove the main claim in ball arithmetic.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Recompute every claim from the process alone; exit code 1 if one fails.

    What cannot be proved here either way (no python-flint, a law beyond ball arithmetic) is "not
    checked", which is no failure.
    """
    from tightrope.evidence.certificate import read
    from tightrope.evidence.check import outcome
    from tightrope.evidence.verify import verify as check_certificate

    content = read(certificate)
    checks = check_certificate(content)
    if rigorous:
        from tightrope.evidence.rigorous import reprove

        checks.append(reprove(content))
    if as_json:
        print(json.dumps({"holds": outcome(checks), "checks": list(map(asdict, checks))}))
    else:
        from tightrope.cli.tables import screen

        screen().print(checks_table(checks))
    if outcome(checks) is not True:
        raise typer.Exit(1 if outcome(checks) is False else 3)


def checks_table(checks: list[Check]) -> Table:
    from rich.table import Table

    table = Table("line", "state", "verdict", "said", header_style="bold")
    for check in checks:
        style = {None: "yellow", True: "green", False: "bold red"}[check.holds]
        state = f"{check.state}{f' ({check.by})' if check.by else ''}"
        table.add_row(check.name, state, check.verdict, check.said, style=style)
    return table


def report(
    where: Annotated[Path, typer.Argument(help="A certificate.json, or a run folder.")],
    out: Annotated[Path, typer.Option(help="An .html or .md file.")] = Path("report.html"),
    with_diagnostics: Annotated[
        bool,
        typer.Option(
            "--with-diagnostics",
            help="Show losses and clipping of a run folder: not covered by epsilon, not for print.",
        ),
    ] = False,
) -> None:
    """Turn a certificate or a run folder into one page for people."""
    from tightrope.evidence.certificate import write_text
    from tightrope.report.page import html_page, markdown_page, page_of

    if out.suffix not in (".html", ".md"):
        raise InvalidInput(f"A report is written as .html or .md; got {out.name!r}.")
    page = page_of(where, with_diagnostics=with_diagnostics)
    write_text(out, markdown_page(page) if out.suffix == ".md" else html_page(page))
    print(f"Report: {out}")
    if with_diagnostics:
        print("It shows private data without noise: do not publish it.")
