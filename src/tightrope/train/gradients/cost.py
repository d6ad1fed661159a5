"""Which of two exact ways to a norm is cheaper: Gram matrices, or the per-example gradient.

For T positions, d inputs, p outputs and batch B the plain step spends 6BTdp operations on a layer.
* Gram ("ghost") norm: 2BT^2(d+p) more operations, and the T x T matrices are written and read.
* Direct: the product that forms all per-example gradients replaces the one that forms their sum, so
  no operation is added, but 4Bdp bytes are written once and read twice.
"""

from __future__ import annotations

import torch

__all__ = ["direct_is_cheaper"]

# Operations the device does in the time it moves one byte; measured, order of magnitude only.
_OPERATIONS_PER_BYTE = {
    ("cpu", 4): 6.0,
    ("cuda", 4): 12.0,  # Gram products run in full float32 on purpose (rounding.py)
    ("cuda", 2): 120.0,
}
# A per-example gradient larger than this is not instantiated for the whole batch at once.
_LARGEST_BYTES = {"cpu": 2**29, "cuda": 2**31}


def direct_is_cheaper(
    sizes: tuple[int, int, int, int], device: torch.device, itemsize: int
) -> bool:
    """Whether to instantiate, for (B, T, d, p)."""
    batch, positions, d, p = sizes
    stored = 4.0 * batch * d * p
    if stored > _LARGEST_BYTES.get(device.type, 2**29):
        return False
    operations_per_byte = _OPERATIONS_PER_BYTE.get((device.type, itemsize), 6.0)
    ghost_operations = 2.0 * batch * positions**2 * (d + p)
    ghost_bytes = 6 * 4.0 * batch * positions**2
    return 3 * stored < ghost_bytes + ghost_operations / operations_per_byte
