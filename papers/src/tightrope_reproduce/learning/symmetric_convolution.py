"""Convolutions whose filters come in all eight turns and mirror images (Cohen and Welling 2016).

The same functions take an eighth of the weights, so the noise of a private step is smaller by the
square root of eight (Hölzl et al. 2023). What the layer finds in a picture it finds as well in the
picture turned: the eight channels of a family change places, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train.checks import standardised

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
        _check_square("kernel_size", kernel_size, low=1)
        _check_square("padding", padding, low=0)
        families = (out_channels,) if plain else (in_channels, out_channels)
        if any(channels % TURNS for channels in families):
            raise InvalidInput(
                f"SymmetricConv2d came with {in_channels} input and {out_channels} output "
                f"channels: they are families of {TURNS}, one channel for each turn, so both are "
                f"multiples of {TURNS} (the inputs of a first layer are not: plain=True)."
            )
        super().__init__(in_channels, out_channels, kernel_size, padding=padding, bias=False)
        self.weight = nn.Parameter(self.weight.detach()[: out_channels // TURNS].clone())
        self.plain = plain
        self.register_buffer("places", self._places_now(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The places are found anew where the layer goes: to_empty loses them, no file has them."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        with torch.device(self.places.device):
            self.places = self._places_now()
        return self

    def _places_now(self) -> Tensor:
        return _places(self.in_channels, self.kernel_size[0], self.plain)

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(input, self.used(), None)
        return out

    def used(self) -> Tensor:
        """(out, in, k, k): every filter in its eight ways."""
        once = standardised(self.weight).flatten(1)  # (families, in k k)
        return once[:, self.places].view(self.out_channels, *self.weight.shape[1:])


def _check_square(name: str, value: object, *, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InvalidInput(
            f"SymmetricConv2d came with {name}={value!r}: a picture is turned and mirrored, so "
            f"{name} is the same on all sides: one whole number, {low} or more."
        )


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


def _before(turn: int) -> list[int]:
    """For each turn, the one after which `turn` leads to it.

    In a mirror the right angles of what went before go the other way round.
    """
    way = -1 if turn >= 4 else 1
    return [(other // 4 ^ turn // 4) * 4 + way * (other - turn) % 4 for other in range(TURNS)]
