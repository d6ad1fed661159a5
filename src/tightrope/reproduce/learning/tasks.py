"""What is learned: data, network, loss and measure, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.data import (
    Dataset,
    Split,
    load_adult,
    load_fashion_mnist,
    load_imdb,
    load_mnist,
    load_movielens,
)
from tightrope.reproduce.learning import models

__all__ = ["Task", "Examples", "TASKS"]

Rows = tuple[Tensor, Tensor]  # inputs and labels; row i of both belongs to example i


@final
@dataclass(frozen=True)
class Examples:
    train: Rows
    test: Rows


@final
@dataclass(frozen=True)
class Task:
    """load(folder, seed): the examples; a random split is drawn with the seed.

    measure(outputs, labels): the number that is reported, from all test outputs at once.
    """

    load: Callable[[Path | None, int], Examples]
    model: Callable[[], nn.Module]
    measure: Callable[[Tensor, Tensor], float]
    unit: str = "accuracy in %"


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")  # (B,)


def accuracy_percent(outputs: Tensor, labels: Tensor) -> float:
    return 100.0 * float((outputs.argmax(dim=1) == labels).double().mean())


def star_rmse(outputs: Tensor, labels: Tensor) -> float:
    """Root mean squared error of the mean star under the softmax."""
    stars = torch.arange(outputs.shape[1], dtype=torch.float64, device=outputs.device)
    expected = outputs.double().softmax(dim=1) @ stars
    return float((expected - labels).square().mean().sqrt())


def _mnist(folder: Path | None, seed: int) -> Examples:
    return images(load_mnist(folder))


def _fashion(folder: Path | None, seed: int) -> Examples:
    return images(load_fashion_mnist(folder))


def images(data: Dataset) -> Examples:
    def rows(split: Split) -> Rows:
        grey = torch.from_numpy(split.x.copy()).float().div_(255.0)[:, None]  # (n, 1, 28, 28)
        return grey, torch.from_numpy(split.y.copy()).long()

    return Examples(rows(data.train), rows(data.test))


def _adult(folder: Path | None, seed: int) -> Examples:
    """The training file of 32,561 people alone, a random tenth of it held out, as in the paper."""
    people = load_adult(folder).train
    return _held_out(torch.from_numpy(people.x), torch.from_numpy(people.y), 3_256, seed)


def _imdb(folder: Path | None, seed: int) -> Examples:
    data = load_imdb(folder)
    train, test = data.train, data.test
    return Examples(
        (torch.from_numpy(train.x), torch.from_numpy(train.y)),
        (torch.from_numpy(test.x), torch.from_numpy(test.y)),
    )


def _movielens(folder: Path | None, seed: int) -> Examples:
    """A random fifth of the ratings held out, as in the paper; stars 1 to 5 are classes 0 to 4."""
    ratings = load_movielens(folder)
    pairs = torch.from_numpy(np.stack([ratings.user, ratings.movie], axis=1))  # (n, 2)
    stars = torch.from_numpy(ratings.rating).long() - 1
    return _held_out(pairs, stars, len(stars) // 5, seed)


def _digits(folder: Path | None, seed: int) -> Examples:
    """1,797 digits of 8 x 8 that come with scikit-learn: the same code in seconds."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    inputs = torch.from_numpy(digits.data).float() / 16
    return _held_out(inputs, torch.from_numpy(digits.target).long(), 297, seed)


def _held_out(inputs: Tensor, labels: Tensor, test: int, seed: int) -> Examples:
    order = np.random.default_rng(seed).permutation(len(labels))
    held, kept = torch.from_numpy(order[:test]), torch.from_numpy(order[test:])
    return Examples((inputs[kept], labels[kept]), (inputs[held], labels[held]))


TASKS = {
    "mnist": Task(_mnist, models.mnist_cnn, accuracy_percent),
    "adult": Task(_adult, models.adult_mlp, accuracy_percent),
    "imdb": Task(_imdb, models.ImdbNet, accuracy_percent),
    "movielens": Task(_movielens, models.CollaborativeNet, star_rmse, "root mean squared error"),
    "digits": Task(_digits, models.digits_mlp, accuracy_percent),
}
