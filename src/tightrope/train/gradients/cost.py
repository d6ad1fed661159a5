"""Which of two exact ways to a norm is cheaper: Gram matrices, or the per-example gradient.

For T positions, d inputs, p outputs and batch B the plain step spends 6BTdp operations on a layer.
* Gram ("ghost") norm: 2BT^2(d+p) more operations, and the T x T matrices are written and read.
* Direct: all per-example gradients are kept, 4Bdp bytes written once and read twice.
Either way the sum goes through per-example products (docs/arithmetic.md), some at a time.
"""

from __future__ import annotations

from functools import lru_cache

import torch

__all__ = [
    "MANY_POSITIONS",
    "direct_is_cheaper",
    "evenly",
    "formed_twice",
    "half_gradients_fit",
    "small_convolution",
    "together",
    "unfold_room",
]

# Operations the device does in the time it moves one byte; measured, order of magnitude only.
# On CUDA the Gram products run in full float32 on purpose (rounding.py).
_OPERATIONS_PER_BYTE = {"cpu": 2.5, "cuda": 12.0}
# A per-example gradient larger than this is not instantiated for the whole batch at once.
_LARGEST_BYTES = {"cpu": 2**29, "cuda": 2**30}

# See `formed_twice`; measured on an H200.
_FEW_POSITIONS, _BOXED_POSITIONS = 128, 256
# From so many on the gradients of a convolution are small beside what they are made from.
MANY_POSITIONS = 512


def direct_is_cheaper(sizes: tuple[int, int, int, int], device: torch.device) -> bool:
    """Whether to instantiate, for (B, T, d, p)."""
    batch, positions, d, p = sizes
    stored = 4.0 * batch * d * p
    if stored > _LARGEST_BYTES.get(device.type, 2**29):
        return False
    ghost_operations = 2.0 * batch * positions**2 * (d + p)
    ghost_bytes = 6 * 4.0 * batch * positions**2
    ghost = ghost_bytes + ghost_operations / _OPERATIONS_PER_BYTE.get(device.type, 6.0)
    return 3 * stored < ghost


def half_gradients_fit(sizes: tuple[int, int, int, int]) -> bool:
    """Whether a half-precision layer on CUDA is instantiated for the whole batch.

    The batched product runs at full speed and its 2Bdp bytes are cheap to move, and they take the
    place of the 2BT(d+p) bytes they are made from. Layers whose gradients take far more form them
    twice: a private step may not need much more memory than an ordinary one.
    """
    batch, positions, d, p = sizes
    stored = 2.0 * batch * d * p
    return stored < 2**31 and stored <= 2 * (2.0 * batch * positions * (d + p))


def formed_twice(sizes: tuple[int, int, int, int], *, boxed: bool = False) -> bool:
    """Whether bfloat16 products on CUDA, of (B, T, d, p), are formed twice by a kernel.

    Many positions make forming dear; few make storing and reading the gradients so. boxed: the
    faster kernel can read the operands (`kernels.boxes`).
    """
    few = sizes[1] <= _FEW_POSITIONS
    return few or (boxed and sizes[1] <= _BOXED_POSITIONS and not half_gradients_fit(sizes))


def small_convolution(sizes: tuple[int, int, int, int]) -> bool:
    """Whether a convolution is bound by launches, so that one kernel beats four."""
    batch, positions, d, p = sizes
    return 2.0 * batch * positions * d * p < 4e9


def unfold_room(device: torch.device) -> int:
    """Bytes of patches written out at a time; on CUDA they should stay in the cache."""
    return 2**28


@lru_cache(maxsize=1024)
def evenly(count: int, most: int) -> int:
    """Examples at a time, up to `most`, so that no fewer are left for the end if that can be.

    Fewer may take another kernel, and an example should be rounded alike wherever it stands.
    """
    sizes = range(min(count, most), most // 4, -1)
    return next((size for size in sizes if count % size == 0), max(1, most))


def together(values: int, device: torch.device) -> int:
    """Examples whose gradients, of so many values each, are written out at a time."""
    return max(1, (2**28 if device.type == "cuda" else 2**22) // max(1, values))
