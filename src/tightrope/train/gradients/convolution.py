"""Convolutions: what their kernels read, and their gradients, outer products over the patches.

A depthwise convolution has a kernel for each channel, so no product is worth patches: the gradient
of a channel at a tap of its kernel is the sum over positions of the output gradient times the input
that the tap sees there, a convolution of the input with the output gradient as kernel (Rochette et
al. 2019), in which every channel of every example is a channel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.train.gradients.forms import (
    Form,
    blocked_squares,
    evenly,
    scratch,
    scratch_scope,
    slices,
    sum_of_parts,
    together,
    without_memory,
    zero_examples,
)
from tightrope.train.gradients.outer import (
    direct_is_cheaper,
    formed_twice,
    fused,
    half_gradients_fit,
    per_example_products,
    squared_norms,
)
from tightrope.train.gradients.rounding import full_precision, usable

if TYPE_CHECKING:
    from tightrope.train.gradients.product_kernels import Operands

__all__ = ["Convolution", "Patches", "in_order"]

# From so many on the gradients are small beside what they are made from.
_MANY_POSITIONS = 512
_FEW_POSITIONS = 16  # up to which a depthwise convolution is faster channels last
_PATCHES_ROOM = 2**28  # bytes of patches written out at a time


@final
@dataclass(frozen=True)
class Convolution:
    """Geometry of a convolution with symmetric zero padding (other paddings are done before)."""

    weight_shape: torch.Size
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.weight_shape[2:])

    def unfold(self, x: Tensor, each: int = 1) -> Tensor:
        """(B * groups, each * T, d): the patches of (B * each, C, *space).

        Columns are as in `in_order`, innermost channels where `channels_last` says so.
        """
        space = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, k, s, d in zip(
                x.shape[2:], self.padding, self.kernel, self.stride, self.dilation, strict=True
            )
        ]
        if self.groups == each == 1 and self._copies:
            return x.flatten(2).transpose(1, 2)
        if self._by_kernel(x):
            from tightrope.train.gradients.row_kernels import unfold

            return unfold(x, self, space, each).transpose(1, 2)
        if any(self.padding):
            x = functional.pad(x, [n for n in reversed(self.padding) for _ in range(2)])
        return self._unfold_padded(x, space, each)

    @property
    def _copies(self) -> bool:
        """Whether the patches are the image itself: one tap, which sees every place once."""
        return not any(self.padding) and {*self.kernel, *self.stride} == {1}

    def _by_kernel(self, x: Tensor) -> bool:
        return self.groups == 1 and x.dim() == 4 and usable(x)

    def channels_last(self, x: Tensor) -> bool:
        """Whether a patch is written with its channels innermost.

        Where the kernel jumps, neighbouring outputs read values that lie apart; the channels of
        neighbouring places then make the longer run to copy.
        """
        jumps = self.stride[-1] > 1 and self.kernel[-1] > 1
        return jumps and self.groups == 1 and not self._by_kernel(x)

    def _unfold_padded(self, x: Tensor, space: list[int], each: int) -> Tensor:
        dims, batch, channels = range(len(space)), len(x) // each, x.shape[1]
        last = self.channels_last(x)
        x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
        step = x.stride()
        taps = [step[2 + i] * self.dilation[i] for i in dims]
        jumps = [step[2 + i] * self.stride[i] for i in dims]
        if last:
            size = (batch, each, *space, *self.kernel, channels)
            strides = (step[0] * each, step[0], *jumps, *taps, step[1])
        else:
            size = (batch, channels, *self.kernel, each, *space)
            strides = (step[0] * each, step[1], *taps, step[0], *jumps)
        patches = scratch(size, x.dtype, x.device)
        patches.copy_(x.as_strided(size, strides, x.storage_offset()))
        if last:
            return patches.view(batch, each * prod(space), -1)
        return patches.view(batch * self.groups, -1, each * prod(space)).transpose(1, 2)


def in_order(rows: Tensor, shape: torch.Size, *, last: bool) -> Tensor:
    """(*, N) as (*, *shape); last: whether the input channels are innermost."""
    lead = rows.shape[:-1]
    if not last:
        return rows.view(*lead, *shape)
    outputs, inputs, *kernel = shape
    return rows.view(*lead, outputs, *kernel, inputs).movedim(-1, len(lead) + 1)


def _small_convolution(sizes: tuple[int, int, int, int]) -> bool:
    """Whether a convolution is bound by launches, so that one kernel beats four."""
    batch, positions, d, p = sizes
    return 2.0 * batch * positions * d * p < 4e9


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

    def settle(self) -> None:
        """Gradients that are smaller than the images they are made from are written out at once."""
        weights = self._examples * self.convolution.weight_shape.numel()
        smaller = 4 * weights < self.x.nbytes + self.g.nbytes
        if smaller and not self._small and self.instantiated:
            self._squares = self.squared_norms()

    def squared_norms(self) -> Tensor:
        if self._squares is not None:
            return self._squares
        if self._small:
            from tightrope.train.gradients.row_kernels import convolution_gradients

            squares, written = convolution_gradients(self.x, self.g, self.convolution)
            self._direct = written.flatten(1)
            return squares
        if self.instantiated:
            return blocked_squares(self._written())
        if self._by_images:
            from tightrope.train.gradients.product_kernels import squares_of

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
        return fits and _small_convolution(self._sizes())

    def _reads_images(self) -> bool:
        """Whether a kernel forms the products of patches where they lie in the images."""
        return self.convolution.weight_shape[1] % 8 == 0 and not _small_convolution(self._sizes())

    def _images(self, examples: slice) -> Operands:
        from tightrope.train.gradients.product_kernels import images

        self.x, self.g = (v.contiguous(memory_format=torch.channels_last) for v in (self.x, self.g))
        start, stop, _ = examples.indices(self._examples)
        rows = slice(start * self.each, stop * self.each)
        return images(self.x[rows], self.g[rows], self.convolution, self.each)

    @property
    def instantiated(self) -> bool:
        """Whether norm and sum go through the written-out gradients; both must go one way."""
        if self._direct is not None or _is_depthwise(self.convolution):
            return True
        if self._half:
            sizes = self._sizes()
            if self._by_images:
                return sizes[1] >= _MANY_POSITIONS
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

    def _fused_sum(self, factors: Tensor, chain: int) -> Tensor:
        from tightrope.train.gradients.product_kernels import rows, weighted_sum_of

        if self._by_images:
            return weighted_sum_of(self._images(slice(None)), factors, chain).view(-1)
        parts, start = [], 0
        for a, g in self._operands(_PATCHES_ROOM):
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
            from tightrope.train.gradients.product_kernels import written

            return written(self._images(examples))
        return per_example_products(*self._operands_of(examples), fused=self._fused)

    def dense(self) -> Tensor:
        return self._in_order(full_precision(self._written()))

    def _written(self) -> Tensor:
        """(B, N): the gradients as the products of patches write them."""
        if self._direct is None and _is_depthwise(self.convolution):
            each_row = _depthwise_gradients(self.x, self.g, self.convolution).flatten(1)
            whole = each_row.unflatten(0, (-1, self.each)).sum(1) if self.each > 1 else each_row
            self._direct = whole
            self._let_go()
        if self._direct is None and self._by_images:
            from tightrope.train.gradients.product_kernels import written

            stored = written(self._images(slice(None)), self.g.dtype)  # norm and sum read these
            self._direct = stored.view(self._examples, -1)
            self._let_go()
        if self._direct is None:
            batch, _, columns, rows = self._sizes()
            dtype = self.g.dtype if self._half else full_precision(self.g[:0]).dtype
            out = scratch((batch, rows, columns), dtype, self.g.device)
            start = 0
            for a, g in self._operands(_PATCHES_ROOM):
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


# Depthwise.

_CONVOLVE = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}


def _is_depthwise(convolution: Convolution) -> bool:
    """Whether each output channel reads one input channel, and there are several."""
    return bool(convolution.groups > 1 and convolution.weight_shape[1] == 1)


def _depthwise_gradients(x: Tensor, g: Tensor, convolution: Convolution) -> Tensor:
    """(B, *weight shape) in float32 or wider, from (B, C, *space) and (B, P, *out)."""
    if g.dim() == 4 and usable(x, g):
        from tightrope.train.gradients.row_kernels import written_depthwise

        return written_depthwise(x, g, convolution)
    x, g = full_precision(x), full_precision(g)
    channels = x.shape[0] * x.shape[1]
    x = x.reshape(1, channels, *x.shape[2:])
    if g.dim() == 4 and g.shape[2:].numel() <= _FEW_POSITIONS:
        x = x.contiguous(memory_format=torch.channels_last)
    found = _CONVOLVE[g.dim()](
        x,
        g.reshape(-1, 1, *g.shape[2:]),
        stride=convolution.dilation,
        padding=convolution.padding,
        dilation=convolution.stride,
        groups=channels,
    )
    for dim, size in enumerate(convolution.kernel, start=2):  # a stride may leave some input over
        found = found.narrow(dim, 0, size)
    return found.reshape(len(g), *convolution.weight_shape)
