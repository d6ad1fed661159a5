"""What `tightrope demo` does: the main job on an embedded default, in a minute."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tightrope.accounting import account
from tightrope.calibrate import Target, find_noise
from tightrope.cli.demo_training import (
    DATASET,
    attack_digits,
    missing_package,
    open_books,
    train_digits,
)
from tightrope.cli.demo_training import DELTA as LEVEL
from tightrope.cli.tables import show_account
from tightrope.cli.verdict import verdict_of
from tightrope.errors import MissingTool
from tightrope.evidence.certificate import FILE, Title, certify, read, titled, write, write_text
from tightrope.evidence.signature import Trust, new_key_pair, signed
from tightrope.evidence.verify import holds, verify
from tightrope.numerics.rounding import rounded_down, rounded_up
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.account_view import account_view
from tightrope.report.page import html_page, page_of
from tightrope.report.plots import account_plot

if TYPE_CHECKING:
    from tightrope.ledger.office import BudgetLedger

__all__ = ["tell_story"]

DELTA = 1e-5
TITLE = Title(organisation="Tightrope", model="Demonstration", data_set="Handwritten digits")
NEXT = """
What to try next:
  tightrope account --rate 256/60000 --noise 1.1 --epochs 60
  tightrope sweep --rate 256/60000 --noise 1.1 --epochs 60 --over noise
  tightrope explore    # a page where epsilon follows the slider that you drag
  your own model: docs/from_opacus.md"""
MNIST = NoisySGD(PoissonSampling(256 / 60000), noise_multiplier=1.1, steps=14062)


def tell_story(out: Path, console: Console) -> dict[str, Any]:
    """Account, calibrate, train, attack, certify; each step says what it found, and so does this.

    Schema `tightrope.demo/1`.
    """
    out.mkdir(parents=True, exist_ok=True)
    account_found = _account(console, out)
    noise = _calibrate(console)
    folder = _fresh_folder(out)
    trained = _train(console, folder)
    files = _evidence(console, out, folder if trained else None)
    return {
        "schema": "tightrope.demo/1", "account": account_found, "noise_multiplier": noise,
        "trained": trained, **files,
    }  # fmt: skip


def _fresh_folder(out: Path) -> Path:
    """A run folder that is not there yet: another run is never resumed or removed."""
    names = (f"run-{number}" for number in itertools.count(1))
    return next(out / name for name in names if not (out / name).exists())


def _account(console: Console, out: Path) -> dict[str, Any]:
    console.rule("1. How private is DP-SGD on MNIST?")
    console.print("Batches of 256 of 60,000 images, noise multiplier 1.1, 60 epochs.")
    result = account(MNIST)
    view = account_view(result, DELTA)
    show_account(view, console)
    account_plot(result, DELTA, out / "account.png")
    return {"epsilon": view["answer"]["epsilon"], "delta": DELTA}


def _calibrate(console: Console) -> float:
    console.rule("2. How little noise reaches epsilon = 3?")
    found = find_noise(MNIST, Target.approx_dp(3.0, DELTA))
    console.print(f"noise multiplier [bold green]{rounded_up(found.value, 8)}[/], certified")
    return float(found.value)


def _train(console: Console, folder: Path) -> dict[str, Any] | None:
    """Train into a run folder and attack a twin of the run; None where packages are missing."""
    console.rule("3. A private model of handwritten digits, at epsilon = 3")
    missing = missing_package()
    if missing is not None:
        console.print(f"Training needs {missing}: pip install 'tightrope[train,sklearn]'. Skipped.")
        return None
    ledger = open_books(folder.with_name(f"{folder.name}-ledger.db"))
    trained = train_digits(folder, ledger)
    console.print(
        f"accuracy [bold green]{trained.accuracy:.1%}[/] on digits it never saw, epsilon "
        f"[bold green]{rounded_up(trained.epsilon, 7)}[/] at delta = {LEVEL:g} "
        f"(noise multiplier {trained.noise_multiplier:.4f})"
    )
    if ledger is not None:
        _books(console, ledger)
    found = attack_digits(folder)
    console.print(
        f"{found.audit.canaries} canaries in a twin of the run: an attacker who sees every step "
        f"proves epsilon >= [bold green]{rounded_down(found.audit.epsilon_lower, 3)}[/]"
    )
    attacked = {"canaries": found.audit.canaries, "epsilon_lower": found.audit.epsilon_lower}
    return {**asdict(trained), "delta": LEVEL, "audit": attacked}


def _books(console: Console, ledger: BudgetLedger) -> None:
    standing = ledger.standing(DATASET)
    console.print(
        f"In the ledger of this data set [bold green]{standing.share:.1%}[/] of its budget is "
        "spent; a second training would be refused"
    )
    ledger.close()


def _evidence(console: Console, out: Path, folder: Path | None) -> dict[str, Any]:
    """The certificate of the run (of the declared process where nothing was trained)."""
    console.rule("4. Evidence that others can check")
    plain = titled(certify(MNIST, DELTA) if folder is None else read(folder), TITLE)
    certificate, trust = _signed(console, plain, out / "demo.key")
    path = write(certificate, out / "certificate.json")
    if folder is not None:
        write(certificate, folder / FILE)
    checks = verify(certificate, trust=trust)
    console.print(verdict_of(checks))
    page = write_text(out / "report.html", html_page(page_of(folder or path, trust=trust)))
    console.print(f"Report: [bold]{page}[/]\nCertificate: [bold]{path}[/]")
    console.print(f"Pictures: [bold]{out / 'account.png'}[/]")
    if folder is not None:
        console.print(f"Run folder: [bold]{folder}[/] (private: never publish it)")
    console.print(NEXT, soft_wrap=True, highlight=False)
    return {
        "holds": holds(checks), "certificate": str(path), "report": str(page),
        "picture": str(out / "account.png"), "folder": None if folder is None else str(folder),
    }  # fmt: skip


def _signed(
    console: Console, certificate: dict[str, Any], key: Path
) -> tuple[dict[str, Any], Trust | None]:
    """Signed by a key of the demo's own, where signatures can be made."""
    try:
        if not key.exists():
            new_key_pair(key)
        made = signed(certificate, key)
        console.print(f"Signed with [bold]{key}[/]; readers need [bold]{key}.pub[/]")
        return made, Trust.of([f"{key}.pub"])
    except MissingTool as error:
        console.print(f"{error} Not signed.", markup=False)
        return certificate, None
