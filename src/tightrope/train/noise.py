"""Gaussian noise on the sum of clipped gradients.

Standard deviation = noise_multiplier * (largest norm of one example's contribution).

`GaussianNoise` uses the generators of PyTorch: fast, on every device. They are keyed anew, from the
operating system's entropy, for every release: all 19,968 bits of the CPU generator (PyTorch's own
seeding fills 32); elsewhere for each of the two draws, key and counter of a CUDA generator (124
bits) or 64 bits. So at least 128 bits stand behind every release, on every device, and nothing is
left in a generator that could be used again.

Each noise is the sum of two draws (each of half the variance). One alone has two faults that
somebody who knows the sum without noise can use (Mironov 2012, CCS; Jin et al. 2022, S&P): PyTorch
makes float32 Gaussians in pairs by Box and Muller from 24 random bits, so that the squares of a
pair add up to one of few values, visibly so in one pair of 4096; and no draw is ever beyond 5.77
deviations, so that a coordinate beyond that tells for certain. Of a sum of two, every float32 value
near every pair of values can be reached, up to 8.1 deviations (9.4 on CUDA).

Error: this is hardening, not proof; the float32 rounding of the sum and the remaining gaps of the
noise are not part of the accounted epsilon. `DiscreteGaussianNoise` has the law
that is accounted; see there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tightrope.entropy import WordStream, open_stream
from tightrope.train.gradients.forms import scratch, scratch_scope
from tightrope.validate import check_non_negative

__all__ = ["GaussianNoise", "Noise", "in_groups", "neighbours", "unpack"]

# State of PyTorch's CPU generator in words: seed and counters, then 624 of the Mersenne twister.
_FIRST_WORD, _WORDS = 3, 624
# Sums that get their draws at once: 32 MiB of float32, twice as much of float64. On a processor
# what stays in its cache, in memory that is used again: new memory takes half as long as the draws.
_TOGETHER, _IN_CACHE = 2**22, 2**17
# Draws whose memory is kept for the next step, where allocating and cutting it takes longer than
# filling it.
_LARGEST_KEPT = 2**16
# States of CPU generators, to be filled with a key; each is lent to one release at a time.
_states: deque[tuple[Tensor, NDArray[np.uint64]]] = deque(maxlen=8)


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
    """Independent Gaussian noise from PyTorch's generators, fully keyed for each release."""

    splits_over_ranks = True

    def __init__(self, noise_multiplier: float, *, seed: int | None = None) -> None:
        self._noise_multiplier = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        self._seed = seed
        self._stream = open_stream("noise", seed=seed)
        # Lent to one release at a time: two threads never meet in a generator or in its memory.
        self._generators: dict[torch.device, torch.Generator] = {}
        self._kept: deque[_Kept] = deque(maxlen=1)

    @classmethod
    def under(cls, key: bytes) -> GaussianNoise:
        """Of deviation 1, the same whenever it is drawn under this key."""
        noise = cls(1.0)
        noise._stream = WordStream(key, cryptographic=False)
        return noise

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @property
    def private(self) -> bool:
        return self._stream.private

    def for_rank(self, rank: int) -> None:
        """Draw for coordinates that this rank alone has: a common seed must not repeat a draw."""
        if self._seed is not None:
            self._stream = open_stream("noise", seed=self._seed, rank=rank)

    @property
    def description(self) -> str:
        return f"Gaussian, PyTorch generator keyed from {self._stream.origin}"

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        scale = self._noise_multiplier * sensitivity
        if scale == 0.0:
            return
        part, sums = scale / math.sqrt(2), list(sums)
        kept = self._kept_for(sums)
        if kept is not None:
            self._draw(sums, kept[1], part)
            self._kept.append(kept)
            return
        for group in in_groups(sums):
            with scratch_scope():
                self._draw(group, Draws.like(group, scratch), part)

    def drawn(self, sums: list[Tensor], scale: float, dtype: torch.dtype | None = None) -> Tensor:
        """Noise of this deviation for tensors together, in a row, in scratch memory."""
        draws = Draws.like(sums, scratch, dtype)
        self._fill(draws, scale / math.sqrt(2))
        return draws.first

    def _draw(self, sums: list[Tensor], draws: Draws, part: float) -> None:
        """Add two draws, each with `part` as its deviation."""
        self._fill(draws, part)
        torch._foreach_add_(sums, draws.views)

    def _fill(self, draws: Draws, part: float) -> None:
        device = draws.device
        generator = self._generators.pop(device, None) or torch.Generator(device)
        for one in draws.under_one_key:
            key_generator(generator, self._stream)
            one.normal_(0.0, part, generator=generator)
        # The two draws first: what is released is the sum and a number, rounded once.
        draws.first.add_(draws.second)
        self._generators[device] = generator

    def _kept_for(self, sums: list[Tensor]) -> _Kept | None:
        """The memory of an earlier release of these shapes, or new memory to keep; if small."""
        shapes = [(total.shape, total.dtype, total.device) for total in sums]
        try:
            kept = self._kept.pop()
        except IndexError:
            kept = None
        if kept is not None and kept[0] == shapes:
            return kept
        return (shapes, Draws.like(sums, torch.empty)) if _small(sums) else None

    def state(self) -> dict[str, Any]:
        return {"stream": self._stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._stream.restore(state["stream"])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_generators": {}, "_kept": deque(maxlen=1)}


@final
class Draws(NamedTuple):
    """Memory for the two draws of tensors that get their noise together, of one kind."""

    device: torch.device
    under_one_key: tuple[Tensor, ...]  # a key has 19,937 bits on the CPU, but 124 on a GPU
    first: Tensor
    second: Tensor
    views: list[Tensor]  # of the first, in the shapes of the tensors

    @classmethod
    def like(
        cls, sums: list[Tensor], memory: Callable[..., Tensor], dtype: torch.dtype | None = None
    ) -> Draws:
        size = sum(total.numel() for total in sums)
        both = memory((2, size), dtype=dtype or sums[0].dtype, device=sums[0].device)
        first, second = both.unbind()
        keyed = (both,) if both.device.type == "cpu" else (first, second)
        return cls(both.device, keyed, first, second, unpack(first, sums))


_Kept = tuple[list[Any], Draws]  # with the shapes of the release that it was for


def _small(sums: list[Tensor]) -> bool:
    kinds = {(total.device, total.dtype) for total in sums}
    return len(kinds) == 1 and sum(total.numel() for total in sums) <= _LARGEST_KEPT


def in_groups(sums: list[Tensor]) -> Iterator[list[Tensor]]:
    """Views of the sums, in the groups that get their draws at once."""
    most = _TOGETHER if sums[0].is_cuda else _IN_CACHE
    return neighbours(list(_cut(sums)), most)


def _cut(sums: list[Tensor]) -> Iterator[Tensor]:
    """The sums, on a processor in parts."""
    for total in sums:
        cut = not total.is_cuda and total.numel() > _IN_CACHE and total.is_contiguous()
        yield from total.view(-1).split(_IN_CACHE) if cut else (total,)


def key_generator(generator: torch.Generator, stream: WordStream) -> None:
    """Fill all of a generator's state that takes a key, from the stream."""
    if generator.device.type == "cpu":
        _fill_twister(generator, stream)
    elif generator.device.type == "cuda":  # the key, and where the counter stands
        key, counter = stream.words(2)
        counter = counter >> np.uint64(4) << np.uint64(2)  # a multiple of 4, far from the end
        state = np.array([key, counter], dtype=np.uint64).view(np.uint8)
        generator.set_state(torch.from_numpy(state))
    else:
        generator.manual_seed(int(stream.words(1)[0]))


def _fill_twister(generator: torch.Generator, stream: WordStream) -> None:
    """All words are new; the rest stays as it is before a first draw."""
    try:
        state, twister = _states.pop()
    except IndexError:
        state = torch.Generator().get_state()
        twister = state.numpy().view(np.uint64)[_FIRST_WORD : _FIRST_WORD + _WORDS]
    twister[:] = stream.words(_WORDS // 2).view(np.uint32)
    generator.set_state(state)
    _states.append((state, twister))


def unpack(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Consecutive views of `flat` in the shapes of other tensors."""
    parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def neighbours(tensors: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Neighbouring tensors of one kind, up to a size: few launches, little extra memory."""
    group: list[Tensor] = []
    size = 0
    for tensor in tensors:
        other_kind = group and (tensor.device, tensor.dtype) != (group[0].device, group[0].dtype)
        if other_kind or size > most:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.numel()
    if group:
        yield group
