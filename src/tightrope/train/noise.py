"""Gaussian noise on the sum of clipped gradients.

Standard deviation = noise_multiplier * (largest norm of one example's contribution).

`GaussianNoise` uses the generators of PyTorch: fast, on every device. PyTorch seeds its CPU
generator with 32 bits only, whatever is asked for; here all of its 19,968 bits of state are
filled from the operating system's entropy. On other devices the key has 64 bits.

Each draw is the sum of two (each of half the variance). One alone has two faults that somebody who
knows the sum without noise can use (Mironov 2012, CCS; Jin et al. 2022, S&P): PyTorch makes
float32 Gaussians in pairs by Box and Muller from 24 random bits, so that the squares of a pair add
up to one of few values, visibly so in one pair of 4096; and no draw is ever beyond 5.77 deviations,
so that a coordinate beyond that tells for certain. Of a sum of two, every float32 value near every
pair of values can be reached, up to 8.1 deviations (9.4 on CUDA).

Error: this is hardening, not proof; the float32 rounding of the sum and the remaining gaps of the
noise are not part of the accounted epsilon. `DiscreteGaussianNoise` has the law
that is accounted; see there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from tightrope.train.entropy import WordStream, open_stream
from tightrope.train.packed import unpack, whole
from tightrope.validate import check_non_negative

__all__ = ["Noise", "GaussianNoise"]

# State of PyTorch's CPU generator: seed and counters, then 624 words of the Mersenne twister.
_FIRST_WORD, _WORDS = 24, 624
# Draws made at once: 64 MiB of float32.
_TOGETHER = 2**24
# Draws whose memory is kept for the next step, where allocating and cutting it takes longer than
# filling it.
_LARGEST_KEPT = 2**16
_SUMMANDS = 2


class Noise(Protocol):
    """Adds independent N(0, (noise_multiplier * sensitivity)^2) to every coordinate, in place."""

    @property
    def noise_multiplier(self) -> float: ...
    @property
    def private(self) -> bool: ...
    @property
    def splits_over_ranks(self) -> bool: ...
    @property
    def description(self) -> str: ...
    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


@final
class GaussianNoise:
    """Independent Gaussian noise from PyTorch's generators, fully keyed."""

    splits_over_ranks = True

    def __init__(self, noise_multiplier: float, *, seed: int | None = None) -> None:
        self._noise_multiplier = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        self._stream = open_stream("noise", seed=seed)
        self._generators: dict[torch.device, torch.Generator] = {}
        self._kept: tuple[list[Any], Tensor, list[Tensor]] | None = None

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @property
    def private(self) -> bool:
        return self._stream.private

    @property
    def description(self) -> str:
        origin = self._stream.description.split(", ", 1)[1]
        return f"Gaussian, PyTorch generator keyed from {origin}"

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        scale = self._noise_multiplier * sensitivity
        if scale == 0.0:
            return
        for group in self._groups(whole(sums)):
            generator = self._generator(group.draws.device)
            for _ in range(_SUMMANDS):
                group.draws.normal_(0.0, scale / math.sqrt(_SUMMANDS), generator=generator)
                torch._foreach_add_(group.sums, group.views)

    def _groups(self, sums: list[Tensor]) -> Iterator[Group]:
        """The sums in groups; where there is a single small one, its memory serves again."""
        shapes = [(total.shape, total.dtype, total.device) for total in sums]
        if self._kept is not None and self._kept[0] == shapes:
            yield Group(sums, *self._kept[1:])
            return
        self._kept = None
        for tensors in _neighbours(sums):
            size = sum(total.numel() for total in tensors)
            draws = torch.empty(size, dtype=tensors[0].dtype, device=tensors[0].device)
            views = unpack(draws, tensors)
            if len(tensors) == len(sums) and size <= _LARGEST_KEPT:
                self._kept = (shapes, draws, views)
            yield Group(tensors, draws, views)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = keyed_generator(device, self._stream)
        return self._generators[device]

    def state(self) -> dict[str, Any]:
        generators = {
            str(device): generator.get_state().numpy().tobytes().hex()
            for device, generator in self._generators.items()
        }
        return {"stream": self._stream.state(), "generators": generators}

    def restore(self, state: dict[str, Any]) -> None:
        self._stream.restore(state["stream"])
        self._generators = {}
        for name, stored in state["generators"].items():
            generator = torch.Generator(torch.device(name))
            raw = np.frombuffer(bytes.fromhex(stored), dtype=np.uint8).copy()
            generator.set_state(torch.from_numpy(raw))
            self._generators[torch.device(name)] = generator


@final
class Group(NamedTuple):
    """Tensors that get their noise together, and the memory for it."""

    sums: list[Tensor]
    draws: Tensor
    views: list[Tensor]  # of the draws, in the shapes of the sums


def _neighbours(sums: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbouring tensors of one kind, up to a size: few launches, little extra memory."""
    group: list[Tensor] = []
    size = 0
    for total in sums:
        other_kind = group and (total.device, total.dtype) != (group[0].device, group[0].dtype)
        if other_kind or size > _TOGETHER:
            yield group
            group, size = [], 0
        group.append(total)
        size += total.numel()
    if group:
        yield group


def keyed_generator(device: torch.device, stream: WordStream) -> torch.Generator:
    """A generator whose whole state comes from the stream."""
    generator = torch.Generator(device)
    generator.manual_seed(int(stream.words(1)[0]))
    if device.type == "cpu":
        state = generator.get_state().numpy().copy()
        words = stream.words(_WORDS) >> np.uint64(32)
        state[_FIRST_WORD : _FIRST_WORD + 8 * _WORDS] = np.frombuffer(words.tobytes(), np.uint8)
        generator.set_state(torch.from_numpy(state))
    return generator
