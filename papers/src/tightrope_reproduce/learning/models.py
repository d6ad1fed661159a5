"""The networks of the trainings."""

from __future__ import annotations

import math
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, gelu, group_norm, layer_norm, max_pool2d

from tightrope_reproduce.learning.symmetric_convolution import TURNS, SymmetricConv2d

__all__ = [
    "mnist_cnn",
    "adult_mlp",
    "digits_mlp",
    "ImdbNet",
    "CollaborativeNet",
    "scattering_linear",
    "scattering_cnn",
    "colour_cnn",
    "PictureNet",
]

M = TypeVar("M", bound=nn.Module)


def mnist_cnn() -> nn.Sequential:
    """Two convolutions and one dense layer, 26,010 weights (the papers' MNIST network)."""
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
    _start(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model  # channels last: fast pooling on CPUs


def adult_mlp() -> nn.Sequential:
    return _start(nn.Sequential(nn.Linear(123, 16), nn.ReLU(), nn.Linear(16, 2)))


def digits_mlp() -> nn.Sequential:
    return _start(nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))


class ImdbNet(nn.Module):
    """16 units a word, averaged over the 256 places, 16 neurons, two classes."""

    def __init__(self, words: int = 10_000) -> None:
        super().__init__()
        self.embedding = _embedding(words, 16)
        self.head = _start(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)))

    def forward(self, words: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.embedding(words).mean(dim=1)))  # (B, 256, 16) -> (B, 2)


class CollaborativeNet(nn.Module):
    """Neural collaborative filtering: a product of 5 factors beside a pair of 10 factors."""

    def __init__(self, users: int = 6_040, movies: int = 3_706) -> None:
        super().__init__()
        self.user_product, self.movie_product = _embedding(users, 5), _embedding(movies, 5)
        self.user_pair, self.movie_pair = _embedding(users, 10), _embedding(movies, 10)
        self.head = _start(nn.Linear(25, 5))

    def forward(self, pair: Tensor) -> Tensor:
        user, movie = pair[:, 0], pair[:, 1]
        product = self.user_product(user) * self.movie_product(movie)  # (B, 5)
        joined = torch.cat([product, self.user_pair(user), self.movie_pair(movie)], dim=1)
        return cast(Tensor, self.head(joined))  # (B, 5): one class a star


def scattering_linear() -> nn.Sequential:
    """A linear classifier of the 81 x 7 x 7 features. It starts at zero: nothing is random."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(81 * 7 * 7, 10))
    for weight in model.parameters():
        nn.init.zeros_(weight)
    return model


def scattering_cnn() -> nn.Sequential:
    """A small convolutional network on the features, with tanh."""
    return _start(
        nn.Sequential(
            nn.Conv2d(81, 32, 3, padding=1),  # (B, 32, 7, 7)
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),  # (B, 32, 6, 6)
            nn.Conv2d(32, 32, 3),  # (B, 32, 4, 4)
            nn.Tanh(),
            nn.MaxPool2d(2),  # (B, 32, 2, 2)
            nn.Flatten(),
            nn.Linear(128, 10),  # (B, 10)
        )
    )


class AsFloat(nn.Module):
    """Features are kept in half precision."""

    def forward(self, features: Tensor) -> Tensor:
        return features.float()


def colour_cnn() -> nn.Sequential:
    """Tramer and Boneh's network on the 243 x 8 x 8 features of a colour image, 187,210 weights."""
    return nn.Sequential(
        AsFloat(),
        nn.Conv2d(243, 64, 3, padding=1),  # (B, 64, 8, 8)
        nn.Tanh(),
        nn.MaxPool2d(2),  # (B, 64, 4, 4)
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


class Stage(nn.Module):
    """A convolution, half the size, and a second convolution beside a short cut, normalised.

    The last norm is that of Klause et al. (2022); a norm's group is one or two families.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.groups = min(16, outputs // TURNS)
        self.one = SymmetricConv2d(inputs, outputs, 3, padding=1)
        self.two = SymmetricConv2d(outputs, outputs, 3, padding=1)
        self.first = nn.GroupNorm(self.groups, outputs)
        self.second = nn.GroupNorm(self.groups, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = gelu(self.first(max_pool2d(self.one(x), 2)))
        return group_norm(x + gelu(self.second(self.two(x))), self.groups)


class PictureBody(nn.Module):
    """(B, 3, 32, 32) from -1 to 1, to what the last two stages see, (B, 512, 4, 4)."""

    channels, places = 512, 16

    def __init__(self) -> None:
        super().__init__()
        self.start = SymmetricConv2d(3, 64, 3, padding=1, plain=True)
        self.one, self.two, self.three = Stage(64, 64), Stage(64, 256), Stage(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.two(self.one(gelu(self.start(x))))
        return torch.cat([avg_pool2d(seen, 2), self.three(seen)], dim=1)


class PictureNet(nn.Module):
    """Bytes (B, 3, 32, 32) to 10 outputs, which start at zero: 333,282 weights.

    The last layer sees where in the picture things are. Its features have norm 32, the filters norm
    6 (prior.rescaled): then their gradients are about as long. With norms of 4 and 1 those of the
    filters are forty times those of the last layer, which a clip of both together starves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = PictureBody()
        self.width = self.body.channels * self.body.places
        self.head = nn.Linear(self.width, 10)
        for weight in self.head.parameters():
            nn.init.zeros_(weight)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.body(images.float().div(127.5).sub(1.0)).flatten(1)
        scale: float = 32 / math.sqrt(self.width)
        return cast(Tensor, self.head(layer_norm(maps, (self.width,)) * scale))


def _start(module: M) -> M:
    """Glorot's uniform weights and zero biases, as the papers' library starts them."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(cast(Tensor, layer.bias))
    return module


def _embedding(rows: int, width: int) -> nn.Embedding:
    """Uniform on +-0.05, as the papers' library starts them."""
    table = nn.Embedding(rows, width)
    nn.init.uniform_(table.weight, -0.05, 0.05)
    return table
