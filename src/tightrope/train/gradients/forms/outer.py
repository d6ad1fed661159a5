"""sum_t g_t a_t^T: the gradient of every layer that multiplies by a matrix."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.train.gradients.buffers import scratch
from tightrope.train.gradients.cost import direct_is_cheaper, half_gradients_fit
from tightrope.train.gradients.forms.base import (
    Form,
    blocked_squares,
    full_precision,
    scale_examples,
    without_memory,
    zero_examples,
)
from tightrope.train.gradients.forms.dense import weighted_total
from tightrope.train.gradients.kernels import usable
from tightrope.train.gradients.rounding import UNIT_FLOAT32, exact_products, matmul_unit, raised

__all__ = ["Outer", "OuterShift", "gram_squared_norms", "per_example_products"]


@final
class Outer(Form):
    """Activations a: (B, T, d) and output gradients g: (B, T, p); a gradient is (p, d)."""

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.a, self.g = a, g
        self.shifted = False  # whether a bias will ask for its part of the same products
        self._direct: Tensor | None = None  # (B, p, d) once instantiated
        self._sums: tuple[Tensor, ...] | None = None
        self._product: tuple[Tensor, Tensor, Tensor | None] | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(B, T, d, p)."""
        return (*self.a.shape, self.g.shape[2])

    @property
    def half(self) -> bool:
        """Whether the half-precision ways of a GPU apply."""
        return self.g.element_size() == 2 and self.a.dtype is self.g.dtype and usable(self.g)

    @property
    def tiled(self) -> bool:
        """Whether the Gram tiles serve this layer: too large to instantiate."""
        return self._direct is None and self.half and not half_gradients_fit(self.sizes)

    @property
    def stored_in_half(self) -> bool:
        """Whether the gradients will be written out in bfloat16."""
        return self.g.dtype is torch.bfloat16 and self.half and not self.tiled

    @property
    def instantiated(self) -> bool:
        """Whether norm and sum go through the written-out gradients; both must go one way."""
        if self._direct is not None:
            return True
        return not self.tiled if self.half else direct_is_cheaper(self.sizes, self.g.device)

    def release(self) -> None:
        """Let go of the operands."""
        self.a, self.g = without_memory(self.a), without_memory(self.g)

    def squared_norms(self) -> Tensor:
        _, positions, d, p = self.sizes
        if self.tiled:
            squared, _, q, _ = self.tile_sums()
            return raised(squared, q, sizes=(d, p), positions=positions, unit=UNIT_FLOAT32)
        if self.instantiated:
            return blocked_squares(self.dense())
        return gram_squared_norms(self.a, self.g, unit=matmul_unit(self.g.device))

    def tile_sums(self) -> tuple[Tensor, ...]:
        """Squared norms of weight and bias gradient, and Q of each; all (B,)."""
        if self._sums is None:
            from tightrope.train.gradients.kernels.tokens import gram_sums

            self._sums = gram_sums(self.a, self.g)
        return self._sums

    def tile_products(self, factors: Tensor) -> tuple[Tensor, Tensor | None]:
        """The clipped sums of weight and bias."""
        if self._product is None or self._product[0] is not factors:
            from tightrope.train.gradients.kernels.tokens import weighted_product

            product = weighted_product(self.a, self.g, factors, shift=self.shifted)
            self._product = (factors, *product)
        return self._product[1:]

    def weighted_sum(self, factors: Tensor) -> Tensor:
        if self.instantiated:
            return weighted_total(self.dense(), factors)
        if self.tiled:
            return self.tile_products(factors)[0]
        a, g = full_precision(self.a), full_precision(self.g)
        if a.shape[2] < g.shape[2]:
            a = scale_examples(a, factors.to(a.dtype))
        else:
            g = scale_examples(g, factors.to(g.dtype))
        return torch.mm(g.reshape(-1, g.shape[2]).t(), a.reshape(-1, a.shape[2]))

    def dense(self) -> Tensor:
        if self._direct is None:
            product = half_products if self.half else per_example_products
            self._direct = product(self.a, self.g)
            self.release()
        return self._direct

    def zero(self, examples: Tensor) -> None:
        if self._direct is not None:
            self._direct = zero_examples(self._direct, examples)
        elif not self.tiled:  # the kernel does not read examples with factor zero
            self.a, self.g = zero_examples(self.a, examples), zero_examples(self.g, examples)


@final
class OuterShift(Form):
    """The bias of a layer whose weight is an `Outer`: sum_t g_t, by the weight's own kernels."""

    def __init__(self, outer: Outer) -> None:
        self.outer = outer
        outer.shifted = True

    def squared_norms(self) -> Tensor:
        _, squared, _, q = self.outer.tile_sums()
        positions, width = self.outer.g.shape[1:]
        return raised(squared, q, sizes=(1, width), positions=positions, unit=UNIT_FLOAT32)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        shift = self.outer.tile_products(factors)[1]
        assert shift is not None
        return shift

    def dense(self) -> Tensor:
        return self.outer.g.sum(1, dtype=torch.float32)

    def zero(self, examples: Tensor) -> None:
        self.outer.zero(examples)


def per_example_products(a: Tensor, g: Tensor) -> Tensor:
    """(B, p, d) = g^T a for each example."""
    a, g = full_precision(a), full_precision(g)
    out = scratch((a.shape[0], g.shape[2], a.shape[2]), g.dtype, g.device)
    return torch.bmm(g.transpose(1, 2), a, out=out)


def half_products(a: Tensor, g: Tensor) -> Tensor:
    """The same from half-precision operands on a GPU.

    In bfloat16 the gradients are stored as such, like the weight gradients of ordinary autocast;
    norm and release read the same stored values. float16 would overflow and is widened.
    """
    d, p = a.shape[2], g.shape[2]
    a, g = half_operands(a, g)
    if g.dtype is torch.bfloat16:
        return torch.bmm(g.transpose(1, 2), a)[:, :p, :d]
    return torch.bmm(g.transpose(1, 2), a, out_dtype=torch.float32)[:, :p, :d]


def half_operands(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Widths filled up with zeros to multiples of 8, which the fast matrix products need."""
    return _filled(a), _filled(g)


def _filled(values: Tensor) -> Tensor:
    missing = -values.shape[2] % 8
    return functional.pad(values, (0, missing)) if missing else values


def gram_squared_norms(a: Tensor, g: Tensor, *, unit: float) -> Tensor:
    """|sum_t g_t a_t^T|^2 = sum_ts (a_t.a_s)(g_t.g_s), raised by the rounding of a release."""
    a_gram, g_gram = _gram(a), _gram(g)
    products = a_gram.mul_(g_gram)
    q = products.diagonal(dim1=1, dim2=2).sum(1)
    squared = products.flatten(1).sum(1)
    sizes = (a.shape[2], g.shape[2])
    return raised(squared, q, sizes=sizes, positions=a.shape[1], unit=unit)


def _gram(rows: Tensor) -> Tensor:
    """(B, T, T) inner products in float32: never tf32, whose error the norm could not bear."""
    rows = full_precision(rows)
    with exact_products():
        return torch.bmm(rows, rows.transpose(1, 2))
