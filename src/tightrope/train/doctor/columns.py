"""Which coordinates of a model the doctor writes down: some of every tensor, in short runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

__all__ = ["Columns"]

MOST = 2**14  # coordinates, about
RUN = 16  # neighbours that are taken together


@final
class Columns:
    """The beginning of every tensor, and runs at random places.

    Tensors of one size are looked at in the same places, so that noise they share is seen.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        share = max(MOST // max(len(tensors), 1), RUN)
        key = np.random.SeedSequence().entropy
        self.places = [_places(tensor.numel(), share, key) for tensor in tensors]
        self.shapes = [
            tensor.shape if tensor.numel() <= share else (len(places),)
            for tensor, places in zip(tensors, self.places, strict=True)
        ]
        self.sizes = [len(places) for places in self.places]
        self.tensor = np.repeat(np.arange(len(tensors)), self.sizes)

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The values at the chosen places, in float64 on the CPU."""
        parts = [
            tensor.detach().reshape(-1)[places.to(tensor.device)].double().cpu()
            for tensor, places in zip(tensors, self.places, strict=True)
        ]
        return torch.cat(parts)

    def first_of_each(self, most: int) -> Any:
        """At most about `most` columns, the same places of every tensor."""
        share = max(most // max(len(self.sizes), 1), 1)
        place = np.concatenate([np.arange(size) for size in self.sizes])
        return np.flatnonzero(place < share)


def _places(size: int, share: int, key: Any) -> Tensor:
    if size <= share:
        return torch.arange(size, device="cpu")
    draw = np.random.default_rng([key, size])
    starts = RUN * draw.choice(size // RUN - 1, share // RUN - 1, replace=False) + RUN
    runs = np.concatenate([np.zeros(1, dtype=np.int64), np.sort(starts)])
    return torch.from_numpy((runs[:, None] + np.arange(RUN)).reshape(-1))
