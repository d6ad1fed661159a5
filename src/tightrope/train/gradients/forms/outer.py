"""sum_t g_t a_t^T: the gradient of every layer that multiplies by a matrix."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.buffers import scratch
from tightrope.train.gradients.cost import direct_is_cheaper
from tightrope.train.gradients.forms.base import (
    Form,
    blocked_squares,
    full_precision,
    scale_examples,
    zero_examples,
)
from tightrope.train.gradients.forms.dense import weighted_total
from tightrope.train.gradients.rounding import exact_products, matmul_unit, raised

__all__ = ["Outer", "per_example_products", "gram_squared_norms", "row_squares"]


@final
class Outer(Form):
    """Activations a: (B, T, d) and output gradients g: (B, T, p); a gradient is (p, d)."""

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.a, self.g = a, g
        self._direct: Tensor | None = None  # (B, p, d) once instantiated

    def squared_norms(self) -> Tensor:
        batch, positions, d = self.a.shape
        sizes = (batch, positions, d, self.g.shape[2])
        if direct_is_cheaper(sizes, self.g.device, self.g.element_size()):
            self._direct = per_example_products(self.a, self.g)
            return blocked_squares(self._direct)
        return gram_squared_norms(self.a, self.g, unit=matmul_unit(self.g.device))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        if self._direct is not None:
            return weighted_total(self._direct, factors)
        a, g = full_precision(self.a), full_precision(self.g)
        if a.shape[2] < g.shape[2]:
            a = scale_examples(a, factors.to(a.dtype))
        else:
            g = scale_examples(g, factors.to(g.dtype))
        return torch.mm(g.reshape(-1, g.shape[2]).t(), a.reshape(-1, a.shape[2]))

    def dense(self) -> Tensor:
        if self._direct is None:
            self._direct = per_example_products(self.a, self.g)
        return self._direct

    def zero(self, examples: Tensor) -> None:
        self.a, self.g = zero_examples(self.a, examples), zero_examples(self.g, examples)
        if self._direct is not None:
            self._direct = zero_examples(self._direct, examples)


def per_example_products(a: Tensor, g: Tensor) -> Tensor:
    """(B, p, d) = g^T a for each example."""
    a, g = full_precision(a), full_precision(g)
    out = scratch((a.shape[0], g.shape[2], a.shape[2]), g.dtype, g.device)
    return torch.bmm(g.transpose(1, 2), a, out=out)


def row_squares(rows: Tensor) -> Tensor:
    """(B, T) squared lengths of (B, T, d) rows."""
    return torch.linalg.vector_norm(full_precision(rows), dim=2).square_()


def gram_squared_norms(a: Tensor, g: Tensor, *, unit: float) -> Tensor:
    """|sum_t g_t a_t^T|^2 = sum_ts (a_t.a_s)(g_t.g_s), raised by the rounding of a release."""
    a_gram, g_gram = _gram(a), _gram(g)
    a_squares, g_squares = (m.diagonal(dim1=1, dim2=2) for m in (a_gram, g_gram))
    products = a_gram.mul(g_gram).flatten(1)
    squared = products.sum(1)
    sizes = (a.shape[2], g.shape[2])
    return raised(squared, a_squares, g_squares, sizes=sizes, unit=unit)


def _gram(rows: Tensor) -> Tensor:
    """(B, T, T) inner products in float32: never tf32, whose error the norm could not bear."""
    rows = full_precision(rows)
    with exact_products():
        return torch.bmm(rows, rows.transpose(1, 2))
