"""The demo's private model: handwritten digits that ship with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from tightrope.accounting import account

__all__ = ["Trained", "train_digits", "missing_package"]

EPSILON, DELTA, STEPS, EXPECTED_BATCH, PEOPLE = 3.0, 1e-4, 400, 256, 1500


@final
@dataclass(frozen=True)
class Trained:
    """What the demo shows of a run."""

    accuracy: float
    epsilon: float
    noise_multiplier: float
    process: Any
    facts: dict[str, Any]


def missing_package() -> str | None:
    """The optional package that training needs and this environment lacks."""
    from importlib.util import find_spec

    return next((name for name in ("torch", "sklearn") if find_spec(name) is None), None)


def train_digits() -> Trained:
    """A small network at (3, 1e-4), its noise found by the exact accountant."""
    import torch
    from torch.nn.functional import cross_entropy

    from tightrope.train import (
        Budget,
        Evaluation,
        FlatClip,
        PoissonSampler,
        Trainer,
        accuracy,
        noise_for,
        noisy_sgd,
    )

    private, public = _digits(torch)
    sampler = PoissonSampler(rate=EXPECTED_BATCH / PEOPLE)
    budget = Budget(EPSILON, DELTA)
    noise = noise_for(budget, sampler, steps=STEPS)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    run = noisy_sgd(
        model,
        learning_rate=2.0,
        sampler=sampler,
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=EXPECTED_BATCH,
        budget=budget,
    )
    evaluation = Evaluation(public, accuracy, every=STEPS)
    loss = lambda outputs, labels: cross_entropy(outputs, labels, reduction="none")  # noqa: E731
    outcome = Trainer(run, loss, delta=DELTA, evaluation=evaluation).fit(private, steps=STEPS)
    measured = list(outcome.measured.values())[-1]
    noise_multiplier = noise.noise_multiplier
    return Trained(measured, outcome.epsilon.upper, noise_multiplier, run.process, _facts(run))


def _digits(torch: Any) -> tuple[Any, Any]:
    """1,500 private images and 297 public ones to measure on."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data / 16.0).float() - 0.5
    labels = torch.tensor(digits.target)
    return (images[:PEOPLE], labels[:PEOPLE]), (images[PEOPLE:], labels[PEOPLE:])


def _facts(run: Any) -> dict[str, Any]:
    """The run's public record, with its spending over time, for the certificate."""
    facts = run.record().as_dict()
    facts.pop("process")
    marks = sorted({max(1, run.steps * k // 10) for k in range(1, 11)})
    spent = [
        {"step": k, "epsilon": account(replace(run.process, steps=k)).epsilon(DELTA).upper}
        for k in marks
    ]
    return {**facts, "history": spent, "budget": {"epsilon": EPSILON, "delta": DELTA}}
