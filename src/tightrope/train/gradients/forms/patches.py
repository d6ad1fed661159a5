"""Convolutions: an outer product over the patches the kernel sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.train.gradients.buffers import scratch, scratch_scope
from tightrope.train.gradients.cost import direct_is_cheaper, keep_convolution_gradients
from tightrope.train.gradients.forms.base import (
    Form,
    blocked_squares,
    full_precision,
    scale_examples,
    zero_examples,
)
from tightrope.train.gradients.forms.dense import weighted_total
from tightrope.train.gradients.forms.outer import gram_squared_norms
from tightrope.train.gradients.kernels import usable
from tightrope.train.gradients.rounding import UNIT_TF32, convolution_unit

__all__ = ["Convolution", "Patches"]


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

    def unfold(self, x: Tensor) -> Tensor:
        """(B * groups, C/groups * kernel, T): the patches of an input (B, C, *space)."""
        dims = len(self.kernel)
        if any(self.padding):
            x = functional.pad(x, [n for n in reversed(self.padding) for _ in range(2)])
        space = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(x.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        ]
        batch, channels = x.shape[:2]
        step = x.stride()
        size = (batch, channels, *self.kernel, *space)
        strides = (
            *step[:2],
            *(step[2 + i] * self.dilation[i] for i in range(dims)),
            *(step[2 + i] * self.stride[i] for i in range(dims)),
        )
        patches = scratch(size, x.dtype, x.device)
        patches.copy_(x.as_strided(size, strides, x.storage_offset()))
        return patches.view(batch * self.groups, channels // self.groups * self._taps(), -1)

    def _taps(self) -> int:
        taps = 1
        for k in self.kernel:
            taps *= k
        return taps

    def weight_gradient(self, x: Tensor, g: Tensor) -> Tensor:
        """The ordinary (summed) gradient of the weight."""
        empty = x.new_empty(1).expand(self.weight_shape)
        result: Tensor = torch.ops.aten.convolution_backward(
            g, x, empty, None, self.stride, self.padding, self.dilation, False,
            [0] * len(self.kernel), self.groups, (False, True, False),
        )[1]  # fmt: skip
        return result


@final
class Patches(Form):
    """x: (B, C, *space) input; g: (B, P, *out) output gradient."""

    def __init__(self, x: Tensor, g: Tensor, convolution: Convolution) -> None:
        self.x, self.g, self.convolution = x, g, convolution
        self._direct: Tensor | None = None  # (B, *weight shape) once instantiated

    def operands(self) -> tuple[Tensor, Tensor]:
        """a: (B * groups, T, d) and g: (B * groups, T, p / groups)."""
        groups = self.convolution.groups
        a = self.convolution.unfold(full_precision(self.x)).transpose(1, 2)
        g = full_precision(self.g).flatten(2).unflatten(1, (groups, -1)).flatten(0, 1)
        return a, g.transpose(1, 2)

    def squared_norms(self) -> Tensor:
        groups, (out, inputs) = self.convolution.groups, self._matrix()
        positions = self.g[0, 0].numel()
        if groups == 1 and self.g.dim() == 4 and self.x.dtype is self.g.dtype and usable(self.g):
            return self._by_kernel(4.0 * len(self.g) * out * inputs, positions)
        if direct_is_cheaper((len(self.g) * groups, positions, inputs, out), self.g.device):
            return blocked_squares(self.dense())
        with scratch_scope():
            a, g = self.operands()
            squared = gram_squared_norms(a, g, unit=convolution_unit(self.g.device))
        return squared.view(-1, groups).sum(1)

    def _by_kernel(self, stored: float, positions: int) -> Tensor:
        from tightrope.train.gradients.kernels.convolution import convolution_gradients

        keep = keep_convolution_gradients(stored, positions)
        squares, gradients = convolution_gradients(self.x, self.g, self.convolution, store=keep)
        if keep:
            self._direct = gradients
            return squares
        # Norm and release are two products of rounded operands, each within 2 unit S of the truth;
        # S <= |patches| |g| and every input value lies in at most `taps` patches.
        taps = self.convolution.weight_shape[2:].numel()
        slack = (blocked_squares(self.x) * taps * blocked_squares(self.g)).sqrt_()
        unit = max(convolution_unit(self.g.device), UNIT_TF32)
        return squares.sqrt_().add_(slack, alpha=4 * unit).square_()

    def _matrix(self) -> tuple[int, int]:
        """Rows and columns of one group's weight."""
        shape = self.convolution.weight_shape
        return shape[0] // self.convolution.groups, shape[1:].numel()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        if self._direct is not None:
            return weighted_total(self._direct, factors)
        x, g = full_precision(self.x), full_precision(self.g)
        return self.convolution.weight_gradient(x, scale_examples(g, factors.to(g.dtype)))

    def dense(self) -> Tensor:
        if self._direct is None:
            shape = (len(self.g), *self.convolution.weight_shape)
            self._direct = scratch(shape, full_precision(self.g[:0]).dtype, self.g.device)
            with scratch_scope():
                a, g = self.operands()
                out = self._direct.view(len(a), *self._matrix())
                torch.bmm(g.transpose(1, 2), a, out=out)
        return self._direct

    def zero(self, examples: Tensor) -> None:
        self.x, self.g = zero_examples(self.x, examples), zero_examples(self.g, examples)
        if self._direct is not None:
            self._direct = zero_examples(self._direct, examples)
