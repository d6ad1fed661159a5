"""MNIST with the network of "Deep Learning with Gaussian Differential Privacy" (Table 1).

    TIGHTROPE_DATA=/path/to/data python examples/mnist.py            # first setting, 15 epochs
    TIGHTROPE_DATA=/path/to/data python examples/mnist.py --row 2    # sigma 1.1, 60 epochs

The paper divides by the realised batch size; here the divisor is the public constant 256.
`python -m tightrope_reproduce.learning table-1` repeats the whole table.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.numerics.rounding import rounded_up
from tightrope.train import (
    Evaluation,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    Trainer,
    accuracy,
)
from tightrope_reproduce.datasets import Split, load_mnist
from tightrope_reproduce.learning.models import mnist_cnn
from tightrope_reproduce.learning.paper import TABLE_1


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(images), labels, reduction="none")  # (B,)


def as_tensors(split: Split) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(split.x.copy()).float().div_(255.0)[:, None]  # (n, 1, 28, 28)
    return images, torch.from_numpy(split.y.copy()).long()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--row", type=int, default=1, choices=range(1, 7), help="row of Table 1")
    options.add_argument("--data", default=None, help="folder of MNIST (else TIGHTROPE_DATA)")
    options.add_argument("--steps", type=int, help="train that long instead of the paper's epochs")
    options.add_argument("--quiet", action="store_true", help="no progress bar")
    chosen = options.parse_args()
    setting = TABLE_1[chosen.row - 1]

    mnist = load_mnist(chosen.data)
    model = mnist_cnn()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=setting.learning_rate),
        as_tensors(mnist.train),
        loss,
        sampler=PoissonSampler(rate=setting.rate),  # 256 / 60,000: the size of MNIST is public
        clip=FlatClip(setting.clip_norm),
        noise=GaussianNoise(setting.noise_multiplier),
        expected_batch_size=setting.batch_size,
        steps=chosen.steps or setting.steps,
        delta=setting.delta,
        evaluation=Evaluation(
            as_tensors(mnist.test), accuracy, every=500, data_name="MNIST test set"
        ),
        progress=not chosen.quiet,
    )
    outcome = trainer.fit()

    print(f"steps           {outcome.steps}")
    reached = 100 * trainer.evaluate()
    print(f"test accuracy   {reached:.2f} %  (paper: {setting.claim} %)")
    spent = rounded_up(outcome.epsilon.upper)
    print(f"privacy         epsilon <= {spent} at delta = {setting.delta:g}")


if __name__ == "__main__":
    main()
