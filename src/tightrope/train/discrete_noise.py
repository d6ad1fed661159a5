"""Discrete Gaussian noise: whole numbers of a stated law, added to whole numbers.

Statement. `add_whole_` adds to every coordinate of integer sums an independent draw of the discrete
Gaussian with the least parameter s for which theorems/discrete_gaussian.py accounts it as Gaussian
noise of `noise_multiplier`. Sampler and sum are exact, so this is the law of what is released, and
not one that is close to it. The words come from SHAKE-256 under keys of the operating system.

`add_` does the same to sums in floating point: each is put on a grid of 2^-30 of the sensitivity.
Rounding moves each coordinate of a difference by at most one grid step, so the sensitivity in steps
is raised by sqrt(dimension); values beyond 2^62 steps are cut off there, which brings no two
values further apart. How far the sums themselves may move is the caller's word.

Cost: about 0.15 microseconds for each coordinate, always on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.numerics.discrete_gaussian import DiscreteGaussian
from tightrope.theorems.discrete_gaussian import discrete_scale
from tightrope.validate import check_non_negative

__all__ = ["BOUND", "as_values", "on_grid", "unit", "within_bound", "DiscreteGaussianNoise"]

BOUND = 2**24
_TOGETHER = 2**14  # squares of at most 2^48 that add up without overflow


def unit(sensitivity: float) -> float:
    """The size of one grid step; exact, as BOUND is a power of two."""
    return sensitivity / BOUND


def on_grid(gradients: Sequence[Tensor], factors: Sequence[Tensor]) -> list[Tensor] | None:
    """factor * gradient, rounded towards zero to whole numbers; None if they are out of bounds."""
    scaled = [(g.double() * f).trunc_() for g, f in zip(gradients, factors, strict=True)]
    if not all(bool((s.abs() <= BOUND).all()) for s in scaled):  # nan is not
        return None
    whole = [s.to(torch.int64) for s in scaled]
    return whole if within_bound(whole) else None


def within_bound(whole: Sequence[Tensor]) -> bool:
    """Is the norm at most BOUND? Exactly; no coordinate may be above it."""
    return sum(_squares(w.reshape(-1)) for w in whole) <= BOUND**2


def _squares(flat: Tensor) -> int:
    """The sum of squares, as a whole number of any size."""
    parts = torch.split(flat * flat, _TOGETHER)
    return sum(torch.stack([part.sum() for part in parts]).tolist())


def as_values(sums: Sequence[Tensor], sensitivity: float) -> list[Tensor]:
    """Noisy sums in the units of the gradients. They are released: rounding is post-processing."""
    return [total.double().mul_(unit(sensitivity)) for total in sums]


# ---- noise ---------------------------------------------------------------------------------------


_GRID_BITS = 30
_LARGEST_MULTIPLIER = 2.0**13  # far above any use; s stays within what the sampler draws
_FARTHEST = 2.0**62


@final
class DiscreteGaussianNoise:
    """Cryptographic discrete Gaussian noise: the exact law that is accounted."""

    splits_over_ranks = False

    def __init__(self, noise_multiplier: float, *, seed: int | None = None) -> None:
        value = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        if value > _LARGEST_MULTIPLIER:
            raise InvalidInput(
                f"noise_multiplier is {value}; discrete noise is drawn up to {_LARGEST_MULTIPLIER}."
            )
        self._noise_multiplier = value
        self._stream = open_stream("discrete-noise", seed=seed, cryptographic=True)

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @property
    def private(self) -> bool:
        return self._stream.private

    @property
    def description(self) -> str:
        return f"discrete Gaussian, {self._stream.description}"

    def fresh_seed(self) -> int:
        """For random layers of one example: 64 bits that no other example gets."""
        return int(self._stream.words(1)[0])

    def add_whole_(self, sums: Sequence[Tensor], bound: int) -> None:
        """sums: int64, which one record moves by at most `bound` in norm."""
        if any(total.dtype is not torch.int64 for total in sums):
            raise InvalidInput(
                f"Sums of whole numbers are needed; got {[str(total.dtype) for total in sums]}."
            )
        for total in sums:
            drawn = torch.from_numpy(self._draws(total.numel(), bound))
            total.add_(drawn.view(total.shape).to(total.device))

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        step = 2.0 ** (math.frexp(sensitivity)[1] - 1 - _GRID_BITS)
        dimension = sum(total.numel() for total in sums)
        bound = math.ceil(Fraction(sensitivity) / Fraction(step)) + math.isqrt(dimension) + 1
        for total in sums if self._noise_multiplier else ():
            noisy = _on_grid(total, step) + self._draws(total.numel(), bound)
            value = torch.from_numpy(noisy.astype(np.float64) * step).view(total.shape)
            total.copy_(value.to(total.dtype))  # rounding happens after the release

    def _draws(self, count: int, bound: int) -> NDArray[np.int64]:
        if self._noise_multiplier == 0.0:
            return np.zeros(count, dtype=np.int64)
        law = DiscreteGaussian(discrete_scale(self._noise_multiplier, bound))
        return law.draw(count, self._stream.words)

    def state(self) -> dict[str, Any]:
        return {"stream": self._stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._stream.restore(state["stream"])


def _on_grid(total: Tensor, step: float) -> NDArray[np.int64]:
    """The sum in whole grid steps."""
    values = total.detach().double().cpu().reshape(-1).numpy()
    near = np.clip(values, -_FARTHEST * step, _FARTHEST * step)
    return np.rint(near / step).astype(np.int64)
