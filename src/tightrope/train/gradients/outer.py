"""sum_t g_t a_t^T: the gradient of every layer that multiplies by a matrix.

Each example's sum over its positions is formed on its own, so that cancellation inside one example
stays inside it. Where the gradients of the whole batch do not fit, they are formed some at a time:
once for the sum, and for the norm by Gram matrices (float32) or once more (tf32, half precision).

Which of two exact ways to a norm is cheaper? For T positions, d inputs, p outputs and batch B the
plain step spends 6BTdp operations on a layer.
* Gram ("ghost") norm: 2BT^2(d+p) more operations, and the T x T matrices are written and read.
* Direct: all per-example gradients are kept, 4Bdp bytes written once and read twice.
Either way the sum goes through per-example products (docs/arithmetic.md), some at a time.

Of a layer that ran once for each example the gradient is one outer product (`RankOne`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.train.gradients.forms import (
    Form,
    blocked_squares,
    by_kernel,
    chained_product,
    evenly,
    scratch,
    scratch_scope,
    slices,
    sum_of_parts,
    together,
    without_memory,
    zero_examples,
)
from tightrope.train.gradients.rounding import (
    TINY,
    exact_products,
    full_precision,
    gamma,
    lower_products,
    usable,
)

# Operations the device does in the time it moves one byte; measured, order of magnitude only.
# On CUDA the Gram products run in full float32 on purpose (rounding.py).
_OPERATIONS_PER_BYTE = {"cpu": 2.5, "cuda": 12.0}
# A per-example gradient larger than this is not instantiated for the whole batch at once.
_LARGEST_BYTES = {"cpu": 2**29, "cuda": 2**30}

# See `formed_twice`; measured on an H200.
_FEW_POSITIONS, _BOXED_POSITIONS = 128, 256


def direct_is_cheaper(sizes: tuple[int, int, int, int], device: torch.device) -> bool:
    """Whether to instantiate, for (B, T, d, p)."""
    batch, positions, d, p = sizes
    stored = 4.0 * batch * d * p
    operations = 2.0 * batch * positions**2 * (d + p)
    ghost = 24.0 * batch * positions**2 + operations / _OPERATIONS_PER_BYTE.get(device.type, 6.0)
    return stored <= _LARGEST_BYTES.get(device.type, 2**29) and 3 * stored < ghost


def half_gradients_fit(sizes: tuple[int, int, int, int]) -> bool:
    """Whether a half-precision layer on CUDA is instantiated for the whole batch.

    The batched product runs at full speed and its 2Bdp bytes are cheap to move, and they take the
    place of the 2BT(d+p) bytes they are made from. Layers whose gradients take far more form them
    twice: a private step may not need much more memory than an ordinary one.
    """
    batch, positions, d, p = sizes
    stored = 2.0 * batch * d * p
    return stored < 2**31 and stored <= 2 * (2.0 * batch * positions * (d + p))


def formed_twice(sizes: tuple[int, int, int, int], *, boxed: bool = False) -> bool:
    """Whether bfloat16 products on CUDA, of (B, T, d, p), are formed twice by a kernel.

    Many positions make forming dear; few make storing and reading the gradients so. boxed: the
    faster kernel can read the operands (`product_kernels.Boxes`).
    """
    few = sizes[1] <= _FEW_POSITIONS
    return few or (boxed and sizes[1] <= _BOXED_POSITIONS and not half_gradients_fit(sizes))


@final
class Outer(Form):
    """Activations a: (B, T, d) and output gradients g: (B, T, p); a gradient is (p, d).

    half: whether the half-precision ways of a GPU apply.
    """

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.a, self.g = a, g
        alike = a.dtype is g.dtype
        self.half = alike and g.element_size() == 2 and usable(g)
        self._fused = alike and (self._formed_twice() or fused(g))
        self._direct: Tensor | None = None  # (B, p, d) once instantiated
        self._dropped: Tensor | None = None  # (B,) examples whose products are left out

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(B, T, d, p)."""
        return (*self.a.shape, self.g.shape[2])

    def _formed_twice(self) -> bool:
        if self.g.dtype is not torch.bfloat16 or not self.half:
            return False
        from tightrope.train.gradients.product_kernels import readable

        return formed_twice(self.sizes, boxed=readable(self.a, self.g))

    @property
    def stored_in_half(self) -> bool:
        """Whether the gradients will be written out in bfloat16."""
        return self.g.dtype is torch.bfloat16 and self.half and self.instantiated

    @property
    def by_gram(self) -> bool:
        """Whether what is written is in float32 and its norm is bounded by Gram matrices."""
        return not (self.instantiated or self.half or self._fused)

    @property
    def instantiated(self) -> bool:
        """Whether norm and sum go through the written-out gradients of the whole batch."""
        if self._direct is not None:
            return True
        if self.half:
            return not self._fused and half_gradients_fit(self.sizes)
        return direct_is_cheaper(self.sizes, self.g.device)

    def squared_norms(self) -> Tensor:
        if self.instantiated:
            return blocked_squares(self.dense())
        if self.half and not self._fused:
            return torch.cat([blocked_squares(part) for _, part in self.parts()])
        return squared_norms(self.a, self.g, fused=self._fused)

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        if self._fused and chain and not self.instantiated:
            from tightrope.train.gradients.product_kernels import rows, weighted_sum_of

            if self._dropped is not None:
                factors = factors.masked_fill(self._dropped, 0)
            return weighted_sum_of(rows(self.a, self.g), factors, chain)
        return sum_of_parts(self.parts(), factors, chain)

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """The gradients, all at once where they are instantiated, else some examples at a time."""
        if self.instantiated:
            yield slice(0, len(self.dense())), self.dense()
            return
        batch, _, d, p = self.sizes
        for part in slices(batch, evenly(batch, together(d * p, self.g.device))):
            with scratch_scope():
                a, g = self.a[part], self.g[part]
                if self.half and not self._fused:
                    yield part, self._kept(half_products(a, g), part)
                else:
                    yield part, self._kept(per_example_products(a, g, fused=self._fused), part)

    def _kept(self, products: Tensor, part: slice) -> Tensor:
        return products if self._dropped is None else zero_examples(products, self._dropped[part])

    def dense(self) -> Tensor:
        if self._direct is None:
            products = (half_products if self.half else _products)(self.a, self.g)
            self._direct = self._kept(products, slice(None))
            self.a, self.g = without_memory(self.a), without_memory(self.g)
        return self._direct

    def zero(self, examples: Tensor) -> None:
        if self._direct is not None:
            self._direct = zero_examples(self._direct, examples)
        else:  # copies of the operands might be read by another kernel than took the norms
            self._dropped = examples


