"""The ten-line loop, on the digits that come with scikit-learn. Takes a few seconds.

python examples/digits.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import Budget, FlatClip, GaussianNoise, PoissonSampler, noisy_sgd

DELTA = 1e-4


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    train, test = (x[:1400], y[:1400]), (x[1400:], y[1400:])
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    run = noisy_sgd(
        model,
        learning_rate=2.0,
        sampler=PoissonSampler(rate=0.1),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.5),
        expected_batch_size=140,
        budget=Budget(epsilon=6.0, delta=DELTA),
    )
    for images, labels in run.batches(train, steps=1000):
        run.step(cross_entropy(model(images), labels, reduction="none"))

    with torch.no_grad():
        right = (model(test[0]).argmax(1) == test[1]).float().mean()
    print(f"steps           {run.steps} (as many as the budget allows)")
    print(f"test accuracy   {100 * float(right):.1f} %")
    print(run.certificate(DELTA)["statement"])


if __name__ == "__main__":
    main()
