"""A private run in ten lines, on the digits that come with scikit-learn. Takes a few seconds.

python examples/digits.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.train import private

DELTA = 1e-4


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """One for each example."""
    return cross_entropy(model(images), labels, reduction="none")


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    train, test = (x[:1400], y[:1400]), (x[1400:], y[1400:])
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    run = private(
        model, optimizer, train, loss, records=1400, batch_size=140, epochs=60, epsilon=6.0,
        delta=DELTA,
    )  # fmt: skip
    for step in run:
        if step.number % 100 == 0:
            print(f"step {step.number:>4}       epsilon <= {step.epsilon():.3f}")

    with torch.no_grad():
        right = (model(test[0]).argmax(1) == test[1]).float().mean()
    print(f"noise           {run.noise.noise_multiplier:.4g} times the clip norm")
    print(f"test accuracy   {100 * float(right):.1f} %")
    print(run.certificate()["statement"])


if __name__ == "__main__":
    main()
