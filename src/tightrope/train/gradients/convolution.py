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
from typing import TYPE_CHECKING, Any, final

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

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel reads one input channel, and there are several."""
        return bool(self.groups > 1 and self.weight_shape[1] == 1)

    def _by_kernel(self, x: Tensor) -> bool:
        return self.groups == 1 and x.dim() == 4 and usable(x)

    def channels_last(self, x: Tensor) -> bool:
        """Whether a patch is written with its channels innermost.

        Where the kernel jumps, neighbouring outputs read values that lie apart; the channels of
        neighbouring places then make the longer run to copy.
        """
        jumps = self.stride[-1] > 1 and self.kernel[-1] > 1
        return jumps and self.groups == 1 and not self._by_kernel(x)

    def unfold(self, x: Tensor, each: int = 1) -> Tensor:
        """(B * groups, each * T, d): the patches of (B * each, C, *space).

        Columns are as in `in_order`, innermost channels where `channels_last` says so.
        """
        geometry = zip(
            x.shape[2:], self.padding, self.kernel, self.stride, self.dilation, strict=True
        )
        space = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, k, s, d in geometry]
        one_tap = not any(self.padding) and {*self.kernel, *self.stride} == {1}
        if self.groups == each == 1 and one_tap:  # the patches are the image itself
            return x.flatten(2).transpose(1, 2)
        if self._by_kernel(x):
            from tightrope.train.gradients.row_kernels import unfold

            return unfold(x, self, space, each).transpose(1, 2)
        if any(self.padding):
            x = functional.pad(x, [n for n in reversed(self.padding) for _ in range(2)])
        batch, channels, last = len(x) // each, x.shape[1], self.channels_last(x)
        x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
        view, channel, *steps = x.stride()
        taps = [step * d for step, d in zip(steps, self.dilation, strict=True)]
        jumps = [step * s for step, s in zip(steps, self.stride, strict=True)]
        if last:
            size = (batch, each, *space, *self.kernel, channels)
            strides = (view * each, view, *jumps, *taps, channel)
        else:
            size = (batch, channels, *self.kernel, each, *space)
            strides = (view * each, channel, *taps, view, *jumps)
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


@final
class Patches(Form):
    """x: (B * each, C, *space) input; g: (B * each, P, *out) output gradient."""

    def __init__(self, x: Tensor, g: Tensor, convolution: Convolution, each: int = 1) -> None:
        self.x, self.g, self.convolution, self.each = x, g, convolution, each
        self._examples = g.shape[0] // each
        # Batch times groups, positions, and columns and rows of one group's weight.
        groups, shape = convolution.groups, convolution.weight_shape
        positions, rows = each * prod(g.shape[2:]), shape[0] // groups
        self._sizes = self._examples * groups, positions, shape[1:].numel(), rows
        alike = x.dtype is g.dtype
        plain = groups == 1 and g.dim() == 4 and alike and usable(x, g)
        bound_by_launches = 2.0 * prod(self._sizes) < 4e9
        # One kernel writes the gradients and takes their norms.
        self._small = plain and each == 1 and bound_by_launches
        # bfloat16 images stay as they are, and gradients are stored as such (see `Outer`).
        self._half = plain and g.dtype is torch.bfloat16
        # A kernel forms the products of patches where they lie in the images.
        self._by_images = self._half and shape[1] % 8 == 0 and not bound_by_launches
        self._last = self._by_images or convolution.channels_last(x)  # channels innermost
        self._fused = self._half or (fused(g) and alike)
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
            return _kernels().squares_of(self._images(slice(None)))
        # Small Gram matrices leave a GPU idle unless there are many: larger chunks than below.
        parts = [squared_norms(a, g, fused=self._fused) for _, a, g in self._operands(2**29)]
        return torch.cat(parts).view(-1, self.convolution.groups).sum(1)

    def _images(self, examples: slice) -> Operands:
        self.x, self.g = (v.contiguous(memory_format=torch.channels_last) for v in (self.x, self.g))
        start, stop, _ = examples.indices(self._examples)
        rows = slice(start * self.each, stop * self.each)
        found: Operands = _kernels().images(self.x[rows], self.g[rows], self.convolution, self.each)
        return found

    @property
    def instantiated(self) -> bool:
        """Whether norm and sum go through the written-out gradients; both must go one way."""
        if self._direct is not None or self.convolution.is_depthwise:
            return True
        if self._by_images:
            return self._sizes[1] >= _MANY_POSITIONS
        if self._half:
            return not formed_twice(self._sizes) and half_gradients_fit(self._sizes)
        return direct_is_cheaper(self._sizes, self.g.device)

    def _operands(self, room: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Examples, with a: (B * groups, T, d) and g: (B * groups, T, p / groups), by `room` bytes.

        T is over all rows of an example.
        """
        _, positions, columns, _ = self._sizes
        size = self.g.element_size() * columns * positions * self.convolution.groups
        for part in slices(self._examples, evenly(self._examples, max(1, room // max(1, size)))):
            with scratch_scope():
                yield part, *self._operands_of(part)

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
        return in_order(total, self.convolution.weight_shape, last=self._last).contiguous()

    def _fused_sum(self, factors: Tensor, chain: int) -> Tensor:
        kernels = _kernels()
        if self._by_images:
            images = self._images(slice(None))
            return kernels.weighted_sum_of(images, factors, chain).view(-1)  # type: ignore[no-any-return]
        parts = [
            kernels.weighted_sum_of(kernels.rows(a, g), factors[part], chain)
            for part, a, g in self._operands(_PATCHES_ROOM)
        ]
        return torch.stack(parts).sum(0, dtype=torch.float64).float().view(-1)

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """(B, N) gradients, all at once where they are instantiated, else some at a time."""
        if self.instantiated:
            yield slice(0, self._examples), self._written()
            return
        _, positions, columns, rows = self._sizes
        values = (rows + positions) * columns * self.convolution.groups
        most = together(values, self.g.device)
        for part in slices(self._examples, evenly(self._examples, most)):
            with scratch_scope():
                if self._by_images:
                    products = _kernels().written(self._images(part))
                else:
                    products = per_example_products(*self._operands_of(part), fused=self._fused)
                yield part, products.view(-1, self.convolution.weight_shape.numel())

    def dense(self) -> Tensor:
        rows = full_precision(self._written())
        return in_order(rows, self.convolution.weight_shape, last=self._last)

    def _written(self) -> Tensor:
        """(B, N): the gradients as the products of patches write them."""
        if self._direct is not None:
            return self._direct
        if self.convolution.is_depthwise:
            rows = _depthwise_gradients(self.x, self.g, self.convolution).flatten(1)
            found = rows.unflatten(0, (-1, self.each)).sum(1) if self.each > 1 else rows
        elif self._by_images:  # norm and sum read what is stored
            found = _kernels().written(self._images(slice(None)), self.g.dtype)
        else:
            batch, _, columns, rows_of_group = self._sizes
            dtype = self.g.dtype if self._half else full_precision(self.g[:0]).dtype
            found = scratch((batch, rows_of_group, columns), dtype, self.g.device)
            groups = self.convolution.groups
            for part, a, g in self._operands(_PATCHES_ROOM):
                place = found[part.start * groups : part.stop * groups]
                torch.bmm(g.transpose(1, 2), a, out=place)
                del a, g  # before the next are made
        self._direct = found.view(self._examples, -1)
        self.x, self.g = without_memory(self.x), without_memory(self.g)
        return self._direct

    def zero(self, examples: Tensor) -> None:
        if self._direct is not None:
            self._direct = zero_examples(self._direct, examples)
        else:
            rows = examples.repeat_interleave(self.each)
            self.x, self.g = zero_examples(self.x, rows), zero_examples(self.g, rows)


def _kernels() -> Any:
    """Needs Triton, as nothing else here does."""
    from tightrope.train.gradients import product_kernels

    return product_kernels


# Depthwise.

_CONVOLVE = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}


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
