"""What every form of a per-example gradient can answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import torch
from torch import Tensor

from tightrope.train.gradients.kernels import usable
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.rounding import TINY

__all__ = [
    "BLOCK",
    "Form",
    "blocked_squares",
    "by_kernel",
    "full_precision",
    "scale_examples",
    "short_row_squares",
    "short_squares",
    "without_memory",
    "zero_examples",
]

BLOCK = 4096  # squares in one chain, see clip.NORM_ERROR
_FULL = (torch.float32, torch.float64)


class Form(ABC):
    """The gradients of all examples of a batch with respect to one parameter, not yet summed."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """(B,) upper bounds on the squared norms, rounding included (see `rounding`)."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        """Sum over examples of factor times gradient, in the parameter's shape.

        At most `chain` examples are added in one float32 chain; 0: in float64 (see `chains`).
        """

    @abstractmethod
    def dense(self) -> Tensor:
        """(B, *shape): every per-example gradient written out."""

    @abstractmethod
    def together(self, owners: Owners) -> Form:
        """The same for examples of several rows each, where this is about rows."""

    def settle(self) -> None:  # noqa: B027 (by default nothing)
        """Hold less from now on, if the norms can be taken before the clip factors are known."""

    @abstractmethod
    def zero(self, examples: Tensor) -> None:
        """Make the gradients of the marked examples (B,) exactly zero, whatever they held."""


def full_precision(values: Tensor) -> Tensor:
    """float32 (or float64 where it is already): half precision never accumulates."""
    return values if values.dtype in _FULL else values.float()


def blocked_squares(values: Tensor) -> Tensor:
    """(B,) sums of squares over all other dimensions, never lower than the clip allows for.

    A float32 chain holds at most `BLOCK` squares; longer rows are cut, and the squares of the
    parts added in float64. What underflows is made up for.
    """
    flat = values if values.dim() == 2 else values.reshape(values.shape[0], -1)
    if not flat.is_cuda:
        flat = full_precision(flat)
    length = flat.shape[1]
    if length <= BLOCK:
        return short_row_squares(flat) if by_kernel(flat) else _squares(flat)
    whole = length - length % BLOCK
    parts = _squares(flat[:, :whole].unflatten(1, (-1, BLOCK)))
    return _squares(flat[:, whole:]).add_(parts.sum(1, dtype=torch.float64))


def by_kernel(*rows: Tensor) -> bool:
    """Whether squares of these rows (B, d) come from one launch, in float32."""
    return usable(*rows) and all(r.dtype != torch.float64 and r.shape[1] <= BLOCK for r in rows)


def short_row_squares(a: Tensor, g: Tensor | None = None) -> Tensor:
    """(B,) of the rows of a, or of the products g a^T, where `by_kernel`."""
    from tightrope.train.gradients.kernels.rows import row_squares

    return row_squares(a, g)


def _squares(rows: Tensor) -> Tensor:
    dtype = rows.dtype if rows.element_size() > 2 else torch.float32
    norms = torch.linalg.vector_norm(rows, dim=-1, dtype=None if dtype is rows.dtype else dtype)
    lost = rows.shape[-1] * TINY  # what the squares may lack by underflow
    return torch.addcmul(_constant((), lost, dtype, rows.device), norms, norms)


@lru_cache(maxsize=1024)
def _constant(
    shape: tuple[int, ...], value: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.full(shape, value, dtype=dtype, device=device)


def short_squares(rows: Tensor, more: float = 0.0) -> Tensor:
    """blocked_squares and `more`, inside `exact_products`: quicker for short rows on the CPU."""
    length = rows.shape[1]
    if length > BLOCK or rows.is_cuda:
        squares = blocked_squares(rows)
        return squares.add_(more) if more else squares
    start, ones = _start_and_ones(length, more, rows.dtype, rows.device)
    return torch.addmv(start, rows * rows, ones)


@lru_cache(maxsize=1024)
def _start_and_ones(
    length: int, more: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    start = _constant((), length * TINY + more, dtype, device)
    return start, _constant((length,), 1.0, dtype, device)


def without_memory(values: Tensor) -> Tensor:
    """An empty stand-in of the same kind; a view of no rows would hold the whole."""
    return values.new_empty((0, *values.shape[1:]))


def scale_examples(values: Tensor, factors: Tensor) -> Tensor:
    """values[i] * factors[i]."""
    return values * factors.view(-1, *(1,) * (values.dim() - 1))


def zero_examples(values: Tensor, examples: Tensor) -> Tensor:
    """values with the marked examples replaced by zeros (0 * nan would stay nan)."""
    return values.masked_fill(examples.view(-1, *(1,) * (values.dim() - 1)), 0)
