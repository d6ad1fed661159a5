"""One-run audits of a convolutional network on MNIST: both kinds of canaries, both views.

Needs the data (TIGHTROPE_DATA). The numbers in docs/evidence.md are printed by `pytest -s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")

from torch import Tensor, nn  # noqa: E402

from tightrope.audit import Audit, audit_inputs, audit_training, input_canaries  # noqa: E402
from tightrope.errors import TightropeError  # noqa: E402
from tightrope.train import (  # noqa: E402
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
    noisy_sgd,
)
from tightrope_reproduce.datasets import load_mnist  # noqa: E402

pytestmark = pytest.mark.slow
torch.set_num_threads(1)

DELTA = 1e-5


@dataclass(frozen=True)
class Setting:
    """Input canaries must be learned by heart to be seen, so they get fewer rows and more steps."""

    records: int
    rate: float
    steps: int
    canaries: int
    learning_rate: float
    noise_multiplier: float  # of the honest run
    claimed: float  # noise multiplier that is claimed where there is no noise


GRADIENT = Setting(5000, 0.05, 200, 1000, 1.0, 1.0, 4.0)
INPUT = Setting(500, 0.2, 600, 500, 4.0, 4.0, 10.0)


@lru_cache
def mnist(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Private rows, and others to make canaries of."""
    try:
        split = load_mnist().train
    except TightropeError as missing:
        pytest.skip(f"MNIST is not here: {missing}")
    rows, end = setting.records, setting.records + setting.canaries
    images = torch.from_numpy(split.x[:end].copy()).float().div_(255.0)[:, None]
    labels = torch.from_numpy(split.y[:end].copy()).long()
    return images[:rows], labels[:rows], images[rows:], labels[rows:]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


class NoiseOff:
    """Says a noise multiplier and adds nothing."""

    private, description, splits_over_ranks = True, "says it is Gaussian", True

    def __init__(self, noise_multiplier: float) -> None:
        self.noise_multiplier = noise_multiplier

    def add_(self, sums: Any, sensitivity: float) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return losses(model(images), labels)


def start(setting: Setting, noise: Any, data: tuple[Tensor, Tensor]) -> PrivateRun:
    return noisy_sgd(
        network(),
        data,
        loss,
        steps=setting.steps,
        learning_rate=setting.learning_rate,
        sampler=PoissonSampler(setting.rate, seed=1),
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=setting.rate * setting.records,
    )


def show(name: str, found: Audit, claimed: float) -> None:
    print(
        f"\n{name}: epsilon >= {found.epsilon_lower:.3f}, mu >= {found.mu_lower:.3f} "
        f"({found.correct} of {found.guesses} right, {found.attack}); certified {claimed:.3f}"
    )


def gradient_audit(noise: Any) -> tuple[Audit, float]:
    run = start(GRADIENT, noise, mnist(GRADIENT)[:2])
    found = audit_training(
        run,
        list,
        delta=DELTA,
        canaries=GRADIENT.canaries,
        seed=3,
    )
    return found, run.epsilon(DELTA).upper


def input_audit(noise: Any, kind: Any, *, white_box: bool) -> tuple[Audit, float]:
    images, labels, other_images, other_labels = mnist(INPUT)
    canaries = input_canaries(
        other_images, other_labels, INPUT.canaries, kind=kind, classes=10, seed=4
    )
    claimed = []

    def fit(data: tuple[Tensor, Tensor]) -> nn.Module:
        run = start(INPUT, noise, data)
        list(run)
        claimed.append(run.epsilon(DELTA).upper)
        return run.model

    before = network() if white_box else None
    found = audit_inputs((images, labels), canaries, fit, losses, delta=DELTA, start=before, seed=5)
    return found, claimed[0]


def test_gradient_canaries_on_an_honest_run_stay_below_and_come_close() -> None:
    found, claimed = gradient_audit(GaussianNoise(GRADIENT.noise_multiplier, seed=2))
    show("gradient canaries, white box", found, claimed)
    assert 0.2 * claimed < found.epsilon_lower < claimed


def test_gradient_canaries_find_missing_noise() -> None:
    found, claimed = gradient_audit(NoiseOff(GRADIENT.claimed))
    show("noise off, gradient canaries, white box", found, claimed)
    assert found.epsilon_lower > claimed


WAYS = [("mislabelled", False), ("mislabelled", True), ("random", False)]


@pytest.mark.parametrize(("kind", "white_box"), WAYS)
def test_input_canaries_on_an_honest_run_stay_below(kind: str, white_box: bool) -> None:
    noise = GaussianNoise(INPUT.noise_multiplier, seed=2)
    found, claimed = input_audit(noise, kind, white_box=white_box)
    show(f"{kind} images, {'white' if white_box else 'black'} box", found, claimed)
    assert found.epsilon_lower < claimed


@pytest.mark.parametrize(("kind", "white_box"), WAYS)
def test_input_canaries_find_missing_noise(kind: str, white_box: bool) -> None:
    found, claimed = input_audit(NoiseOff(INPUT.claimed), kind, white_box=white_box)
    show(f"noise off, {kind} images, {'white' if white_box else 'black'} box", found, claimed)
    assert found.epsilon_lower > claimed