def fused(g: Tensor) -> bool:
    """Whether float32 products not written out for the whole batch come from a kernel, in tf32."""
    return g.dtype is torch.float32 and usable(g) and lower_products()


def squared_norms(a: Tensor, g: Tensor, *, fused: bool) -> Tensor:
    """(B,) from above, of what `per_example_products` writes."""
    if not fused:
        return gram_squared_norms(a, g)
    from tightrope.train.gradients.product_kernels import rows, squares_of

    return squares_of(rows(a, g))


def per_example_products(a: Tensor, g: Tensor, *, fused: bool) -> Tensor:
    """(B, p, d) = g^T a for each example; in float32 where the norms are by Gram matrices."""
    if fused:
        from tightrope.train.gradients.product_kernels import rows, written

        return written(rows(a, g))
    with exact_products():
        return _products(a, g)


def _products(a: Tensor, g: Tensor) -> Tensor:
    """The same where the norms are those of what comes out, in whatever precision."""
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
    how = {} if g.dtype is torch.bfloat16 else {"out_dtype": torch.float32}
    return torch.bmm(g.transpose(1, 2), a, **how)[:, :p, :d]  # type: ignore[call-overload,no-any-return]


def half_operands(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Widths filled up with zeros to multiples of 8, which the fast matrix products need."""
    a, g = (functional.pad(v, (0, -v.shape[2] % 8)) if v.shape[2] % 8 else v for v in (a, g))
    return a, g


def gram_squared_norms(a: Tensor, g: Tensor) -> Tensor:
    """(B,) squared upper norms of sum_t g_t a_t^T as float32 products write it."""
    squared, spread = gram_norms(a, g)
    return squared.sqrt_().add_(spread, alpha=gamma(a.shape[1])).square_()


def gram_norms(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """N^2 >= |sum_t g_t a_t^T|^2 = sum_ts (a_t.a_s)(g_t.g_s), and S >= sum_t |a_t||g_t|; (B,) each.

    The inner products are off by at most gamma(d) |a_t||a_s| and gamma(p) |g_t||g_s|, so their
    products, added in float64, by gamma(d + p + 2) S^2. What underflows is made up for. They are
    never in tf32, whose error the norm could not bear.
    """
    a, g = full_precision(a), full_precision(g)
    with exact_products():
        a_gram, g_gram = (torch.bmm(rows, rows.transpose(1, 2)) for rows in (a, g))  # (B, T, T)
    d, p, positions = a.shape[2], g.shape[2], a.shape[1]
    a_norms, g_norms = _diagonal_norms(a_gram, d), _diagonal_norms(g_gram, p)  # (B, T)
    spread = (a_norms * g_norms).sum(1)
    lost = p * a_norms.sum(1).square() + d * g_norms.sum(1).square() + positions**2
    squared = not_below_zero(a_gram.mul_(g_gram).sum((1, 2), dtype=torch.float64))
    squared += gamma(d + p + 2) * spread.square() + TINY * lost
    return squared, spread


def not_below_zero(squares: Tensor) -> Tensor:
    """Without what rounding took below zero; what overflowed there is not known, and not finite."""
    return squares.masked_fill_(squares == -torch.inf, torch.inf).clamp_min_(0)


def _diagonal_norms(gram: Tensor, length: int) -> Tensor:
    """The norms of the rows, from above."""
    squares = gram.diagonal(dim1=1, dim2=2).double()
    return ((squares + length * TINY) * (1 + 2 * gamma(length + 2))).sqrt_()


@final
class RankOne(Form):
    """One position for each example: inputs a: (B, d), output gradient g: (B, p)."""

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.a, self.g = full_precision(a), full_precision(g)

    def squared_norms(self) -> Tensor:
        if by_kernel(self.a, self.g):
            from tightrope.train.gradients.row_kernels import row_squares

            return row_squares(self.a, self.g)
        return blocked_squares(self.a).mul_(blocked_squares(self.g))

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return chained_product(self.g * factors[:, None].to(self.g.dtype), self.a, chain)

    def outer(self) -> Outer:
        """The same as a form that can be joined with others."""
        return Outer(self.a[:, None], self.g[:, None])

    def dense(self) -> Tensor:
        return self.g[:, :, None] * self.a[:, None, :]

    def zero(self, examples: Tensor) -> None:
        self.a, self.g = zero_examples(self.a, examples), zero_examples(self.g, examples)
