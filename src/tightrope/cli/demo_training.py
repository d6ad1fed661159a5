"""The demo's private model: digits that ship with scikit-learn, trained and attacked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from torch import Tensor

    from tightrope.ledger.office import BudgetLedger

__all__ = ["Trained", "train_digits", "attack_digits", "open_books", "missing_package"]

EPSILON, DELTA, STEPS, EXPECTED_BATCH, PEOPLE = 3.0, 1e-4, 400, 256, 1500
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
    canaries.save(folder, run.process, delta=DELTA)
    return audit_folder(folder)


def open_books(path: Path) -> Any:
    """A ledger in which the digits have the demo's budget in all; None where it cannot be made."""
    from importlib.util import find_spec

    from tightrope.ledger import IN_ADVANCE, Terms, Total, create_ledger

    if find_spec("sqlalchemy") is None or find_spec("alembic") is None:
        return None
    ledger = create_ledger(path)
    ledger.add(Terms(DATASET, Total(epsilon=EPSILON, delta=DELTA), choices=IN_ADVANCE))
    return ledger


def _run(data: Any, ledger: BudgetLedger | None = None, folder: Path | None = None) -> Any:
    """The run before its first step, its noise found by the exact accountant."""
    import torch
    from torch import nn

    from tightrope.train import Budget, PoissonSampler, noise_for, private

    torch.set_num_threads(1)  # so small a model only waits for other threads
    sampler = PoissonSampler(rate=EXPECTED_BATCH / PEOPLE)
    shared = Budget(EPSILON, DELTA, ledger=ledger, dataset=DATASET if ledger else None)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    return private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), data, _losses,
        sampler=sampler, noise=noise_for(Budget(EPSILON, DELTA), sampler, steps=STEPS),
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
