"""Noise on the sum of clipped gradients: Gaussian in floating point, or discrete and exact.

Standard deviation = noise_multiplier * (largest norm of one example's contribution).

`GaussianNoise` uses the generators of PyTorch: fast, on every device. They are keyed anew, from the
operating system's entropy, for every release: all 19,968 bits of the CPU generator (PyTorch's own
seeding fills 32); elsewhere for each of the two draws, key and counter of a CUDA generator (124
bits) or 64 bits. So at least 128 bits stand behind every release, on every device, and nothing is
left in a generator that could be used again.

Each noise is the sum of two draws (each of half the variance). One alone has two faults that
a reader who knows the sum without noise can use (Mironov 2012, CCS; Jin et al. 2022, S&P): PyTorch
makes float32 Gaussians in pairs by Box and Muller from 24 random bits, so that the squares of a
pair add up to one of few values, visibly so in one pair of 4096; and no draw is ever beyond 5.77
deviations, so that a coordinate beyond that tells for certain. Of a sum of two, every float32 value
near every pair of values can be reached, up to 8.1 deviations (9.4 on CUDA).

Error: this is hardening, not proof; the float32 rounding of the sum and the remaining gaps of the
noise are not part of the accounted epsilon. `DiscreteGaussianNoise` has the law that is accounted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tightrope.entropy import WordStream, open_stream
from tightrope.errors import InvalidInput
from tightrope.numerics.discrete_gaussian import DiscreteGaussian
from tightrope.theorems.discrete_gaussian import discrete_scale
from tightrope.train.gradients.forms import scratch, scratch_scope
from tightrope.validate import check_non_negative

# State of PyTorch's CPU generator in words: seed and counters, then 624 of the Mersenne twister.
_FIRST_WORD, _WORDS = 3, 624
# Sums that get their draws at once: 32 MiB of float32, twice as much of float64. On a processor
# what stays in its cache, in memory that is used again: new memory takes half as long as the draws.
_TOGETHER, _IN_CACHE = 2**22, 2**17
# Draws whose memory is kept for the next step, where allocating and cutting it takes longer than
# filling it.
_LARGEST_KEPT = 2**16


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


class _OfOneStream:
    """Independent noise whose randomness is a single stream of words."""

    def __init__(self, noise_multiplier: float, stream: WordStream) -> None:
        self._noise_multiplier = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        self._stream = stream

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @property
    def private(self) -> bool:
        return self._stream.private

    def state(self) -> dict[str, Any]:
        return {"stream": self._stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._stream.restore(state["stream"])


@final
class GaussianNoise(_OfOneStream):
    """Independent Gaussian noise from PyTorch's generators, fully keyed for each release."""

    splits_over_ranks = True

    def __init__(self, noise_multiplier: float, *, seed: int | None = None) -> None:
        super().__init__(noise_multiplier, open_stream("noise", seed=seed))
        self._seed = seed
        # Generators by device, and the draws of small sums. Each is taken out while it is used, so
        # that two threads never meet in one.
        self._free: dict[Any, Any] = {}

    @classmethod
    def under(cls, key: bytes) -> GaussianNoise:
        """Of deviation 1, the same whenever it is drawn under this key."""
        noise = cls(1.0)
        noise._stream = WordStream(key, cryptographic=False)
        return noise

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
        shapes = [(total.shape, total.dtype, total.device) for total in sums]
        before, draws = self._free.pop("draws", (None, None))
        if before != shapes:
            small = sum(total.numel() for total in sums) <= _LARGEST_KEPT
            small = small and len({kind[1:] for kind in shapes}) == 1
            draws = Draws.like(sums, torch.empty) if small else None
        if draws is not None:
            torch._foreach_add_(sums, self._filled(draws, part).views)
            self._free["draws"] = shapes, draws
            return
        for group in in_groups(sums):
            with scratch_scope():
                torch._foreach_add_(group, self._filled(Draws.like(group, scratch), part).views)

    def drawn(self, sums: list[Tensor], scale: float, dtype: torch.dtype | None = None) -> Tensor:
        """Noise of this deviation for tensors together, in a row, in scratch memory."""
        return self._filled(Draws.like(sums, scratch, dtype), scale / math.sqrt(2)).first

    def _filled(self, draws: Draws, part: float) -> Draws:
        """Two draws, each with `part` as its deviation, the first with the second added to it."""
        device = draws.first.device
        generator = self._free.pop(device, None) or torch.Generator(device)
        for one in draws.under_one_key:
            key_generator(generator, self._stream)
            one.normal_(0.0, part, generator=generator)
        # The two draws first: what is released is the sum and a number, rounded once.
        draws.first.add_(draws.second)
        self._free[device] = generator
        return draws

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_free": {}}


