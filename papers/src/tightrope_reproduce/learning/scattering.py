# mypy: disable-error-code="no-untyped-call,no-any-return"
"""A fixed scattering transform: features of images that are chosen without seeing any data.

Statement: with Morlet wavelets psi of J = 2 scales and L = 8 directions and a Gaussian low-pass
filter phi of scale 2^J, an image x becomes

    x * phi,   |x * psi_1| * phi,   ||x * psi_1| * psi_2| * phi      (scale of psi_2 above psi_1)

sampled every 2^J pixels: 1 + LJ + L^2 J(J - 1)/2 = 81 channels of 7 x 7 for 28 x 28 images.
Source: Bruna and Mallat, "Invariant scattering convolution networks" (2013); as features for
private learning: Tramèr and Boneh, "Differentially private learning needs better features" (2021).
Conditions: every constant is public, and each image is treated on its own (its groups of channels
are normalised by its own mean and spread), so nothing here needs a privacy budget.
Sharpness: computed by FFT on the padded image at full resolution; exact but for rounding.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import group_norm, pad

__all__ = ["Scattering"]

_SLANT = 0.5  # wavelets are twice as long across as along their direction
_WIDTH, _FREQUENCY = 0.8, 3 * math.pi / 4  # of the finest wavelet; each scale doubles and halves


@final
class Scattering:
    """(n, 1, s, s) images to (n, channels, s / 2^J, s / 2^J) features."""

    def __init__(self, size: int, *, scales: int = 2, directions: int = 8) -> None:
        stride = 2**scales
        self.border, grid = stride, size + 2 * stride
        self.low = _low_pass(grid, scales)  # (s / 2^J, grid): the Gaussian filter and the sampling
        angles = [math.pi * k / directions for k in range(directions)]
        self.waves = [
            torch.stack([_morlet(grid, scale, angle) for angle in angles])
            for scale in range(scales)
        ]  # one (L, grid, grid) transform a scale

    def to(self, device: str | torch.device) -> Scattering:
        self.low = self.low.to(device)
        self.waves = [wave.to(device) for wave in self.waves]
        return self

    def __call__(self, images: Tensor) -> Tensor:
        padded = pad(images, (self.border,) * 4, mode="reflect")
        spectrum = torch.fft.fft2(padded)  # (n, 1, grid, grid)
        parts = [self._smooth(padded)]
        for scale, wave in enumerate(self.waves):
            first = torch.fft.ifft2(spectrum * wave).abs()  # (n, L, grid, grid)
            parts.append(self._smooth(first))
            for coarser in self.waves[scale + 1 :]:
                inner = torch.fft.fft2(first)[:, :, None] * coarser  # (n, L, L, grid, grid)
                parts.append(self._smooth(torch.fft.ifft2(inner).abs().flatten(1, 2)))
        return torch.cat(parts, dim=1)

    def _smooth(self, maps: Tensor) -> Tensor:
        return self.low @ maps @ self.low.T

    def normalised(self, images: Tensor, *, groups: int = 27, batch: int = 500) -> Tensor:
        """Features with each group of an image's channels at mean 0 and variance 1."""
        return torch.cat([group_norm(self(part), groups) for part in images.split(batch)])


def _coordinates(grid: int) -> tuple[Tensor, Tensor]:
    """Pixel offsets from the origin at (0, 0) of a periodic grid: (down, right)."""
    line = torch.arange(grid, dtype=torch.float64)
    line = torch.where(line < grid / 2, line, line - grid)
    down, right = torch.meshgrid(line, line, indexing="ij")
    return down, right


def _low_pass(grid: int, scales: int) -> Tensor:
    """Rows are Gaussian windows that add up to one, every 2^J pixels and symmetric in the image."""
    stride = 2**scales
    centres = torch.arange(stride, grid - stride, stride, dtype=torch.float64) + (stride - 1) / 2
    offsets = torch.arange(grid, dtype=torch.float64) - centres[:, None]
    bump = torch.exp(-offsets.square() / (2 * (_WIDTH * 2 ** (scales - 1)) ** 2))
    return (bump / bump.sum(dim=1, keepdim=True)).float()


def _morlet(grid: int, scale: int, angle: float) -> Tensor:
    """Transform of a Gaussian times (a plane wave minus what makes its sum zero)."""
    down, right = _coordinates(grid)
    along = math.cos(angle) * right + math.sin(angle) * down
    across = math.cos(angle) * down - math.sin(angle) * right
    width, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    bump = torch.exp(-(along.square() + (_SLANT * across).square()) / (2 * width**2))
    wave = bump * torch.exp(1j * frequency * along)
    wave = wave - bump * (wave.sum() / bump.sum())
    area = 2 * math.pi * width**2 / _SLANT
    return torch.fft.fft2(wave / area).to(torch.complex64)
