"""The command's table of contents."""

from __future__ import annotations

import json
import sys

import typer
from rich.console import Console

from tightrope.cli import (
    account_command,
    audit_command,
    calibrate_command,
    convert_command,
    convex_command,
    demo_command,
    evidence_command,
    reproduce_command,
)
from tightrope.errors import TightropeError

__all__ = ["app", "run"]

app = typer.Typer(
    name="tightrope",
    help="How private is a noisy learning algorithm? Provably, on both sides, in milliseconds.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("account")(account_command.account)
app.command("compare")(account_command.compare)
app.command("calibrate")(calibrate_command.calibrate)
app.add_typer(convert_command.app, name="convert")
app.command("certify")(evidence_command.certify)
app.command("verify")(evidence_command.verify)
app.command("report")(evidence_command.report)
app.command("audit")(audit_command.audit)
app.command("doctor")(audit_command.doctor)
app.add_typer(convex_command.app, name="convex")
app.command("reproduce")(reproduce_command.reproduce)
app.command("demo")(demo_command.demo)


def run() -> None:
    """Run the command; a refusal is one clear message and exit code 2, never a traceback."""
    try:
        app()
    except TightropeError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        Console(stderr=True).print(f"[bold red]tightrope:[/] {error}", highlight=False)
        sys.exit(2)
