"""Is floating point covered by the guarantee of a run? The closed list of answers.

One record moves the values that noise is added to by at most (1 + rho) times the clip norm, as the
machine computes them. `rho` is what rounding can add in the worst case; docs/arithmetic.md proves
it for each mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.clip import AdaptiveClip, Clip
from tightrope.train.gradients.rounding import LARGEST_RHO, longest_chain, rho_for
from tightrope.train.noise import BOUND, DiscreteGaussianNoise, Noise, as_values, unit
from tightrope.train.ranks import (
    is_cut,
    is_part,
    local,
    rank_and_size,
    sum_over_ranks_,
    total_over_ranks,
)

MODES = {
    "bounded": "sums in floating point; a proved bound on their rounding is charged as sensitivity",
    "strict": "one example at a time, whole numbers added, discrete Gaussian noise: no rounding",
    "uncovered": "floating point is not covered: rounding may move sums further than is accounted",
}


@final
@dataclass(frozen=True)
class Arithmetic:
    """A mode and its numbers, as settings, records and certificates state them.

    rho: the share of the clip norm that rounding may add; None where no bound is claimed.
    grid: in strict mode, the size of one unit of the whole numbers that are added.
    """

    name: str
    rho: float | None
    grid: float | None = None

    def charged(self, sensitivity: float) -> float:
        """How far one record can move what noise is added to, as the machine computes it."""
        return sensitivity * (1.0 + (self.rho or 0.0))

    def chain(self, examples: int, ranks: int) -> int:
        """Examples in one float32 chain, for a batch of so many on this rank; see `rounding`."""
        return longest_chain(examples, (self.rho or LARGEST_RHO) / ranks)

    def facts(self) -> dict[str, Any]:
        """By name, as a certificate lists them."""
        return {"arithmetic": self.name, "rho": self.rho, "grid": self.grid}


def bounded(examples: float, device: str = "cpu") -> Arithmetic:
    """For batches of about so many examples.

    On a GPU rho is never smaller than it may be: what rounding leaves of it is room for kernels
    that round an example in another way in a batch of another size (docs/arithmetic.md).
    """
    return Arithmetic("bounded", rho_for(examples) if device == "cpu" else LARGEST_RHO)


# Sums of a batch.


class Totals:
    """Adds up parts of a batch, and releases the sum of all ranks with its noise.

    In floating point, whose rounding the arithmetic of the run bounds or leaves open.
    """

    def __init__(self, arithmetic: Arithmetic, parameters: Sequence[Tensor]) -> None:
        self.arithmetic = arithmetic
        self._dtypes = [torch.promote_types(p.dtype, torch.float32) for p in parameters]
        self._count = torch.float32  # of an adaptive clip
        self._rank, self._ranks = rank_and_size()

    def zero(self, parameters: Sequence[Tensor], *, count: bool) -> list[Tensor]:
        """The sum of no examples; count: with the count of an adaptive clip beside it."""
        pairs = zip(parameters, self._dtypes, strict=True)
        zeros = [torch.zeros_like(local(p), dtype=dtype).detach() for p, dtype in pairs]
        return [*zeros, zeros[0].new_zeros(1, dtype=self._count)] if count else zeros

    def add(self, total: list[Tensor] | None, part: Sequence[Tensor]) -> list[Tensor]:
        """The first part as it is, further ones in float64; half precision is widened."""
        if total is None:
            return [s.float() if s.dtype.itemsize < 4 else s for s in part]
        return [t.double().add_(s) for s, t in zip(part, total, strict=True)]

    def noisy(
        self, total: list[Tensor], noise: Noise, sensitivity: float, examples: int
    ) -> list[Tensor]:
        """The sum over all ranks with its noise, of a batch of so many examples on this rank."""
        if self._ranks > 1 or self.arithmetic.chain(examples, 1) == 0:
            total = [t.double() for t in total]
        else:  # the parts were added in float64, and are rounded to the weights' precision once
            dtypes = [*self._dtypes, self._count][: len(total)]
            total = [t.to(dtype) for t, dtype in zip(total, dtypes, strict=True)]
        if self._rank == 0:
            noise.add_(total, self.arithmetic.charged(sensitivity))
        if self._ranks > 1:
            sum_over_ranks_(total)
        return total

    def norm(self, sums: Sequence[Tensor]) -> float:
        """Of all coordinates."""
        return math.sqrt(sum(float(s.double().square().sum()) for s in sums))


@final
class _Sharded(Totals):
    """Where each rank has its rows of every sum; the executor has added them.

    A number that all ranks have (the count of an adaptive clip, a parameter of one number) gets
    its noise from rank 0 and is added up over the ranks.
    """

    def __init__(self, arithmetic: Arithmetic, parameters: Sequence[Tensor]) -> None:
        super().__init__(arithmetic, parameters)
        self._cut = [is_cut(p) for p in parameters]
        self._dtypes, self._count = [torch.float64] * len(self._cut), torch.float64

    def add(self, total: list[Tensor] | None, part: Sequence[Tensor]) -> list[Tensor]:
        """In float64."""
        if total is None:
            return [s.double() for s in part]
        return [t.add_(s) for s, t in zip(part, total, strict=True)]

    def noisy(
        self, total: list[Tensor], noise: Noise, sensitivity: float, examples: int
    ) -> list[Tensor]:
        """The sum with its noise, of the rows that this rank owns."""
        cut = [*self._cut, False][: len(total)]
        common = [t for t, mine in zip(total, cut, strict=True) if not mine]
        owned = [t for t, mine in zip(total, cut, strict=True) if mine or self._rank == 0]
        if owned:  # none where a model has only parameters of one number
            noise.add_(owned, self.arithmetic.charged(sensitivity))
        sum_over_ranks_(common)
        return total

    def norm(self, sums: Sequence[Tensor]) -> float:
        """Of all coordinates, each counted once."""
        counted = [
            t.double().square().sum()
            for t, mine in zip(sums, self._cut, strict=True)
            if mine or self._rank == 0
        ]
        return math.sqrt(total_over_ranks(counted or [torch.zeros((), device=sums[0].device)]))


@final
class _Whole(Totals):
    """Whole numbers: nothing depends on order, on parts, or on ranks but through the exact sum."""

    def __init__(self, clip: Clip, noise: Noise, parameters: Sequence[Tensor]) -> None:
        if isinstance(clip, AdaptiveClip):
            raise InvalidInput(
                'arithmetic="strict" adds whole numbers in units of one clip norm, which '
                "AdaptiveClip changes. Use FlatClip."
            )
        if not isinstance(noise, DiscreteGaussianNoise):
            raise InvalidInput(
                'arithmetic="strict" adds whole numbers, so its noise must be whole numbers too: '
                f"use noise=DiscreteGaussianNoise({noise.noise_multiplier:g}) instead of "
                f"{type(noise).__name__}."
            )
        super().__init__(Arithmetic("strict", 0.0, unit(float(clip.sensitivity))), parameters)
        self._dtypes = [torch.int64] * len(self._dtypes)

    def add(self, total: list[Tensor] | None, part: Sequence[Tensor]) -> list[Tensor]:
        """Exact."""
        if total is None:
            return [whole.clone() for whole in part]
        torch._foreach_add_(total, list(part))
        return total

    def noisy(
        self, total: list[Tensor], noise: Noise, sensitivity: float, examples: int
    ) -> list[Tensor]:
        """The sum over all ranks with its noise, in the gradients' units."""
        assert isinstance(noise, DiscreteGaussianNoise)
        if self._rank == 0:
            noise.add_whole_(total, BOUND)
        if self._ranks > 1:
            sum_over_ranks_(total)
        return as_values(total, sensitivity)


def totals_for(
    name: object, clip: Clip, noise: Noise, examples: float, parameters: Sequence[Tensor]
) -> Totals:
    """Of the arithmetic with this name; examples: expected in a batch."""
    device = parameters[0].device.type
    if not isinstance(name, str) or name not in MODES:
        listed = "; ".join(f"{mode!r}: {words}" for mode, words in MODES.items())
        raise InvalidInput(f"arithmetic is {name!r}; it must be one of these. {listed}.")
    if name == "strict":
        return _Whole(clip, noise, parameters)
    if name == "bounded" and device not in ("cpu", "cuda"):
        raise InvalidInput(
            f"The model is on {device!r}; the bound on rounding is proved for CPUs and CUDA "
            'devices. Move the model, or set arithmetic="uncovered"; the certificate then states '
            "first that floating point is not covered."
        )
    arithmetic = Arithmetic(name, None) if name == "uncovered" else bounded(examples, device)
    return (_Sharded if is_part(parameters[0]) else Totals)(arithmetic, parameters)
