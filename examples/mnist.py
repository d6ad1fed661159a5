"""MNIST with the network of "Deep Learning with Gaussian Differential Privacy" (Table 1).

    TIGHTROPE_DATA=/path/to/data python examples/mnist.py            # first setting, 15 epochs
    TIGHTROPE_DATA=/path/to/data python examples/mnist.py --row 2    # sigma 1.1, 60 epochs

The paper divides by the realised batch size; here the divisor is the public constant 256.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.data import Split, load_mnist
from tightrope.train import (
    Evaluation,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    Trainer,
    accuracy,
    noisy_sgd,
)

DELTA = 1e-5
PUBLIC_SIZE, BATCH = 60_000, 256  # the size of MNIST is public knowledge


@dataclass(frozen=True)
class Setting:
    learning_rate: float
    clip_norm: float
    noise_multiplier: float
    epochs: int
    paper_accuracy: float


PAPER = [
    Setting(0.25, 1.5, 1.3, 15, 95.0),
    Setting(0.15, 1.0, 1.1, 60, 96.6),
    Setting(0.25, 1.5, 0.7, 45, 97.0),
    Setting(0.25, 1.5, 0.6, 62, 97.6),
    Setting(0.25, 1.5, 0.55, 68, 97.8),
    Setting(0.25, 1.5, 0.5, 100, 98.0),
]


def make_model() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),  # (B, 16, 14, 14)
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),  # (B, 16, 13, 13)
        nn.Conv2d(16, 32, 4, stride=2),  # (B, 32, 5, 5)
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),  # (B, 32, 4, 4)
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),  # (B, 10)
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # as the paper's library starts them
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model.to(memory_format=torch.channels_last)  # fast pooling on CPUs


def losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, labels, reduction="none")  # (B,)


def as_tensors(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.from_numpy(split.x.copy()).float().div_(255.0)[:, None]  # (n, 1, 28, 28)
    return images, torch.from_numpy(split.y.copy()).long()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--row", type=int, default=1, choices=range(1, 7), help="row of Table 1")
    options.add_argument("--data", default=None, help="folder of MNIST (else TIGHTROPE_DATA)")
    options.add_argument("--steps", type=int, help="train that long instead of the paper's epochs")
    options.add_argument("--quiet", action="store_true", help="no progress bar")
    chosen = options.parse_args()
    setting = PAPER[chosen.row - 1]

    mnist = load_mnist(chosen.data)
    run = noisy_sgd(
        make_model(),
        learning_rate=setting.learning_rate,
        sampler=PoissonSampler(rate=BATCH / PUBLIC_SIZE),
        clip=FlatClip(setting.clip_norm),
        noise=GaussianNoise(setting.noise_multiplier),
        expected_batch_size=BATCH,
    )
    test = Evaluation(as_tensors(mnist.test), accuracy, every=500)
    trainer = Trainer(run, losses, delta=DELTA, evaluation=test, progress=not chosen.quiet)
    length = {"steps": chosen.steps} if chosen.steps else {"epochs": setting.epochs}
    outcome = trainer.fit(as_tensors(mnist.train), **length)

    print(f"steps           {outcome.steps}")
    reached = 100 * trainer.evaluate(test)
    print(f"test accuracy   {reached:.2f} %  (paper: {setting.paper_accuracy} %)")
    print(f"privacy         epsilon <= {outcome.epsilon.upper:.4f} at delta = {DELTA:g}")


if __name__ == "__main__":
    main()
