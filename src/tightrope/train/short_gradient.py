"""A gradient in few numbers, for models whose whole gradient has no room on one device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

__all__ = ["short_gradient"]

_NUMBERS = 64  # of each parameter


def short_gradient(total: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Of each parameter's gradient some sums with fixed random signs.

    Their squares add up to the gradient's on average, and those of a difference to its own: what is
    compared by size can be compared so. One parameter's gradient is there at a time.
    """
    found: list[Tensor | None] = [None] * len(parameters)

    def shorten(place: int, gradient: Tensor) -> Tensor:
        found[place] = _shortened(gradient, place)
        return gradient.new_zeros(()).expand(gradient.shape)

    hooks = [p.register_hook(partial(shorten, place)) for place, p in enumerate(parameters)]
    try:
        torch.autograd.grad(total, parameters, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _shortened(gradient: Tensor, seed: int) -> Tensor:
    flat = gradient.detach().flatten().double()
    chance = torch.Generator(gradient.device).manual_seed(seed)
    signs = torch.randint(0, 2, flat.shape, generator=chance, device=flat.device) * 2 - 1
    return torch.stack([part.sum() for part in (flat * signs).chunk(_NUMBERS)])
