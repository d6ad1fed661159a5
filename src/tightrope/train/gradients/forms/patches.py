"""Convolutions: an outer product over the patches the kernel sees."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from tightrope.train.gradients.buffers import scratch, scratch_scope
from tightrope.train.gradients.chains import slices, sum_of_parts
from tightrope.train.gradients.cost import (
    MANY_POSITIONS,
    direct_is_cheaper,
    evenly,
    formed_twice,
    half_gradients_fit,
    small_convolution,
    together,
    unfold_room,
)
from tightrope.train.gradients.forms.base import (
    Form,
    blocked_squares,
    full_precision,
    without_memory,
    zero_examples,
)
from tightrope.train.gradients.forms.depthwise import depthwise_gradients, is_depthwise
from tightrope.train.gradients.forms.geometry import Convolution, in_order
from tightrope.train.gradients.forms.outer import fused, per_example_products, squared_norms
from tightrope.train.gradients.kernels import usable
from tightrope.train.gradients.owners import Owners

if TYPE_CHECKING:
    from tightrope.train.gradients.kernels.products import Operands

__all__ = ["Patches"]


def _half_kernels(x: Tensor, g: Tensor, convolution: Convolution) -> bool:
    """Whether bfloat16 images stay as they are, and gradients are stored as such (see Outer)."""
    plain = convolution.groups == 1 and g.dim() == 4 and x.dtype is g.dtype
    return plain and g.dtype is torch.bfloat16 and usable(x, g)


@final
class Patches(Form):
    """x: (B * each, C, *space) input; g: (B * each, P, *out) output gradient."""

    def __init__(self, x: Tensor, g: Tensor, convolution: Convolution, each: int = 1) -> None:
        self.x, self.g, self.convolution, self.each = x, g, convolution, each
        self._examples = g.shape[0] // each
        self._small = self._by_small_kernel()
        self._half = _half_kernels(x, g, convolution)
        self._by_images = self._half and self._reads_images()
        self.last = self._by_images or convolution.channels_last(x)  # channels innermost
        self._fused = self._half or (fused(g) and x.dtype is g.dtype)
        self._direct: Tensor | None = None  # (B, N) once instantiated
        self._squares: Tensor | None = None  # (B,) once the norms are taken

    def together(self, owners: Owners) -> Patches:
        return Patches(owners.fill(self.x), owners.fill(self.g), self.convolution, owners.each)

    def settle(self) -> None:
        """Written-out gradients that are smaller than the images they were made from."""
        if self.shrinks:
            self._squares = self.squared_norms()

    @property
    def shrinks(self) -> bool:
        """Whether the gradients are written out at once, to hold less."""
        smaller = self.holds_more_than(self.convolution.weight_shape.numel())
        return smaller and not self._small and self.instantiated

    def holds_more_than(self, weights: int) -> bool:
        """Whether the images take more memory than so many weights of every example."""
        return 4 * self._examples * weights < self.x.nbytes + self.g.nbytes

    def squared_norms(self) -> Tensor:
        if self._squares is not None:
            return self._squares
        if self._small:
            from tightrope.train.gradients.kernels.convolution import convolution_gradients

            squares, written = convolution_gradients(self.x, self.g, self.convolution)
            self._direct = written.flatten(1)
            return squares
        if self.instantiated:
            return blocked_squares(self._written())
        if self._by_images:
            from tightrope.train.gradients.kernels.products import squares_of

            return squares_of(self._images(slice(None)))
        # Small Gram matrices leave a GPU idle unless there are many: larger chunks than below.
        squares = [squared_norms(a, g, fused=self._fused) for a, g in self._operands(2**29)]
        return torch.cat(squares).view(-1, self.convolution.groups).sum(1)

    def _sizes(self) -> tuple[int, int, int, int]:
        """Batch times groups, positions, and columns and rows of one group's weight."""
        groups, shape = self.convolution.groups, self.convolution.weight_shape
        rows, columns = shape[0] // groups, shape[1:].numel()
        return self._examples * groups, self.each * prod(self.g.shape[2:]), columns, rows

    def _by_small_kernel(self) -> bool:
        """Whether one kernel writes the gradients and takes their norms."""
        plain = self.convolution.groups == self.each == 1 and self.g.dim() == 4
        fits = plain and self.x.dtype is self.g.dtype and usable(self.x, self.g)
        return fits and small_convolution(self._sizes())

    def _reads_images(self) -> bool:
        """Whether a kernel forms the products of patches where they lie in the images."""
        return self.convolution.weight_shape[1] % 8 == 0 and not small_convolution(self._sizes())

    def _images(self, examples: slice) -> Operands:
        from tightrope.train.gradients.kernels.products import images

        self.x, self.g = (v.contiguous(memory_format=torch.channels_last) for v in (self.x, self.g))
        start, stop, _ = examples.indices(self._examples)
        rows = slice(start * self.each, stop * self.each)
        return images(self.x[rows], self.g[rows], self.convolution, self.each)

    @property
    def instantiated(self) -> bool:
        """Whether norm and sum go through the written-out gradients; both must go one way."""
        if self._direct is not None or is_depthwise(self.convolution):
            return True
        if self._half:
            sizes = self._sizes()
            if self._by_images:
                return sizes[1] >= MANY_POSITIONS
            return not formed_twice(sizes) and half_gradients_fit(sizes)
        return direct_is_cheaper(self._sizes(), self.g.device)

    def _operands(self, room: int) -> Iterator[tuple[Tensor, Tensor]]:
        """a: (B * groups, T, d) and g: (B * groups, T, p / groups), in chunks of `room` bytes.

        T is over all rows of an example.
        """
        batch, positions, columns, _ = self._sizes()
        groups = self.convolution.groups
        most = max(1, room // (self.g.element_size() * max(1, columns * positions * groups)))
        chunk = evenly(self._examples, most)
        for start in range(0, batch // groups, chunk):
            with scratch_scope():
                yield self._operands_of(slice(start, start + chunk))

    def _operands_of(self, examples: slice) -> tuple[Tensor, Tensor]:
        groups, each = self.convolution.groups, self.each
        rows = slice(examples.start * each, examples.stop * each)
        x, g = self.x[rows], self.g[rows].flatten(2)
        if not self._half:
            x, g = full_precision(x), full_precision(g)
        if each > 1:
            g = g.unflatten(0, (-1, each)).transpose(1, 2).flatten(2)
        if groups > 1:
            g = g.unflatten(1, (groups, -1)).flatten(0, 1)
        return self.convolution.unfold(x, each), g.transpose(1, 2)

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        if self._direct is None and self._small:
            self.squared_norms()
        if self._fused and chain and self.convolution.groups == 1 and not self.instantiated:
            total = self._fused_sum(factors, chain)
        else:
            total = sum_of_parts(self.parts(), factors, chain)
        return self._in_order(total).contiguous()

    def _in_order(self, rows: Tensor) -> Tensor:
        return in_order(rows, self.convolution.weight_shape, last=self.last)

    def drop(self) -> None:
        """Nothing will be asked of it any more."""
        self._direct = None
        self._let_go()

    def _fused_sum(self, factors: Tensor, chain: int) -> Tensor:
        from tightrope.train.gradients.kernels.products import rows, weighted_sum_of

        if self._by_images:
            return weighted_sum_of(self._images(slice(None)), factors, chain).view(-1)
        parts, start = [], 0
        for a, g in self._operands(unfold_room(self.g.device)):
            own = factors[start : start + len(a)]
            parts.append(weighted_sum_of(rows(a, g), own, chain))
            start += len(a)
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float64)
        return total.float().view(-1)

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """(B, N) gradients, all at once where they are instantiated, else some at a time."""
        if self.instantiated:
            yield slice(0, self._examples), self._written()
            return
        _, positions, columns, rows = self._sizes()
        values = (rows + positions) * columns * self.convolution.groups
        most = together(values, self.g.device)
        for part in slices(self._examples, evenly(self._examples, most)):
            with scratch_scope():
                yield part, self._products_of(part).view(-1, self.convolution.weight_shape.numel())

    def _products_of(self, examples: slice) -> Tensor:
        if self._by_images:
            from tightrope.train.gradients.kernels.products import written

            return written(self._images(examples))
        return per_example_products(*self._operands_of(examples), fused=self._fused)

    def dense(self) -> Tensor:
        return self._in_order(full_precision(self._written()))

    def _written(self) -> Tensor:
        """(B, N): the gradients as the products of patches write them."""
        if self._direct is None and is_depthwise(self.convolution):
            each_row = depthwise_gradients(self.x, self.g, self.convolution).flatten(1)
            whole = each_row.unflatten(0, (-1, self.each)).sum(1) if self.each > 1 else each_row
            self._direct = whole
            self._let_go()
        if self._direct is None and self._by_images:
            from tightrope.train.gradients.kernels.products import written

            stored = written(self._images(slice(None)), self.g.dtype)  # norm and sum read these
            self._direct = stored.view(self._examples, -1)
            self._let_go()
        if self._direct is None:
            batch, _, columns, rows = self._sizes()
            dtype = self.g.dtype if self._half else full_precision(self.g[:0]).dtype
            out = scratch((batch, rows, columns), dtype, self.g.device)
            start = 0
            for a, g in self._operands(unfold_room(self.g.device)):
                torch.bmm(g.transpose(1, 2), a, out=out[start : start + len(a)])
                start += len(a)
                del a, g  # before the next are made
            self._direct = out.view(self._examples, -1)
            self._let_go()
        return self._direct

    def _let_go(self) -> None:
        """The memory of the operands is no longer needed."""
        self.x, self.g = without_memory(self.x), without_memory(self.g)

    def zero(self, examples: Tensor) -> None:
        if self._direct is not None:
            self._direct = zero_examples(self._direct, examples)
        else:
            rows = examples.repeat_interleave(self.each)
            self.x, self.g = zero_examples(self.x, rows), zero_examples(self.g, rows)
