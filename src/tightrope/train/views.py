"""Several views of an example, such as random crops, as a dimension inside the example.

The loss of an example is the mean over its views (De et al. 2022), so the record is the example
and the account is the same. Views are made inside the loss, as a part of the proved program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.validate import check_count

__all__ = ["Augment", "CropAndFlip", "with_views"]

Augment = Callable[[Tensor, int], Tensor]  # (B, ...) and K -> (B, K, ...)


@final
@dataclass(frozen=True)
class CropAndFlip:
    """Images reflected by `padding` at their borders, cut out at a random place, half of them
    mirrored: (B, C, H, W) and K -> (B, K, C, H, W)."""

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_count(self.padding, "padding", low=0)

    def __call__(self, images: Tensor, views: int) -> Tensor:
        height, width = images.shape[2:]
        wide = functional.pad(images, [self.padding] * 4, mode="reflect")
        one = images[:, :1, :1, :1].expand(-1, views, -1, -1)  # (B, K, 1, 1), for its shape
        rows = self._places(one, height)
        columns = self._places(one, width)
        if self.flip:
            mirrored = torch.rand_like(one, dtype=torch.float32) < 0.5
            columns = torch.where(mirrored, columns.flip(3), columns)
        copies = wide.unsqueeze(1).expand(-1, views, -1, -1, -1)  # (B, K, C, H + 2p, W + 2p)
        rows = rows.transpose(2, 3).unsqueeze(2).expand(-1, -1, wide.shape[1], -1, wide.shape[3])
        cut = copies.gather(3, rows)
        columns = columns.unsqueeze(2).expand(-1, -1, wide.shape[1], height, -1)
        return cut.gather(4, columns)

    def _places(self, one: Tensor, length: int) -> Tensor:
        """(B, K, 1, length): a window of consecutive places, from a random start."""
        start = torch.randint_like(one, 2 * self.padding + 1, dtype=torch.int64)
        return start + torch.arange(length, device=one.device)


def with_views(loss: Callable[..., Any], views: int, augment: Augment | None) -> Callable[..., Any]:
    """The mean loss over `views` views: of (B, K, ...) inputs, or made by `augment` of (B, ...).

    The first argument after the model has views; the others belong to the example.
    """
    check_count(views, "views", low=1)

    def mean(model: Any, inputs: Tensor, *targets: Tensor) -> Tensor:
        seen = inputs if augment is None else augment(inputs, views)
        others = (_repeated(target, views) for target in targets)
        each = loss(model, seen.flatten(0, 1), *others)
        return each.unflatten(0, (-1, views)).mean(1)  # type: ignore[no-any-return]

    return mean


def _repeated(target: Tensor, views: int) -> Tensor:
    """(B, ...) -> (B * K, ...), each row K times."""
    return target.unsqueeze(1).expand(-1, views, *target.shape[1:]).flatten(0, 1)
