"""What dropout and its like draw: PyTorch's generators of some devices, from a common start.

`torch.manual_seed` would queue a seed for every kind of accelerator that was not used yet, with a
printed stack each time, to be set when the accelerator is used for the first time: long after the
passes that were to leave no trace.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

__all__ = ["python_draws", "same_draws", "start_draws"]


def python_draws() -> tuple[Any, ...]:
    """Where the generators stand that Python and NumPy share."""
    kind, words, *rest = cast(tuple[Any, ...], np.random.get_state())  # noqa: NPY002
    return random.getstate(), kind, words.tobytes(), *rest


def start_draws(devices: Iterable[torch.device], seed: int) -> None:
    """The generators of these devices, and the processor's, start at `seed`."""
    torch.default_generator.manual_seed(seed)
    for device in devices:
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        elif device.type not in ("cpu", "meta"):
            torch.manual_seed(seed)


@contextmanager
def same_draws(devices: Iterable[torch.device], seed: int = 0) -> Iterator[None]:
    """Inside they start at `seed`; afterwards they stand where they stood."""
    used = set(devices)
    numbers = sorted({device.index or 0 for device in used if device.type == "cuda"})
    with torch.random.fork_rng(devices=numbers):
        start_draws(used, seed)
        yield
