"""What every form of a per-example gradient can answer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

__all__ = [
    "Form",
    "blocked_squares",
    "full_precision",
    "scale_examples",
    "without_memory",
    "zero_examples",
]

_BLOCK = 4096


class Form(ABC):
    """The gradients of all examples of a batch with respect to one parameter, not yet summed."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """(B,) upper bounds on the squared norms, rounding included (see `rounding`)."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over examples of factor times gradient, in the parameter's shape."""

    @abstractmethod
    def dense(self) -> Tensor:
        """(B, *shape): every per-example gradient written out."""

    def settle(self) -> None:  # noqa: B027 (by default nothing)
        """Hold less from now on, if the norms can be taken before the clip factors are known."""

    @abstractmethod
    def zero(self, examples: Tensor) -> None:
        """Make the gradients of the marked examples (B,) exactly zero, whatever they held."""


def full_precision(values: Tensor) -> Tensor:
    """float32 (or float64 where it is already): half precision never accumulates."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def blocked_squares(values: Tensor) -> Tensor:
    """(B,) sums of squares over all other dimensions.

    torch's float32 norm over millions of values is biased low (2.7e-3 at 38 million on a CPU), so
    long rows are cut into blocks whose squares are summed in a second step.
    """
    if values.is_cuda:
        flat = values if values.dim() == 2 else values.reshape(len(values), -1)
        dtype = None if flat.element_size() > 2 else torch.float32
        return torch.linalg.vector_norm(flat, dim=1, dtype=dtype).square_()
    flat = full_precision(values)
    flat = flat if flat.dim() == 2 else flat.reshape(flat.shape[0], -1)
    length = flat.shape[1]
    if length <= _BLOCK:
        return torch.linalg.vector_norm(flat, dim=1).square_()
    whole = length - length % _BLOCK
    blocks = flat[:, :whole].unflatten(1, (-1, _BLOCK))
    squares = torch.linalg.vector_norm(blocks, dim=2).square_().sum(1)
    return squares + torch.linalg.vector_norm(flat[:, whole:], dim=1).square_()


def without_memory(values: Tensor) -> Tensor:
    """An empty stand-in of the same kind; a view of no rows would hold the whole."""
    return values.new_empty((0, *values.shape[1:]))


def scale_examples(values: Tensor, factors: Tensor) -> Tensor:
    """values[i] * factors[i]."""
    return values * factors.view(-1, *(1,) * (values.dim() - 1))


def zero_examples(values: Tensor, examples: Tensor) -> Tensor:
    """values with the marked examples replaced by zeros (0 * nan would stay nan)."""
    return values.masked_fill(examples.view(-1, *(1,) * (values.dim() - 1)), 0)
