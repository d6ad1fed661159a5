"""Depthwise convolutions: every channel has a kernel of its own, so no product is worth patches.

The gradient of a channel at a tap of its kernel is the sum over positions of the output gradient
times the input that the tap sees there.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.kernels import usable

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.patches import Convolution

__all__ = ["depthwise_gradients", "is_depthwise"]

_MOST_TAPS, _MOST_POSITIONS = 64, 256  # up to which tap by tap is faster than example by example


def is_depthwise(convolution: Convolution) -> bool:
    """Whether each output channel reads one input channel, and there are several."""
    return bool(convolution.groups > 1 and convolution.weight_shape[1] == 1)


def depthwise_gradients(x: Tensor, g: Tensor, convolution: Convolution) -> Tensor:
    """(B, *weight shape) in float32 or wider, from (B, C, *space) and (B, P, *out)."""
    if g.dim() == 4 and usable(x, g):
        from tightrope.train.gradients.kernels.depthwise import written_depthwise

        return written_depthwise(x, g, convolution)
    x, g = full_precision(x), full_precision(g)
    few = prod(convolution.kernel) <= _MOST_TAPS and prod(g.shape[2:]) <= _MOST_POSITIONS
    return (_by_taps if few else _by_examples)(x, g, convolution)


def _by_taps(x: Tensor, g: Tensor, convolution: Convolution) -> Tensor:
    """One product and one sum for each tap, channels innermost."""
    x = functional.pad(x, [n for n in reversed(convolution.padding) for _ in range(2)])
    x, g = x.movedim(1, -1), g.movedim(1, -1).contiguous()
    multiple = g.shape[-1] // x.shape[-1]
    x = x.contiguous() if multiple == 1 else x.repeat_interleave(multiple, -1)
    space, reach = tuple(range(1, g.dim() - 1)), g.shape[1:-1]
    kernel: tuple[int, ...] = convolution.kernel
    out = g.new_empty(len(g), *kernel, g.shape[-1])
    for tap in product(*(range(k) for k in kernel)):
        sides = zip(tap, reach, convolution.stride, convolution.dilation, strict=True)
        seen = [slice(t * d, t * d + (size - 1) * s + 1, s) for t, size, s, d in sides]
        place: Any = (slice(None), *tap)
        out[place] = (x[(slice(None), *seen)] * g).sum(space)
    return out.movedim(-1, 1).unsqueeze(2)


def _by_examples(x: Tensor, g: Tensor, convolution: Convolution) -> Tensor:
    """The library's weight gradient of one example at a time, which is fast channels last."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(g.dim())
    if last is not None:
        x, g = x.contiguous(memory_format=last), g.contiguous(memory_format=last)
    out = g.new_empty(len(g), *convolution.weight_shape)
    weight = g.new_empty(()).expand(convolution.weight_shape)  # its shape alone is read
    for example in range(len(g)):
        one = slice(example, example + 1)
        out[example] = torch.ops.aten.convolution_backward(
            g[one], x[one], weight, None, convolution.stride, convolution.padding,
            convolution.dilation, False, (0,) * (g.dim() - 2), convolution.groups,
            (False, True, False),
        )[1]  # fmt: skip
    return out
