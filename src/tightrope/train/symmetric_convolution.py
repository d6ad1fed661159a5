"""Convolutions whose filters come in all eight turns and mirror images (Cohen and Welling 2016).

The same functions take an eighth of the weights, so the noise of a private step is smaller by the
square root of eight (Hölzl et al. 2023). What the layer finds in a picture it finds as well in the
picture turned: the eight channels of a family change places, and nothing else.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train.standard_convolution import standardised

__all__ = ["TURNS", "SymmetricConv2d"]

TURNS = 8


@final
class SymmetricConv2d(nn.Conv2d):
    """A convolution by standardised weights, each used in eight ways; it has no bias.

    Channels are families of eight, one for each turn. plain: the inputs are no families but
    channels of a picture, as in a first layer.
    """

    places: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        padding: int = 0,
        plain: bool = False,
    ) -> None:
        families = (out_channels,) if plain else (in_channels, out_channels)
        if any(channels % TURNS for channels in families):
            raise InvalidInput(
                f"SymmetricConv2d came with {in_channels} input and {out_channels} output "
                f"channels: they are families of {TURNS}, one channel for each turn, so both are "
                f"multiples of {TURNS} (the inputs of a first layer are not: plain=True)."
            )
        super().__init__(in_channels, out_channels, kernel_size, padding=padding, bias=False)
        self.weight = nn.Parameter(self.weight.detach()[: out_channels // TURNS].clone())
        self.register_buffer("places", _places(in_channels, kernel_size, plain), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.used(), None)

    def used(self) -> Tensor:
        """(out, in, k, k): every filter in its eight ways."""
        once = standardised(self.weight)[0].flatten(1)  # (families, in k k)
        return once[:, self.places].view(self.out_channels, *self.weight.shape[1:])

    def uses(self, *, last: bool) -> Tensor:
        """(8, in k k): where each weight stands in its eight uses; last: channels innermost."""
        found = self.places.argsort(1)
        if not last:
            return found
        channels, *kernel = self.weight.shape[1:]
        ordered = found.view(TURNS, channels, -1).movedim(1, -1).flatten(1)
        area = kernel[0] * kernel[1]
        return ordered % area * channels + ordered // area


@lru_cache(maxsize=64)
def _places(channels: int, size: int, plain: bool) -> Tensor:
    """(8, channels size size): for each use, which weight stands at a place."""
    weights = torch.arange(channels * size * size).view(-1, 1 if plain else TURNS, size, size)
    return torch.stack(
        [
            _turned(weights if plain else weights[:, _before(turn)], turn).flatten()
            for turn in range(TURNS)
        ]
    )


def _turned(pictures: Tensor, turn: int) -> Tensor:
    """Mirrored or not, then turned by right angles."""
    seen = pictures.flip(-1) if turn >= 4 else pictures
    return seen.rot90(turn % 4, (-2, -1))


@lru_cache(maxsize=TURNS)
def _before(turn: int) -> list[int]:
    """For each turn, the one after which `turn` leads to it."""
    picture = torch.arange(9).view(3, 3)
    after = [_turned(_turned(picture, first), turn) for first in range(TURNS)]
    wanted = [_turned(picture, other) for other in range(TURNS)]
    return [
        next(i for i, found in enumerate(after) if torch.equal(found, other)) for other in wanted
    ]
