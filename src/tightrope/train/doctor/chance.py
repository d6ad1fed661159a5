"""The same draws twice: all generators that a model may use at a common start, and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from tightrope.train.gradients.draws import same_draws

__all__ = ["same_chance"]


@contextmanager
def same_chance(device: torch.device, seed: int = 0) -> Iterator[None]:
    """PyTorch's, NumPy's and Python's global generators begin at `seed` inside."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with same_draws([device], seed):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
