"""What is learned: data, network, loss and measure, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput
from tightrope.train.users import Augment, CropAndFlip
from tightrope_reproduce.datasets import (
    Split,
    encode_imdb,
    load_adult,
    load_cifar10,
    load_fashion_mnist,
    load_imdb_texts,
    load_mnist,
    load_movielens,
    words_of,
)
from tightrope_reproduce.learning import encoder, models
from tightrope_reproduce.learning.colour import colour_features, with_mirror
from tightrope_reproduce.learning.prior import picture_net, two_rates
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.scattering import Scattering
from tightrope_reproduce.learning.slices import sliced_steps

__all__ = ["Task", "Examples", "TASKS", "task_of", "losses"]

Rows = tuple[Tensor, Tensor]  # inputs and labels; row i of both belongs to example i


@final
@dataclass(frozen=True)
class Examples:
    train: Rows
    test: Rows


Loader = Callable[[Path | None, int], Examples]


@final
@dataclass(frozen=True)
class Task:
    """load(folder, seed): the examples; a random split is drawn with the seed.

    measure(outputs, labels): the number that is reported, from all test outputs at once.
    loop: a training loop of its own, in place of the library's (slices.py).
    augment: makes `views` views of each example, in training and, their outputs averaged, in tests.
    micro: examples computed at a time on a GPU, where a whole batch would not fit.
    compiled: on a GPU the step is compiled, in bfloat16.
    rates: groups of parameters for SGD with their rates; without it all have the recipe's.
    test_views: views of a test example; 0: as many as in training.
    """

    load: Loader
    model: Callable[[], nn.Module]
    measure: Callable[[Tensor, Tensor], float]
    unit: str = "accuracy in %"
    loop: Callable[..., Iterator[int]] | None = None
    views: int = 1
    augment: Augment | None = None
    micro: int | None = None
    compiled: bool = False
    rates: Callable[[nn.Module, float], Any] | None = None
    test_views: int = 0


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")  # (B,)


def accuracy_percent(outputs: Tensor, labels: Tensor) -> float:
    return 100.0 * float((outputs.argmax(dim=1) == labels).double().mean())


def star_rmse(outputs: Tensor, labels: Tensor) -> float:
    """Root mean squared error of the mean star under the softmax."""
    stars = torch.arange(outputs.shape[1], dtype=torch.float64, device=outputs.device)
    expected = outputs.double().softmax(dim=1) @ stars
    return float((expected - labels).square().mean().sqrt())


_NAMES = {"mnist": load_mnist, "fashion": load_fashion_mnist}


@lru_cache(maxsize=2)
def _images(name: str, folder: Path | None) -> Examples:
    data = _NAMES[name](folder)

    def rows(split: Split) -> Rows:
        grey = torch.from_numpy(split.x.copy()).float().div_(255.0)[:, None]  # (n, 1, 28, 28)
        return grey, torch.from_numpy(split.y.copy()).long()

    return Examples(rows(data.train), rows(data.test))


@lru_cache(maxsize=2)
def _features(name: str, folder: Path | None) -> Examples:
    """The same examples as scattering features, (n, 81, 7, 7), each image on its own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    transform, data = Scattering(28).to(device), _images(name, folder)
    train, test = (transform.normalised(x.to(device)) for x, _ in (data.train, data.test))
    return Examples((train, data.train[1]), (test, data.test[1]))


def _pictures(folder: Path | None) -> Examples:
    """CIFAR-10 as bytes, (n, 3, 32, 32)."""
    data = load_cifar10(folder)

    def rows(split: Split) -> Rows:
        return torch.from_numpy(split.x.copy()), torch.from_numpy(split.y.copy()).long()

    return Examples(rows(data.train), rows(data.test))


def _fashion_pictures(folder: Path | None) -> Examples:
    """Fashion-MNIST in the shape of CIFAR-10: three equal colours, two more pixels at each side."""
    data = load_fashion_mnist(folder)

    def rows(split: Split) -> Rows:
        wide = np.pad(split.x, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, axis=1)
        return torch.from_numpy(wide), torch.from_numpy(split.y.copy()).long()

    return Examples(rows(data.train), rows(data.test))


@lru_cache(maxsize=1)
def _cifar(folder: Path | None) -> Examples:
    device, data = "cuda" if torch.cuda.is_available() else "cpu", _pictures(folder)
    (train, labels), (test, others) = data.train, data.test
    features = (colour_features(images.to(device)) for images in (train, test))
    return Examples((next(features), labels), (next(features), others))


