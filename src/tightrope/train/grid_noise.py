"""Gaussian noise that leaks nothing through its low bits.

Statement: let g be a power of two. The sum is rounded to the grid g*Z; a real Gaussian N is drawn;
released is (rounded sum) + g*round(N/g), computed in float64 without any rounding error. As the
rounded sum lies on the grid, this equals g*round((rounded sum + N)/g): post-processing of a real
Gaussian mechanism on the rounded sum. So only the sensitivity of the rounded sum matters, and it
is at most sensitivity + g*sqrt(dimension) (each coordinate of the difference moves by at most g);
the noise is scaled up by exactly that.

Error: N is the sum of two float64 draws by Box and Muller from 53-bit uniforms, each of half the
variance. |N| cannot exceed 12 standard deviations (probability below 1e-30), every grid point near
every pair of grid points can be reached, and the relative rounding error of about 1e-15 moves a
value to a neighbouring grid point with probability about 1e-7 (g = 2^-26 standard deviations).
These deviations from an ideal Gaussian are not part of the accounted epsilon (a proof would add
them to delta).

The words come from SHAKE-256, so earlier outputs do not help to predict later ones.
Cost: about ten times that of GaussianNoise, always on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray, check_non_negative

__all__ = ["GridGaussianNoise"]

# Grid step = 2^-26 standard deviations, rounded down to a power of two: 27 bits below the
# noise and 26 above it stay exact in float64.
_GRID_BITS = 26
_LARGEST = 2.0**52


@final
class GridGaussianNoise:
    """Cryptographic Gaussian noise on a grid: exact arithmetic, nothing in the low bits."""

    splits_over_ranks = False

    def __init__(self, noise_multiplier: float, *, seed: int | None = None) -> None:
        self._noise_multiplier = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        self._stream = open_stream("grid-noise", seed=seed, cryptographic=True)

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @property
    def private(self) -> bool:
        return self._stream.private

    @property
    def description(self) -> str:
        return f"Gaussian on a grid of 2^-{_GRID_BITS} deviations, {self._stream.description}"

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        scale = self._noise_multiplier * sensitivity
        if scale == 0.0:
            return
        step = 2.0 ** math.floor(math.log2(scale) - _GRID_BITS)
        dimension = sum(total.numel() for total in sums)
        widened = self._noise_multiplier * (sensitivity + step * math.sqrt(dimension))
        for total in sums:
            noisy = _on_grid(total, step) + np.rint(self._normals(total.numel()) * (widened / step))
            exact = torch.from_numpy(noisy * step).view(total.shape)
            total.copy_(exact.to(total.dtype))  # rounding to float32 happens after the release

    def _normals(self, count: int) -> FloatArray:
        """Standard Gaussians: the sum of two independent halves."""
        return (self._box_muller(count) + self._box_muller(count)) * math.sqrt(0.5)

    def _box_muller(self, count: int) -> FloatArray:
        pairs = (count + 1) // 2
        # uniform in (0, 1]
        uniform = ((self._stream.words(2 * pairs) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log(uniform[:pairs]))
        angle = (2.0 * math.pi) * uniform[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def state(self) -> dict[str, Any]:
        return {"stream": self._stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._stream.restore(state["stream"])


def _on_grid(total: Tensor, step: float) -> FloatArray:
    """The sum in whole grid steps."""
    steps = np.rint(total.detach().double().cpu().reshape(-1).numpy() / step)
    if steps.size and not np.abs(steps).max() < _LARGEST:
        raise InvalidInput(
            "The sum of clipped gradients is more than 2^26 noise deviations from zero, "
            "which float64 cannot add exactly on the grid. Raise the noise multiplier or use "
            "GaussianNoise."
        )
    return np.asarray(steps, dtype=np.float64)
