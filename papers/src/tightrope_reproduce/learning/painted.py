"""Pictures that nobody took: random things before random grounds, painted by formulas alone.

A network can learn edges, colours, textures, shapes and what hides what before it sees any record
(Baradad et al. 2021; for private learning Tang et al. 2023, whose random process is another). Each
picture is a ground and a few things; a thing is a few blobs near one place, in colours of one
family, each with a pattern of its own, lit from one side. Every number is drawn from a generator
with a fixed seed: no photograph, no record, no pretrained weight has a part in it.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

__all__ = ["Painter", "painted"]

THINGS, PARTS, WAVES = 3, 4, 3


def painted(count: int, side: int, device: str, seed: int = 0, batch: int = 2048) -> Tensor:
    """(count, 3, side, side) bytes."""
    painter = Painter(side, device, seed)
    parts = [painter.pictures(min(batch, count - i)) for i in range(0, count, batch)]
    return torch.cat(parts)


@final
class Painter:
    """Paints at `side` x `side`, a batch of pictures at a time."""

    def __init__(self, side: int, device: str, seed: int) -> None:
        self.side, self.device = side, device
        self.chance = torch.Generator(device).manual_seed(seed)
        line = (torch.arange(side, device=device) + 0.5) * 2 / side - 1
        self.y, self.x = line[:, None].expand(side, side), line.expand(side, side)
        across = torch.fft.fftfreq(side, device=device) * side
        up = torch.fft.rfftfreq(side, device=device) * side
        self.wave = (across[:, None].square() + up.square()).sqrt().clamp(min=1.0)

    def pictures(self, count: int) -> Tensor:
        family = self._colours(count)
        picture = self._pattern(count, family, self._uniform(count, 1, low=0.2, high=1.0))
        for _ in range(THINGS):
            family, home = self._colours(count), self._uniform(count, 2, low=-0.7, high=0.7)
            size = 0.2 + 0.5 * self._uniform(count, 1)
            light = self._uniform(count, 1, low=0.0, high=2 * math.pi)
            for part in range(PARTS):
                near = home + (0.0 if part == 0 else 1.2) * size * self._normal(count, 2) * 0.7
                scale = size * (1.0 if part == 0 else self._uniform(count, 1, low=0.2, high=0.8))
                picture = self._painted_over(picture, family, near, scale, light)
        return self._taken(picture)

    def _painted_over(
        self, picture: Tensor, family: Tensor, near: Tensor, scale: Tensor, light: Tensor
    ) -> Tensor:
        """One blob over what is there; now and then one that is not there at all."""
        count = len(picture)
        inside, u, v = self._blob(near, scale)
        shade = 0.35 * self._uniform(count, 1)[..., None]
        lit = 1 + shade * (u * light.cos()[..., None] + v * light.sin()[..., None]).clamp(-1.5, 1.5)
        own = self._pattern(count, family, self._uniform(count, 1, low=0.1, high=0.6))
        there = (self._uniform(count, 1) < 0.8).float()[..., None]
        cover = (inside * there)[:, None]
        return picture + cover * (own * lit[:, None] - picture)

    def _blob(self, near: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, side, side): how far each place lies inside, and the places as the blob sees them."""
        count = len(near)
        turn = self._uniform(count, 1, low=0.0, high=2 * math.pi)
        longer = self._uniform(count, 1, low=-1.0, high=1.0).exp()
        dx, dy = self.x - near[:, :1, None], self.y - near[:, 1:, None]
        cos, sin = turn.cos()[..., None], turn.sin()[..., None]
        size = scale[..., None]
        u = (cos * dx + sin * dy) / (size * longer.sqrt()[..., None])
        v = (cos * dy - sin * dx) * longer.sqrt()[..., None] / size
        power = self._uniform(count, 1, low=0.0, high=1.6)[..., None].exp() + 0.5
        radius = (u.abs().pow(power) + v.abs().pow(power) + 1e-6).pow(1 / power)
        edge = 1 + self._ripple(torch.atan2(v, u))
        sharp = self.side * size / 2 * self._uniform(count, 1, low=0.5, high=2.0)[..., None]
        return torch.sigmoid(2 * sharp * (edge - radius)), u, v

    def _ripple(self, angle: Tensor) -> Tensor:
        """A border that is no plain ellipse."""
        total = torch.zeros_like(angle)
        for times in range(2, 7):
            height = self._normal(len(angle), 1)[..., None] * 0.25 / times
            phase = self._uniform(len(angle), 1, low=0.0, high=2 * math.pi)[..., None]
            total = total + height * torch.cos(times * angle + phase)
        return total

    def _pattern(self, count: int, family: Tensor, strength: Tensor) -> Tensor:
        """(n, 3, side, side): from one colour of the family to another, by clouds and stripes."""
        rough = self._uniform(count, 1, low=0.6, high=2.4)[..., None]
        noise = torch.randn(count, self.side, self.side, generator=self.chance, device=self.device)
        clouds = torch.fft.irfft2(torch.fft.rfft2(noise) / self.wave.pow(rough), s=noise.shape[1:])
        clouds = clouds / clouds.std((1, 2), keepdim=True).clamp(min=1e-6)
        share = self._uniform(count, 1)[..., None]
        field = (1 - share) * clouds + share * self._stripes(count)
        mix = torch.sigmoid(field * self._uniform(count, 1, low=0.5, high=6.0)[..., None])[:, None]
        first, second = (self._of_family(family) for _ in range(2))
        middle = (first + second) / 2
        first, second = (middle + (c - middle) * strength for c in (first, second))
        return first[..., None, None] * mix + second[..., None, None] * (1 - mix)

    def _stripes(self, count: int) -> Tensor:
        total = torch.zeros(count, self.side, self.side, device=self.device)
        for _ in range(WAVES):
            turn = self._uniform(count, 1, low=0.0, high=math.pi)[..., None]
            often = self._uniform(count, 1, low=0.5, high=3.2)[..., None].exp()
            phase = self._uniform(count, 1, low=0.0, high=2 * math.pi)[..., None]
            along = turn.cos() * self.x + turn.sin() * self.y
            weight = self._normal(count, 1)[..., None]
            total = total + weight * torch.sin(often * along + phase)
        return total

    def _colours(self, count: int) -> Tensor:
        """(n, 2, 3): a colour and how far its family strays; greyish ones are the commoner."""
        grey = self._uniform(count, 1, low=0.1, high=0.9)
        tint = self._normal(count, 3) * 0.2 * self._uniform(count, 1)
        return torch.stack([grey + tint, 0.03 + 0.15 * self._uniform(count, 3)], dim=1)

    def _of_family(self, family: Tensor) -> Tensor:
        lighter = self._normal(len(family), 1) * 0.2
        return family[:, 0] + family[:, 1] * self._normal(len(family), 3) + lighter

    def _taken(self, picture: Tensor) -> Tensor:
        """As a camera gives it: sometimes blurred, with some noise, as bytes."""
        blurred = avg_pool2d(picture, 3, stride=1, padding=1, count_include_pad=False)
        share = self._uniform(len(picture), 1)[..., None, None].square()
        seen = picture + share * (blurred - picture)
        grain = 0.02 * self._uniform(len(picture), 1)[..., None, None]
        seen = seen + grain * torch.randn(seen.shape, generator=self.chance, device=self.device)
        return (seen.clamp(0, 1) * 255).round().to(torch.uint8)

    def _uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        drawn = torch.rand(*shape, generator=self.chance, device=self.device)
        return low + (high - low) * drawn

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.chance, device=self.device)