@lru_cache(maxsize=1)
def _tokens(folder: Path | None) -> Examples:
    return Examples(*encoder.tokens(folder))


def _adult(folder: Path | None, seed: int) -> Examples:
    """The training file of 32,561 people alone, a random tenth of it held out, as in the paper."""
    people = load_adult(folder).train
    return _held_out(torch.from_numpy(people.x), torch.from_numpy(people.y), 3_256, seed)


def _adult_last_tenth(folder: Path | None, seed: int) -> Examples:
    """The last tenth of the file held out, unshuffled: what the authors' script does."""
    people = load_adult(folder).train
    rows = torch.from_numpy(people.x), torch.from_numpy(people.y)
    train, test = ((rows[0][part], rows[1][part]) for part in (slice(-3_256), slice(-3_256, None)))
    return Examples(train, test)


@lru_cache(maxsize=1)
def _imdb(folder: Path | None) -> Examples:
    """The last 256 words of each review, of a vocabulary of 10,000 counted on the training part.

    The paper does not say which end is cut; the end is what the data of its authors' tutorial
    keeps. Its text drops the other words; the tutorial has one number for all of them, as here.
    """
    texts = load_imdb_texts(folder)
    counts = Counter(word for text in texts.train for word in words_of(text))
    vocabulary = [word for word, _ in counts.most_common(10_000 - 2)]

    def rows(reviews: list[str], labels: NDArray[Any]) -> Rows:
        ends = [" ".join(words_of(text)[-256:]) for text in reviews]
        return torch.from_numpy(encode_imdb(ends, vocabulary, 256)), torch.from_numpy(labels)

    return Examples(rows(texts.train, texts.train_labels), rows(texts.test, texts.test_labels))


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


def _split_given(load: Callable[[Path | None], Examples]) -> Loader:
    """A loader of data with an official split: the seed has no part in it."""
    return lambda folder, seed: load(folder)


def _picture_task(
    load: Callable[[Path | None], Examples], views: int = 8, test_views: int = 0
) -> Task:
    """4,096 rows are computed at a time."""
    return Task(
        _split_given(load), picture_net, accuracy_percent, views=views, augment=CropAndFlip(),
        micro=4096 // views, compiled=True, rates=two_rates, test_views=test_views,
    )  # fmt: skip


def _task(name: str, data: Callable[..., Examples], model: Callable[[], nn.Module]) -> Task:
    return Task(_split_given(partial(data, name)), model, accuracy_percent)


TASKS = {
    "mnist": _task("mnist", _images, models.mnist_cnn),
    "mnist-linear": _task("mnist", _features, models.scattering_linear),
    "mnist-cnn": _task("mnist", _features, models.scattering_cnn),
    "fashion-linear": _task("fashion", _features, models.scattering_linear),
    "fashion-cnn": _task("fashion", _features, models.scattering_cnn),
    "adult": Task(_adult, models.adult_mlp, accuracy_percent),
    "adult-last-tenth": Task(_adult_last_tenth, models.adult_mlp, accuracy_percent),
    "imdb": Task(_split_given(_imdb), models.ImdbNet, accuracy_percent),
    "imdb-slices": Task(_split_given(_imdb), models.ImdbNet, accuracy_percent, loop=sliced_steps),
    "movielens": Task(_movielens, models.CollaborativeNet, star_rmse, "root mean squared error"),
    "cifar-cnn": Task(
        _split_given(_cifar), models.colour_cnn, accuracy_percent, views=2, augment=with_mirror
    ),
    "cifar-pictures": _picture_task(_pictures),
    "cifar-views": _picture_task(_pictures, views=16, test_views=64),
    "fashion-pictures": _picture_task(_fashion_pictures),
    "imdb-lora": Task(_split_given(_tokens), encoder.adapted, accuracy_percent, micro=512),
    "imdb-all": Task(_split_given(_tokens), encoder.whole, accuracy_percent, micro=512),
    "digits": Task(_digits, models.digits_mlp, accuracy_percent),
}


def task_of(recipe: Recipe) -> Task:
    if recipe.task not in TASKS:
        known = ", ".join(TASKS)
        raise InvalidInput(f"No task is called {recipe.task!r} ({recipe.name}); known: {known}.")
    return TASKS[recipe.task]
