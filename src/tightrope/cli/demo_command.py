"""`tightrope demo`: the main job on an embedded default, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tightrope.accounting import account
from tightrope.calibrate import Target, find_noise
from tightrope.cli.demo_training import missing_package, train_digits
from tightrope.cli.evidence_command import checks_table
from tightrope.cli.tables import account_table, headline
from tightrope.evidence.certificate import certify, write
from tightrope.evidence.verify import holds, verify
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.account_view import account_view
from tightrope.report.page import html_page
from tightrope.report.plots import account_plot

__all__ = ["demo"]

DELTA = 1e-5
MNIST = NoisySGD(PoissonSampling(256 / 60000), noise_multiplier=1.1, steps=14062)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("tightrope-demo"),
) -> None:
    """Account, calibrate, train a small private model, and leave evidence; about a minute."""
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    _account(console, out)
    _calibrate(console)
    process, delta, facts = _train(console)
    _evidence(console, out, process, delta, facts)


def _account(console: Console, out: Path) -> None:
    console.rule("1. How private is DP-SGD on MNIST? (batch 256 of 60,000, noise 1.1, 60 epochs)")
    result = account(MNIST)
    view = account_view(result, DELTA)
    console.print(headline(view))
    console.print(account_table(view))
    account_plot(result, DELTA, out / "account.png")


def _calibrate(console: Console) -> None:
    console.rule("2. How little noise reaches epsilon = 3?")
    found = find_noise(MNIST, Target.approx_dp(3.0, DELTA))
    console.print(f"noise multiplier [bold green]{found.value:.8f}[/], certified")


def _train(console: Console) -> tuple[Any, float, dict[str, Any] | None]:
    console.rule("3. A private model of handwritten digits, at epsilon = 3")
    missing = missing_package()
    if missing is not None:
        console.print(f"Training needs {missing}: pip install 'tightrope[train,sklearn]'. Skipped.")
        return MNIST, DELTA, None
    from tightrope.cli.demo_training import DELTA as LEVEL

    trained = train_digits()
    console.print(
        f"accuracy [bold green]{trained.accuracy:.1%}[/] on people it never saw, epsilon "
        f"[bold green]{trained.epsilon:.6f}[/] at delta = {LEVEL:g} "
        f"(noise multiplier {trained.noise_multiplier:.4f})"
    )
    return trained.process, LEVEL, trained.facts


def _evidence(
    console: Console, out: Path, process: Any, delta: float, facts: dict[str, Any] | None
) -> None:
    console.rule("4. Evidence that others can check")
    certificate = certify(process, delta, facts)
    path = write(certificate, out / "certificate.json")
    checks = verify(certificate)
    console.print(checks_table(checks))
    page = out / "report.html"
    page.write_text(html_page(certificate))
    console.print(f"Report: [bold]{page}[/]\nCertificate: [bold]{path}[/]")
    console.print(f"Pictures: [bold]{out / 'account.png'}[/]")
    if not holds(checks):
        raise typer.Exit(1)