@final
class Draws(NamedTuple):
    """Memory for the two draws of tensors that get their noise together, of one kind."""

    under_one_key: tuple[Tensor, ...]  # 19,937 of the bits on the CPU count; a GPU key has 124
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
        return cls(keyed, first, second, unpack(first, sums))


def in_groups(sums: list[Tensor]) -> Iterator[list[Tensor]]:
    """Views of the sums, on a processor cut to size, in the groups that get their draws at once."""
    parts: list[Tensor] = []
    for total in sums:
        cut = not total.is_cuda and total.numel() > _IN_CACHE and total.is_contiguous()
        parts += total.view(-1).split(_IN_CACHE) if cut else (total,)
    return neighbours(parts, _TOGETHER if sums[0].is_cuda else _IN_CACHE)


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


def unpack(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Consecutive views of `flat` in the shapes of other tensors."""
    parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


# States of CPU generators before their first draw, with the words that take a key. One that is in
# use is not here: a release that interrupts another one takes memory of its own.
_states: deque[tuple[Tensor, NDArray[np.uint64]]] = deque(maxlen=4)


def key_generator(generator: torch.Generator, stream: WordStream) -> None:
    """Fill all of a generator's state that takes a key, from the stream."""
    if generator.device.type == "cpu":
        try:
            whole, keyed = _states.pop()
        except IndexError:
            whole = torch.Generator().get_state()
            keyed = whole.numpy().view(np.uint64)[_FIRST_WORD : _FIRST_WORD + _WORDS]
        keyed[:] = stream.words(_WORDS // 2).view(np.uint32)
        generator.set_state(whole)
        _states.append((whole, keyed))
    elif generator.device.type == "cuda":  # the key, and where the counter stands
        key, counter = stream.words(2)
        counter = counter >> np.uint64(4) << np.uint64(2)  # a multiple of 4, far from the end
        state = np.array([key, counter], dtype=np.uint64).view(np.uint8)
        generator.set_state(torch.from_numpy(state))
    else:
        generator.manual_seed(int(stream.words(1)[0]))


# ---- whole numbers of a stated law ---------------------------------------------------------------

BOUND = 2**24  # grid steps in one clip norm
_SQUARES = 2**14  # squares of at most 2^48 that add up without overflow
_GRID_BITS = 30
_LARGEST_MULTIPLIER = 2.0**13  # far above any use; s stays within what the sampler draws
_FARTHEST = 2.0**62


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
    parts = [part for w in whole for part in torch.split(w.reshape(-1).square(), _SQUARES)]
    return sum(torch.stack([part.sum() for part in parts]).tolist()) <= BOUND**2  # without overflow


def as_values(sums: Sequence[Tensor], sensitivity: float) -> list[Tensor]:
    """Noisy sums in the units of the gradients. They are released: rounding is post-processing."""
    return [total.double().mul_(unit(sensitivity)) for total in sums]


@final
class DiscreteGaussianNoise(_OfOneStream):
    """Cryptographic discrete Gaussian noise: the exact law that is accounted.

    `add_whole_` adds to every coordinate of integer sums an independent draw of the discrete
    Gaussian with the least parameter s for which theorems/discrete_gaussian.py accounts it as
    Gaussian noise of `noise_multiplier`. Sampler and sum are exact, so this is the law of what is
    released. The words come from SHAKE-256 under keys of the operating system.

    `add_` does the same to sums in floating point: each is put on a grid of 2^-30 of the
    sensitivity. Rounding moves each coordinate of a difference by at most one grid step, so the
    sensitivity in steps is raised by sqrt(dimension); values beyond 2^62 steps are cut off there,
    which brings no two values further apart. How far the sums themselves may move, the caller says.

    Cost: about 0.15 microseconds for each coordinate, always on the CPU.
    """

    splits_over_ranks = False

    def __init__(self, noise_multiplier: float, *, seed: int | None = None) -> None:
        super().__init__(
            noise_multiplier, open_stream("discrete-noise", seed=seed, cryptographic=True)
        )
        if self.noise_multiplier > _LARGEST_MULTIPLIER:
            raise InvalidInput(
                f"noise_multiplier is {self.noise_multiplier}; discrete noise is drawn up to "
                f"{_LARGEST_MULTIPLIER}."
            )

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
            values = total.detach().double().cpu().reshape(-1).numpy()
            near = np.clip(values, -_FARTHEST * step, _FARTHEST * step)
            noisy = np.rint(near / step).astype(np.int64) + self._draws(total.numel(), bound)
            value = torch.from_numpy(noisy.astype(np.float64) * step).view(total.shape)
            total.copy_(value.to(total.dtype))  # rounding happens after the release

    def _draws(self, count: int, bound: int) -> NDArray[np.int64]:
        if self._noise_multiplier == 0.0:
            return np.zeros(count, dtype=np.int64)
        law = DiscreteGaussian(discrete_scale(self._noise_multiplier, bound))
        return law.draw(count, self._stream.words)
