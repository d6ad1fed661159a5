"""How the products of a batch are cut into tiles, and which program forms which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Operands", "Tile", "used"]

_PROGRAMS = 1056  # enough of them to keep a large GPU busy


class Tile(NamedTuple):
    """rows and columns of a product; positions that are read at a time."""

    rows: int
    columns: int
    positions: int
    warps: int
    stages: int


@triton.jit
def used(product, total, example, factor_ptr, squares_ptr, summing):
    """What both kernels do with a finished product: added to the total, or squared."""
    if summing != 0:
        factor = tl.load(factor_ptr + example)
        if factor > 0.0:  # a dropped example may hold nan
            total += factor * product
    else:
        squares = tl.sum(tl.sum(product * product, axis=1).to(tl.float64), axis=0)
        place = example.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        tl.store(squares_ptr + place, squares)
    return total


class Operands(ABC):
    """g: (B, T, p), and what it is multiplied by; a product is (p, d)."""

    g: Tensor
    d: int
    tile: Tile

    @property
    def tiles(self) -> int:
        """Of one product."""
        return int(triton.cdiv(self.g.shape[2], self.tile.rows)) * self.column_tiles

    @property
    def column_tiles(self) -> int:
        return int(triton.cdiv(self.d, self.tile.columns))

    def share(self, most: int) -> int:
        """Examples for each program, so that all together keep the device busy."""
        splits = triton.cdiv(_PROGRAMS, self.tiles)
        return max(1, min(most, int(triton.cdiv(len(self.g), splits))))

    @abstractmethod
    def launch(
        self, grid: tuple[int, int], factors: Tensor, out: Tensor, squares: Tensor, summing: int,
        share: int,
    ) -> None:  # fmt: skip
        """Sums of `share` examples each into `out`, or the squares of every tile into `squares`.

        One binary does both, so that both are of the same products, bit for bit.
        """
