"""What `tightrope demo` does: the main job on an embedded default, in a minute.

The private model is trained on the digits that ship with scikit-learn, and attacked.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rich.console import Console

from tightrope.accounting import account
from tightrope.calibrate import Target, find_noise
from tightrope.cli.tables import show_account, verdict_of
from tightrope.errors import MissingTool
from tightrope.evidence.certificate import FILE, Title, certify, read, titled, write
from tightrope.evidence.files import write_text
from tightrope.evidence.signature import Trust, new_key_pair, signed
from tightrope.evidence.verify import holds, verify
from tightrope.numerics.rounding import rounded_down, rounded_up
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.account_view import account_view
from tightrope.report.page import html_page, page_of
from tightrope.report.plots import account_plot

if TYPE_CHECKING:
    from torch import Tensor

    from tightrope.ledger.office import BudgetLedger


EPSILON, LEVEL, STEPS, EXPECTED_BATCH, PEOPLE = 3.0, 1e-4, 400, 256, 1500
CANARIES, DATASET = 500, "digits"


@final
@dataclass(frozen=True)
class Trained:
    """What the demo shows of a run."""

    accuracy: float
    epsilon: float
    noise_multiplier: float


def missing_package() -> str | None:
    """The optional package that training needs and this environment lacks."""
    from importlib.util import find_spec

    return next((name for name in ("torch", "sklearn") if find_spec(name) is None), None)


def train_digits(folder: Path, ledger: BudgetLedger | None = None) -> Trained:
    """A small network at (3, 1e-4); the run folder then holds its certificate.

    ledger: where given, the run reserves in it what it may spend, and settles at its end.
    """
    from tightrope.train import Evaluation, accuracy

    private_part, public = _digits()
    run = _run(private_part, ledger, folder=folder)
    outcome = run.fit(evaluation=Evaluation(public, accuracy, every=STEPS // 10))
    measured = list(outcome.measured.values())[-1]
    return Trained(measured, outcome.epsilon.upper, run.noise.noise_multiplier)


def attack_digits(folder: Path) -> Any:
    """The same training once more, with canaries; the folder then holds what the attacker saw."""
    from tightrope.audit import audit_folder, planted

    run = _run(_digits()[0])
    with planted(run, CANARIES) as canaries:
        for _ in run:
            pass
    canaries.save(folder, run.process, delta=LEVEL)
    return audit_folder(folder)


def open_books(path: Path) -> Any:
    """A ledger in which the digits have the demo's budget in all; None where it cannot be made."""
    from importlib.util import find_spec

    from tightrope.ledger import IN_ADVANCE, Terms, Total, create_ledger

    if find_spec("sqlalchemy") is None or find_spec("alembic") is None:
        return None
    ledger = create_ledger(path)
    ledger.add(Terms(DATASET, Total(epsilon=EPSILON, delta=LEVEL), choices=IN_ADVANCE))
    return ledger


def _run(data: Any, ledger: BudgetLedger | None = None, folder: Path | None = None) -> Any:
    """The run before its first step, its noise found by the exact accountant."""
    import torch
    from torch import nn

    from tightrope.train import Budget, PoissonSampler, noise_for, private

    torch.set_num_threads(1)  # so small a model only waits for other threads
    sampler = PoissonSampler(rate=EXPECTED_BATCH / PEOPLE)
    shared = Budget(EPSILON, LEVEL, ledger=ledger, dataset=DATASET if ledger else None)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    return private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), data, _losses,
        sampler=sampler, noise=noise_for(Budget(EPSILON, LEVEL), sampler, steps=STEPS),
        batch_size=EXPECTED_BATCH, steps=STEPS, budget=shared, folder=folder,
    )  # fmt: skip


def _losses(model: Any, images: Tensor, labels: Tensor) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(images), labels, reduction="none")


def _digits() -> tuple[Any, Any]:
    """1,500 private images and 297 public ones to measure on."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data / 16.0).float() - 0.5
    labels = torch.tensor(digits.target)
    return (images[:PEOPLE], labels[:PEOPLE]), (images[PEOPLE:], labels[PEOPLE:])


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
